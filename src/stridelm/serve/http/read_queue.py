"""The received bytes that are not parsed yet, for all connections of one server.

Parsing takes far longer than receiving: 4 KB of tiny chunks take 10 ms. So connections take turns, one slice each, and
the event loop does other work in between. A connection's transport reads only if neither of these is the case:

unread    some of its bytes wait for their turn here
paused    uvicorn asked for a pause: a request waits for an earlier reply, or the app has not read the body so far
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

log = logging.getLogger(__name__)

_SLICE = 4 * 2**10
"""Number of bytes that are parsed at once."""
_TURN_SECONDS = 0.01
"""Within one turn of the event loop, no further slice is started after this time."""


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
    """The unparsed bytes of one connection. uvicorn pauses and resumes it like its own FlowControl."""

    def __init__(self, transport: asyncio.Transport, queue: ReadQueue, parse: Callable[[bytes], None]) -> None:
        super().__init__(transport)
        self._queue = queue
        self._parse = parse
        self._unread = bytearray()
        self._is_queued = False
        self._is_ignored = False

    @property
    def unread(self) -> int:
        """Number of bytes that wait for their turn: what arrives at once (at most 256 KB), or twice that."""
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
        """Parse the next slice. Called by the queue."""
        self._is_queued = False
        if self.read_paused or not self._unread or self._transport.is_closing():
            return
        data = bytes(self._unread[:_SLICE])
        del self._unread[:_SLICE]
        try:
            self._parse(data)
        except Exception:  # nothing else would close the connection
            log.exception("a connection failed: it was cut off")
            self._transport.abort()
        self._apply()

    def _apply(self) -> None:
        """Make the transport read or pause. Its state is not stored here, because uvicorn itself resumes it after the
        body of a request that was refused."""
        if self._transport.is_closing():
            return
        if self._unread or self.read_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        if self._unread and not (self.read_paused or self._is_queued):
            self._is_queued = True
            self._queue.add(self)
