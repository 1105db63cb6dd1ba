"""A small OpenAI-compatible server that answers as a test tells it to, and remembers what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], object]


class FakeOpenAI(ThreadingHTTPServer):
    """Answers to POST are given in turn; the last one again and again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: Answer = sends_json({"object": "list", "data": [{"id": "first"}, {"id": "second"}]})
        self.answers: list[Answer] = [streams("Hi", " there", usage=3)]
        self.asked: list[dict[str, Any]] = []
        """The bodies of the POSTs."""
        self.keys: list[str | None] = []
        """The Authorization of every request."""
        self.is_over = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may leave at any time; a test's output is its own."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def messages(self, request: int = -1) -> list[tuple[str, str]]:
        return [(message["role"], message["content"]) for message in self.asked[request]["messages"]]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: FakeOpenAI  # type: ignore[assignment]

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        self.server.models(self) if self.path == "/v1/models" else sends_status(404, "")(self)

    def do_POST(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        assert self.path == "/v1/chat/completions"
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.answers[min(len(self.server.asked), len(self.server.answers)) - 1](self)

    def begin(self, kind: str = "text/event-stream", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def chunk(self, text: str) -> None:
        """A part of a body that is sent with Transfer-Encoding: chunked."""
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """As above."""


@contextmanager
def fake_openai() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.is_over.set()
        server.shutdown()
        thread.join()


def event(content: object) -> str:
    return f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n"


def piece(text: str | None, finish_reason: str | None = None, **more: object) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    } | more


def streams(*texts: str, usage: int | None = None, **last: object) -> Answer:
    """A whole answer; `last`: what its last chunk with choices carries at the top level."""
    events = [event(piece("")), *(event(piece(text)) for text in texts), event(piece(None, "stop", **last))]
    if usage is not None:
        events.append(event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": usage}}))
    return sends(*events, event("[DONE]"))


def sends(*parts: str) -> Answer:
    """These parts of a stream, then its end."""

    def answer(handler: Handler) -> None:
        handler.begin(Transfer_Encoding="chunked")
        for part in (*parts, ""):
            handler.chunk(part)

    return answer


def breaks_after(*parts: str) -> Answer:
    """These parts of a stream, then the connection is gone."""

    def answer(handler: Handler) -> None:
        handler.begin(Transfer_Encoding="chunked")
        for part in parts:
            handler.chunk(part)
        handler.close_connection = True

    return answer


def falls_silent_after(*parts: str) -> Answer:
    """These parts of a stream, then nothing more until the test is over."""

    def answer(handler: Handler) -> None:
        breaks_after(*parts)(handler)
        handler.server.is_over.wait(60)

    return answer


def sends_status(status: int, body: str, kind: str = "text/html", **headers: str) -> Answer:
    def answer(handler: Handler) -> None:
        handler.begin(kind, status, Content_Length=str(len(body.encode())), **headers)
        handler.wfile.write(body.encode())

    return answer


def sends_json(content: object, status: int = 200) -> Answer:
    return sends_status(status, json.dumps(content), "application/json")
