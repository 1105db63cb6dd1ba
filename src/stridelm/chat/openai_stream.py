"""Requests to an OpenAI-compatible server: sends JSON, receives JSON or server-sent events. Standard library only."""

import http.client
import json
import ssl
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stridelm.params import InputError

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 300.0
"""Maximum time without data: the server may read a long prompt for minutes before the first token comes."""
_LONGEST_LINE = 2**22
_LONGEST_BODY = 2**24
_DONE = "[DONE]"


class ServerError(InputError):
    """An error that a server reported, or the reason why it could not be reached."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go."""

    url: str
    """As in http://127.0.0.1:8000/v1."""
    api_key: str | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
        except ValueError as error:
            raise InputError(f"--url {self.url!r}: not an address ({error})") from error
        if not (is_usable and is_plain and self.url.isascii() and self.url.isprintable() and " " not in self.url):
            raise InputError(f"--url {self.url!r}: give an address such as http://127.0.0.1:8000/v1")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise InputError("the API key holds characters that no header can carry")

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path."""
        with self._exchange("GET", path, None) as response:
            return _json_object(response.read(_LONGEST_BODY), self.url)

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Post JSON; yields the JSON objects of the events as they come, until the server says that it is done."""
        with self._exchange("POST", path, json.dumps(body).encode()) as response:
            kind = response.headers.get_content_type()
            if kind != "text/event-stream":
                raise ServerError(f"{self.url}: does not stream: it sent {kind}")
            for event, data in events(_lines(response)):
                if data == _DONE:
                    return
                chunk = _json_object(data, self.url)
                if event == "error" or chunk.get("error"):
                    raise ServerError(f"{self.url}: {_error_message(chunk)}")
                yield chunk

    @contextmanager
    def _exchange(self, method: str, path: str, body: bytes | None) -> Iterator[http.client.HTTPResponse]:
        """One request on a connection of its own. Redirects are not followed: the key is for this server alone."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=CONNECT_SECONDS, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection.connect()
            connection.sock.settimeout(SILENCE_SECONDS)
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise self._refusal(response, path)
            yield response
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url}: {_reason(error)}") from error
        finally:
            connection.close()

    def _refusal(self, response: http.client.HTTPResponse, path: str) -> ServerError:
        message = f"{self.url}: {response.status} {response.reason}".rstrip()
        if 300 <= response.status < 400:
            return ServerError(f"{message} (it points to {response.headers['Location']}: give that with --url)")
        try:
            message = f"{message}: {_error_message(json.loads(response.read(_LONGEST_BODY)))}"
        except (ValueError, RecursionError):
            # An HTML page, or nothing: there is only the status.
            if response.status == 404:
                message = f"{message}: there is no {path}; such an address usually ends in /v1"
        return ServerError(message, response.status)


def events(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Server-sent events: their kind and their data. An event that is incomplete when the stream ends is left out, as
    the standard says."""
    kind, data = "message", list[str]()
    for line in lines:
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []
        match line.partition(":"):  # a comment has no name
            case "event", _, value:
                kind = value.removeprefix(" ")
            case "data", _, value:
                data.append(value.removeprefix(" "))


def _lines(response: http.client.HTTPResponse) -> Iterator[str]:
    encoding = "utf-8-sig"  # there may be a byte order mark before the first line
    while line := response.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise ServerError(f"a line of the stream is longer than {_LONGEST_LINE} bytes")
        yield line.decode(encoding, errors="replace").removesuffix("\n").removesuffix("\r")
        encoding = "utf-8"


def _json_object(text: str | bytes, url: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ServerError(f"{url}: what it sent is not JSON") from error
    if not isinstance(content, dict):
        raise ServerError(f"{url}: what it sent is not a JSON object")
    return content


def _error_message(content: object) -> str:
    """The message of an error, in any of the formats that servers use."""
    match content:
        case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
            return " ".join(message.split())
        case {"detail": str(message)}:
            return " ".join(message.split())
    return json.dumps(content)[:500]


def _reason(error: Exception) -> str:
    match error:
        case ConnectionRefusedError():
            return "nobody listens there"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message})"
        case TimeoutError():
            return "no word from it in time"
        case http.client.RemoteDisconnected() | ConnectionError() | http.client.IncompleteRead():
            return "the connection broke"
        case http.client.HTTPException():
            return "what answers there does not speak HTTP"
    return f"cannot be reached ({getattr(error, 'strerror', None) or error})"  # an address that names no machine, say
