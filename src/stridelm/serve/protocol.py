"""uvicorn's HTTP connection, without endless patience, and never for long at once.

It waits forever by itself for a request's headers, for a client that does not read, and for connections to end before
it takes requests from others. All of that ends here.
"""

import asyncio
import logging
import resource
import socket
import time
from typing import cast

import h11
import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stridelm.serve.errors import ApiError

log = logging.getLogger(__name__)

HEADER_SECONDS = 30.0
"""The longest from a connection's start, or from its last reply, to the end of a request's headers. What is left of a
body that was refused is read and dropped for as long, too."""
_AT_ONCE = 8 * 2**10
"""Bytes that are read between two turns of the event loop: of tiny chunks they take 20 ms."""
_SEND_BUFFER = 128 * 2**10
"""Bytes that the system takes of a reply before the client has read them. Left alone it takes megabytes: whole answers
would be written for a client that reads nothing."""
_DEAF_SECONDS = 1.0
_SPARE_FILES = 128
"""For the engine and whatever else opens files."""


def most_connections(wanted: int) -> int:
    """As many as are wanted, and as the system lets a process have."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(min(wanted, files - _SPARE_FILES), 16)


def make_protocol(most: int, send_seconds: float) -> type["Protocol"]:
    """`most`: connections at the same time; a new one beyond them takes the place of one that waits the longest.
    `send_seconds`: the patience with a client that does not read."""
    return cast(type[Protocol], type("Protocol", (Protocol,), {"most": most, "send_seconds": send_seconds}))


class _Flow(FlowControl):
    """Lets nothing more come in while what came waits for its turn."""

    is_busy = False

    def resume_reading(self) -> None:
        if not self.is_busy:
            super().resume_reading()


class Protocol(H11Protocol):
    """Closes a connection that has been open for a while without asking for anything, or without reading."""

    most: int
    send_seconds: float
    _flow: _Flow
    _deadline: asyncio.TimerHandle | None = None
    _patience: asyncio.TimerHandle | None = None
    _is_deaf = False
    """What came was no request: nothing is read any more."""
    _unread: bytes = b""
    """What came and waits for its turn."""
    _waits_since = 0.0
    """When the connection was made, or its last reply finished."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.most:
            self._make_room()
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unread = b""
        for timer in (self._deadline, self._patience):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """What comes at once is at most 256 KB: that much may wait here."""
        if self._is_deaf:
            return
        self._unread += data
        if not self._flow.is_busy:
            self._read_on()

    def _read_on(self) -> None:
        data, self._unread = self._unread[:_AT_ONCE], self._unread[_AT_ONCE:]
        if data and not self.transport.is_closing():
            super().data_received(data)
        was_busy, self._flow.is_busy = self._flow.is_busy, bool(self._unread)
        if self._unread:
            self._flow.pause_reading()
            self.loop.call_soon(self._read_on)
        elif was_busy:
            self._flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Of what is no request. The client may still be sending: that is dropped for a moment, since a connection that
        is closed before it was read takes its reply along."""
        self._is_deaf, self._unread = True, b""
        body = orjson.dumps(ApiError(400, msg).body())
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.loop.call_later(_DEAF_SECONDS, self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._patience = self.loop.call_later(self.send_seconds, self._cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._patience is not None:
            self._patience.cancel()

    def timeout_keep_alive_handler(self) -> None:
        """What the client has not read of the last reply does not hold the connection."""
        super().timeout_keep_alive_handler()
        self._patience = self.loop.call_later(self.send_seconds, self.transport.abort)

    def _cut(self) -> None:
        log.info("a client read too little for %g s: it was cut off", self.send_seconds)
        self.transport.abort()

    def _make_room(self) -> None:
        """Close the connection that has been waiting the longest for its request to arrive."""
        waiting = [each for each in self.connections if isinstance(each, Protocol) and each.is_waiting]
        if waiting:
            min(waiting, key=lambda each: each._waits_since).transport.abort()

    @property
    def is_waiting(self) -> bool:
        """Whether a request is not here, or not all of it, on a connection that is not being closed."""
        is_here = self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)
        return not is_here and not self.transport.is_closing()

    def _await_request(self) -> None:
        self._waits_since = time.monotonic()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up, self.cycle)

    def _give_up(self, last: RequestResponseCycle | None) -> None:
        """Unless a request has come since the `last` one, or that one came before its predecessor's reply was out."""
        if self.cycle is last and (last is None or last.response_complete):
            self.timeout_keep_alive_handler()
