"""Bytes that clients have sent and that wait to be parsed, for all connections of one server.

Parsing takes far longer than receiving: 4 KB of tiny chunks take 10 ms. So connections take turns, a slice each, and
the event loop has other work done in between. A connection's transport reads only while neither holds:

unread    bytes of it wait for their turn here
paused    uvicorn asked for a pause: a request waits for the reply before it, or the app has not read the body so far
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

log = logging.getLogger(__name__)

_SLICE = 4 * 2**10
"""Bytes that are parsed at once."""
_TURN_SECONDS = 0.01
"""No further slice begins later than this in one turn of the event loop."""


class ReadQueue:
    """The connections whose bytes wait to be parsed, in the order of their turns. One per server."""

    def __init__(self) -> None:
        self._waiting: deque[Reading] = deque()
        self._is_scheduled = False

    def add(self, reading: "Reading") -> None:
        self._waiting.append(reading)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        end = time.monotonic() + _TURN_SECONDS
        while self._waiting:
            self._waiting.popleft().parse_slice()
            if time.monotonic() >= end:
                break
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._take_turn)


class Reading(FlowControl):
    """What one connection has received and not parsed. uvicorn pauses and resumes it as its own FlowControl."""

    def __init__(self, transport: asyncio.Transport, queue: ReadQueue, parse: Callable[[bytes], None]) -> None:
        super().__init__(transport)
        self._queue = queue
        self._parse = parse
        self._unread = bytearray()
        self._is_queued = False
        self._is_ignored = False

    @property
    def unread(self) -> int:
        """Bytes that wait for their turn: what arrives at once, 256 KB at most, or twice that."""
        return len(self._unread)

    def receive(self, data: bytes) -> None:
        if not self._is_ignored:
            self._unread += data
            self._apply()

    def ignore_rest(self) -> None:
        """Parse nothing more. What still arrives is read and dropped."""
        self._is_ignored, self.read_paused = True, False
        self._unread.clear()
        self._apply()

    def pause_reading(self) -> None:
        self.read_paused = True
        self._apply()

    def resume_reading(self) -> None:
        self.read_paused = False
        self._apply()

    def parse_slice(self) -> None:
        """Called by the queue."""
        self._is_queued = False
        if self.read_paused or not self._unread or self._transport.is_closing():
            return
        data = bytes(self._unread[:_SLICE])
        del self._unread[:_SLICE]
        try:
            self._parse(data)
        except Exception:  # nobody else would end the connection
            log.exception("a connection failed: it was cut off")
            self._transport.abort()
        self._apply()

    def _apply(self) -> None:
        """Have the transport read, or not. Its state is not remembered: behind the body of a request that was refused
        uvicorn lets it read without asking."""
        if self._transport.is_closing():
            return
        if self._unread or self.read_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        if self._unread and not (self.read_paused or self._is_queued):
            self._is_queued = True
            self._queue.add(self)
