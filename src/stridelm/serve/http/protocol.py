"""uvicorn's HTTP connection, without endless patience, and never for long at once.

It waits forever by itself for a request's headers, for a client that does not read, and for connections to end before
it takes requests from others. All of that ends here.
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
"""The longest from a connection's start, or from its last reply, to the end of a request's headers. What is left of a
body that was refused is read and dropped for as long, too."""
_SEND_BUFFER = 128 * 2**10
"""Bytes that the system takes of a reply before the client has read them. Left alone it takes megabytes: whole answers
would be written for a client that reads nothing."""
_DEAF_SECONDS = 1.0
"""How long a client's bytes are read and dropped before the connection is closed: a connection that is closed before
they are read takes its reply along."""
_SPARE_FILES = 128
"""For the engine and whatever else opens files."""


def most_connections(wanted: int) -> int:
    """As many as are wanted, if the system lets this process have them: the soft limit of open files is raised."""
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
    """`most`: connections at the same time; a new one beyond them takes the place of one that waits the longest.
    `send_seconds`: the patience with a client that does not read."""
    fields = {"most": most, "send_seconds": send_seconds, "read_queue": ReadQueue()}
    return cast(type[Protocol], type("Protocol", (Protocol,), fields))


class Protocol(H11Protocol):
    """Closes a connection that has been open for a while without asking for anything, or without reading."""

    most: int
    send_seconds: float
    read_queue: ReadQueue
    _reading: Reading
    _deadline: asyncio.TimerHandle | None = None
    _patience: asyncio.TimerHandle | None = None
    _waits_since = 0.0
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
        for timer in (self._deadline, self._patience):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._reading.receive(data)

    def send_400_response(self, msg: str) -> None:
        """What came is no request. The client may still be sending."""
        self._reading.ignore_rest()
        if self.conn.our_state is h11.SEND_BODY:  # a reply that breaks off must not look whole
            self.transport.abort()
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._end_cycle()
            body = orjson.dumps(ApiError(400, msg).body())
            length = ("content-length", str(len(body)))
            headers = [("content-type", "application/json"), length, ("connection", "close")]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self._set_patience(_DEAF_SECONDS, self._close)

    def _end_cycle(self) -> None:
        """The request that is being read will not be whole: whoever waits for it sees that the client has left."""
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
        if self._patience is not None and not self.transport.is_closing():
            self._patience.cancel()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self._close()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except h11.LocalProtocolError:  # there is nothing left to say on this connection
            self.transport.abort()

    def _close(self) -> None:
        """What the client has not read of the last reply does not hold the connection."""
        self.transport.close()
        self._watch_sending()

    def _set_patience(self, seconds: float, end: Callable[[], None]) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(seconds, end)

    def _watch_sending(self) -> None:
        """Cut the client off as soon as it has read nothing for a while. Nothing is written meanwhile: the connection
        is paused, or being closed."""
        unsent = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < unsent:
                self._watch_sending()
            else:
                log.info("a client read nothing for %g s: it was cut off", self.send_seconds)
                self.transport.abort()

        self._set_patience(self.send_seconds, check)

    def _make_room(self) -> None:
        """Close the connection that has been waiting the longest for its request to arrive; one whose bytes wait to be
        parsed only if there is no other."""
        waiting = [each for each in self.connections if isinstance(each, Protocol) and each.is_waiting]
        if waiting:
            min(waiting, key=lambda each: (each._reading.unread > 0, each._waits_since)).transport.abort()

    @property
    def is_waiting(self) -> bool:
        """Whether a request is not here, or not all of it, on a connection that is not being closed and whose replies
        have been sent."""
        is_here = self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)
        return not is_here and not self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def _await_request(self) -> None:
        self._waits_since = time.monotonic()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up, self.cycle)

    def _give_up(self, last: RequestResponseCycle | None) -> None:
        """Unless a request has come since the `last` one, or that one came before its predecessor's reply was out."""
        if self.cycle is last and (last is None or last.response_complete):
            self.timeout_keep_alive_handler()
