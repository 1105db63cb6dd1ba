"""Reads several answers at once, as they come, for as long as the client is connected."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from fastapi import Request

from stridelm.engine.worker import Worker
from stridelm.serve.errors import ApiError
from stridelm.serve.stride_stream import StrideStream
from stridelm.types import Sequence, Stride

T = TypeVar("T")
_CLIENT_LEFT = 499


class StrideStreams:
    """The open answers to one request. They must be closed, whatever happens."""

    def __init__(self, worker: Worker, sequences: list[Sequence]) -> None:
        self._answers: list[StrideStream] = []
        self._reading: dict[asyncio.Future[Stride], int] = {}
        """Tasks that wait for the next stride of an answer, with the answer's number."""
        try:
            for sequence in sequences:
                self._answers.append(StrideStream(worker, sequence))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for task in self._reading:
            task.cancel()
        for answer in self._answers:
            answer.close()

    def end(self, index: int) -> None:
        """Stop reading one answer: no more of it is needed."""
        self._answers[index].close()
        for task in [task for task, number in self._reading.items() if number == index]:
            task.cancel()
            del self._reading[task]

    async def strides(self) -> AsyncIterator[tuple[int, Stride]]:
        """Each stride with the number of its answer. Raises the error that any of them failed with."""
        for index in range(len(self._answers)):
            self._read_on(index)
        while self._reading:
            done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: self._reading[task]):
                index, stride = self._reading.pop(task), task.result()
                if stride.finish_reason is None:
                    self._read_on(index)
                yield index, stride

    def _read_on(self, index: int) -> None:
        task = asyncio.ensure_future(self._answers[index].__anext__())
        # Several may fail at once: the first error is raised, the others are not worth a warning.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._reading[task] = index


async def unless_left(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`; raises an ApiError if the client disconnects first."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(_CLIENT_LEFT, "the client has left")
        return task.result()
    finally:
        task.cancel()
        watch.cancel()


async def _left(request: Request) -> None:
    # The body was read: the only message that can still come is the disconnect.
    while (await request.receive())["type"] != "http.disconnect":
        pass
