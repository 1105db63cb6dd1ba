"""A proxy between a client and the server that keeps what went through it: a failing test prints it, and a passing one
checks that the client really sent what the test is about."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE = 120.0
"""Seconds until a silent server counts as hung."""
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server"}
_LONGEST_SHOWN = 6000


@dataclass
class Exchange:
    """One request and its reply."""

    method: str
    path: str
    sent: Any
    """The body, read as JSON; None without one."""
    status: int = 0
    """0: the server has not answered."""
    received: bytes = b""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The chat that was sent; to /v1/responses, its items."""
        return self.sent["messages"] if "messages" in self.sent else self.sent["input"]

    @property
    def roles(self) -> list[str]:
        """Of the messages; of items that are none, their types."""
        return [message.get("role") or message["type"] for message in self.messages]

    def __str__(self) -> str:
        received = self.received.decode(errors="replace")
        return f"{self.method} {self.path}\n{json.dumps(self.sent)}\n-> {self.status}\n{received[:_LONGEST_SHOWN]}"


@dataclass
class Wire:
    """Where clients find the server in one test, and everything that they said to each other."""

    url: str
    """The base URL, with /v1."""
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def chats(self) -> list[Exchange]:
        """The requests for text, in order."""
        return [each for each in self.exchanges if each.path.endswith(("/chat/completions", "/responses", "/messages"))]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.exchanges))


@contextmanager
def recorded(host: str, port: int) -> Iterator[Wire]:
    """Forward a free port to the server at `host` and `port`, and record."""
    exchanges: list[Exchange] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            exchange = Exchange(self.command, self.path, json.loads(body) if body else None)
            exchanges.append(exchange)
            upstream = HTTPConnection(host, port, timeout=PATIENCE)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            try:
                upstream.request(self.command, self.path, body or None, headers)
                self._answer(exchange, upstream.getresponse())
            finally:
                upstream.close()

        do_GET = do_POST = _forward

        def _answer(self, exchange: Exchange, reply: HTTPResponse) -> None:
            """Send the reply on as it comes, so that streams stay streams."""
            exchange.status = reply.status
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while piece := reply.read1(65536):
                exchange.received += piece
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:
            """The exchanges are the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield Wire(f"http://127.0.0.1:{proxy.server_port}/v1", exchanges)
        finally:
            proxy.shutdown()
