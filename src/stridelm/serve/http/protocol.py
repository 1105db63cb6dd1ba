"""uvicorn's HTTP connection, with time limits, and parsed in short slices.

By itself, uvicorn waits forever for a request's headers, for a client that does not read its reply, and for open
connections to end before it accepts new ones. Here, all of these waits are limited.
"""

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable
from typing import cast

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stridelm.serve.errors import ApiError
from stridelm.serve.http.read_queue import Reading, ReadQueue

log = logging.getLogger(__name__)

HEADER_SECONDS = 30.0
"""Maximum time from a connection's start, or from its last reply, to the end of a request's headers. The rest of a body
that was refused is read and dropped for at most the same time."""
_SEND_BUFFER = 128 * 2**10
"""Bytes of a reply that the system buffers before the client has read them. By default it buffers megabytes: whole
answers would be written for a client that reads nothing."""
_DISCARD_SECONDS = 1.0
"""How long a client's bytes are read and dropped before the connection is closed: if it were closed with unread bytes,
the client could lose the reply."""
_SPARE_FILES = 128
"""Number of open files left to the engine and everything else that opens files."""


def most_connections(wanted: int) -> int:
    """Maximum number of connections: `wanted`, or fewer if this process may not open enough files. Raises the soft
    limit of open files if necessary."""
    files = wanted + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _is_below(soft, files) and soft != hard:
        soft = hard if _is_below(hard, files) else files
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if not _is_below(soft, files):
        return wanted
    most = max(soft - _SPARE_FILES, 16)
    log.warning("%d connections at most, not %d: this process may open %d files (ulimit -n)", most, wanted, soft)
    return most


def _is_below(limit: int, files: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < files


def make_protocol(most: int, send_seconds: float) -> type["Protocol"]:
    """`most`: maximum number of connections; a new one beyond it replaces the one that has waited longest for its
    request. `send_seconds`: how long a client may read nothing of its reply."""
    fields = {"most": most, "send_seconds": send_seconds, "read_queue": ReadQueue()}
    return cast(type[Protocol], type("Protocol", (Protocol,), fields))


class Protocol(H11Protocol):
    """Closes connections whose clients send no request, or read nothing of their replies, for too long."""

    most: int
    send_seconds: float
    read_queue: ReadQueue
    _reading: Reading
    _deadline: asyncio.TimerHandle | None = None
    _close_timer: asyncio.TimerHandle | None = None
    _waiting_since = 0.0
    """When the connection was made, or its last reply finished."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.most:
            self._make_room()
        super().connection_made(transport)
        self.flow = self._reading = Reading(transport, self.read_queue, super().data_received)
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._reading.ignore_rest()
        for timer in (self._deadline, self._close_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._reading.receive(data)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not a valid request. The client may still be sending."""
        self._reading.ignore_rest()
        if self.conn.our_state is h11.SEND_BODY:  # a reply that is cut off must not look complete
            self.transport.abort()
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._end_cycle()
            body = orjson.dumps(ApiError(400, msg).body())
            length = ("content-length", str(len(body)))
            headers = [("content-type", "application/json"), length, ("connection", "close")]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self._set_close_timer(_DISCARD_SECONDS, self._close)

    def _end_cycle(self) -> None:
        """The request that is being read will never be complete: tell the app that the client has disconnected."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_sending()
        else:
            self._await_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._close_timer is not None and not self.transport.is_closing():
            self._close_timer.cancel()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self._close()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except h11.LocalProtocolError:  # nothing more can be sent on this connection
            self.transport.abort()

    def _close(self) -> None:
        """Close the connection, even if the client does not read the rest of the last reply."""
        self.transport.close()
        self._watch_sending()

    def _set_close_timer(self, seconds: float, end: Callable[[], None]) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._close_timer = self.loop.call_later(seconds, end)

    def _watch_sending(self) -> None:
        """Cut the client off if it reads nothing for `send_seconds`. Nothing is written meanwhile: the connection is
        paused, or being closed."""
        unsent = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < unsent:
                self._watch_sending()
            else:
                log.info("a client read nothing for %g s: it was cut off", self.send_seconds)
                self.transport.abort()

        self._set_close_timer(self.send_seconds, check)

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its request to arrive; one with unparsed bytes only if there
        is no other."""
        waiting = [each for each in self.connections if isinstance(each, Protocol) and each.is_waiting]
        if waiting:
            min(waiting, key=lambda each: (each._reading.unread > 0, each._waiting_since)).transport.abort()

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits for a request, or for the rest of one: it is not being closed, and its replies
        have been sent."""
        is_here = self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)
        return not is_here and not self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def _await_request(self) -> None:
        self._waiting_since = time.monotonic()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up, self.cycle)

    def _give_up(self, last: RequestResponseCycle | None) -> None:
        """Close the connection, unless a request has come after `last`, or `last` itself, which came before the reply
        to its predecessor was sent, is still being answered."""
        if self.cycle is last and (last is None or last.response_complete):
            self.timeout_keep_alive_handler()
