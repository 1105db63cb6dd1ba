"""One answer that is being written, between the engine's thread and a coroutine that reads it."""

import asyncio
from collections import deque

from stridelm.engine.worker import Event, Worker
from stridelm.types import Sequence, Stride

_HOLD_AT, _RESUME_BELOW = 64, 16
"""Numbers of unread strides."""


class StrideStream:
    """Submits a sequence; an async iterator over its strides. It must be closed, whether read to its end or not."""

    def __init__(
        self, worker: Worker, sequence: Sequence, *, hold_at: int = _HOLD_AT, resume_below: int = _RESUME_BELOW
    ) -> None:
        """The sequence is held when `hold_at` strides are unread, and resumes below `resume_below`."""
        self.sequence = sequence
        self._worker = worker
        self._hold_at, self._resume_below = hold_at, resume_below
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._has_news = asyncio.Event()
        self._is_over = False
        self._is_held = False
        worker.submit(sequence, self._receive)

    def __aiter__(self) -> "StrideStream":
        return self

    async def __anext__(self) -> Stride:
        """The next stride. Raises the error that the sequence failed with."""
        while not self._events:
            if self._is_over:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        event = self._events.popleft()
        if self._is_held and len(self._events) < self._resume_below:
            self._hold(False)
        if isinstance(event, Exception):
            self._is_over = True
            raise event
        self._is_over = event.finish_reason is not None
        return event

    def close(self) -> None:
        """Cancel the answer, if it was not read to its end. Never waits."""
        if not self._is_over:
            self._is_over = True
            self._worker.cancel(self.sequence)

    def _receive(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        self._events.append(event)
        self._has_news.set()
        if len(self._events) >= self._hold_at and not self._is_held and not self._is_over:
            self._hold(True)

    def _hold(self, is_held: bool) -> None:
        self._is_held = is_held
        self._worker.hold(self.sequence, is_held)
