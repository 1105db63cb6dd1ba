"""The middleware in front of the routes: pure ASGI, so that streams pass through untouched."""

import asyncio
import hashlib
import hmac
import logging
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stridelm.serve.errors import ApiError

log = logging.getLogger(__name__)

HEADER_BYTES = 64 * 2**10
_MAX_ARRIVING = 16
"""How many bodies of the maximum size may be arriving at the same time."""
BODY_SECONDS = 30.0
"""Maximum time for a request's body to arrive."""
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


@dataclass(slots=True)
class Traffic:
    """What the server has to finish before it may exit."""

    is_draining: bool = False
    """Whether new requests for work are refused."""
    under_way: int = 0
    """Number of requests for work whose replies are not complete."""


class _Layer:
    """Handles HTTP requests; all other ASGI events (the app's start and end) pass through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._handle if scope["type"] == "http" else self._app)(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class RequestIds(_Layer):
    """Gives every request an id, the one that came with it or a new one, and returns it in the reply's headers.
    Exceptions that nothing else caught end here: the log has the details, the reply only the id."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _header(scope, b"x-request-id")
        name = given.decode() if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        has_started = False

        async def send_named(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            log.exception("request %s failed", name)
            if has_started:
                raise  # this cuts the connection: the reply must not look complete
            await _refuse(ApiError(500, f"the server failed: its log tells more of request {name}"), scope, send_named)


class ApiKey(_Layer):
    """Admits requests with the right API key, as OpenAI's clients send it or as Anthropic's do. Digests are compared,
    since they all have the same length, and in constant time."""

    def __init__(self, app: ASGIApp, key: str, open_paths: Collection[str]) -> None:
        """`open_paths`: paths that need no key."""
        super().__init__(app)
        self._open_paths = open_paths
        self._digest = _digest(key.strip().encode())

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, given = _header(scope, b"authorization").partition(b" ")
        is_known = self._is_key(given) and scheme.lower() == b"bearer"
        if is_known or self._is_key(_header(scope, b"x-api-key")) or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
        else:
            message = "Incorrect API key provided, or none: send `Authorization: Bearer KEY` or `x-api-key: KEY`"
            error = ApiError(401, message, code="invalid_api_key")
            await _refuse(error, scope, send, {"www-authenticate": "Bearer"})

    def _is_key(self, given: bytes) -> bool:
        return hmac.compare_digest(_digest(given.strip()), self._digest)


class Headers(_Layer):
    """Refuses requests whose address and headers are too long, or whose headers disagree on where the body ends."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_headers(scope)
        except ApiError as error:
            return await _refuse(error, scope, send, {"connection": "close"})
        await self._app(scope, receive, send)


class Admission(_Layer):
    """Counts the requests for work, which are all POST requests, and refuses new ones while the server drains. Other
    requests, such as /health, are still answered."""

    def __init__(self, app: ASGIApp, traffic: Traffic, retry_after: int) -> None:
        super().__init__(app)
        self._traffic = traffic
        self._retry_after = retry_after

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
        elif self._traffic.is_draining:
            error = ApiError(503, "the server is shutting down: try again later", retry_after=self._retry_after)
            await _refuse(error, scope, send, {"connection": "close"})
        else:
            self._traffic.under_way += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._traffic.under_way -= 1


@dataclass(eq=False, slots=True)
class _Arrival:
    """A request's body that is not parsed yet."""

    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    """Those of its bytes that count towards the limit."""
    timeout: asyncio.Timeout | None = None
    """Its time limit, while the body is incomplete."""
    is_displaced: bool = False
    """Whether it was given up to make room for other bodies."""


class SizeLimit(_Layer):
    """Reads the whole body, if it is small enough and arrives in time, and passes it on in one piece."""

    def __init__(self, app: ASGIApp, most: int, seconds: float = BODY_SECONDS) -> None:
        super().__init__(app)
        self._most = most
        self._seconds = seconds
        self._arrivals: dict[_Arrival, None] = {}
        """In the order in which the requests came."""
        self._size = 0
        """Bytes of all arrivals that count towards the limit."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = _Arrival()
        self._arrivals[arrival] = None
        try:
            error = await self._refusal(arrival, scope, receive)
            if error is not None:
                self._forget(arrival)
                await _refuse(error, scope, send, {"connection": "close"})
            elif arrival in self._arrivals:  # otherwise the client has disconnected
                await self._app(scope, self._replay(arrival, receive), send)
        finally:
            self._forget(arrival)

    async def _refusal(self, arrival: _Arrival, scope: Scope, receive: Receive) -> ApiError | None:
        """Read the body; returns the error if it is to be refused, else None."""
        try:
            self._check(int(_header(scope, b"content-length") or 0))
            async with asyncio.timeout(self._seconds) as arrival.timeout:
                await self._read(arrival, receive)
        except TimeoutError:
            if arrival.is_displaced:
                return _too_many_arrive()
            return ApiError(408, f"the request's body did not arrive within {self._seconds:g} seconds")
        except ApiError as error:
            return error
        finally:
            arrival.timeout = None
        return None

    def _check(self, size: int) -> None:
        if size > self._most:
            raise ApiError(413, f"the request's body has more than the {self._most} bytes that this server takes")

    async def _read(self, arrival: _Arrival, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return self._forget(arrival)
            part = message.get("body", b"")
            self._check(len(arrival.body) + len(part))
            arrival.body += part
            if not arrival.is_displaced:
                arrival.size += len(part)
                self._size += len(part)
            if not message.get("more_body", False):
                arrival.timeout = None
                return self._make_room()
            self._make_room()

    def _make_room(self) -> None:
        """If there is too much, give up the bodies that have been arriving for the longest time: stalled ones would
        keep the others out. Complete bodies stay, since they are about to be parsed."""
        for arrival in list(self._arrivals) if self._size > _MAX_ARRIVING * self._most else ():
            if arrival.timeout is not None and not (arrival.is_displaced or arrival.timeout.expired()):
                arrival.is_displaced = True
                arrival.timeout.reschedule(asyncio.get_running_loop().time())
                self._size -= arrival.size
                arrival.size = 0
                if self._size <= _MAX_ARRIVING * self._most:
                    break

    def _forget(self, arrival: _Arrival) -> None:
        if arrival in self._arrivals:
            del self._arrivals[arrival]
            self._size -= arrival.size

    def _replay(self, arrival: _Arrival, receive: Receive) -> Receive:
        """A `receive` that returns the body, and then what comes after it: the client's disconnect. An app that asks
        for the latter has parsed the body, which is then forgotten."""
        is_given = False

        async def receive_again() -> Message:
            nonlocal is_given
            if is_given:
                self._forget(arrival)
                return await receive()
            is_given = True
            body, arrival.body = bytes(arrival.body), bytearray()
            return {"type": "http.request", "body": body, "more_body": False}

        return receive_again


class RequestLimit(_Layer):
    """Refuses requests for work if there are more than could be running or waiting. It comes after the SizeLimit, so
    that a request that has not fully arrived does not count."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        super().__init__(app)
        self._most = most
        self._count = 0

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
        elif self._count >= self._most:
            await _refuse(ApiError(503, "too many requests at once: come again", retry_after=1), scope, send)
        else:
            self._count += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._count -= 1


def _too_many_arrive() -> ApiError:
    return ApiError(503, "too many large requests arrive at once: come again", retry_after=1)


def _check_headers(scope: Scope) -> None:
    """The connection itself limits only headers that come in several pieces. Two statements of a body's length would
    allow requests to be smuggled past proxies."""
    names = [name for name, _ in scope["headers"]]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise ApiError(400, "the request has both Content-Length and Transfer-Encoding: it must have one")
    size = len(scope["path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
        raise ApiError(400, f"the request's address and headers have more than the {HEADER_BYTES} bytes that they may")


async def _refuse(error: ApiError, scope: Scope, send: Send, headers: Mapping[str, str] | None = None) -> None:
    every = dict(headers or {})
    if error.retry_after:
        every["retry-after"] = str(error.retry_after)
    await JSONResponse(error.body_for(scope["path"]), error.status, every)(scope, _nothing, send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _header(scope: Scope, name: bytes) -> bytes:
    """The header's value, or no bytes if it is missing."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
