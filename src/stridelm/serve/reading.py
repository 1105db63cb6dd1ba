"""Several answers at once, read as they come, for as long as someone is there to read them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from fastapi import Request

from stridelm.engine.worker import Worker
from stridelm.serve.answer import OpenAnswer
from stridelm.serve.errors import ApiError
from stridelm.types import Sequence, Stride

T = TypeVar("T")
_CLIENT_LEFT = 499


class Answers:
    """The open answers to one request. `close` them, whatever happens."""

    def __init__(self, worker: Worker, sequences: list[Sequence]) -> None:
        self._answers: list[OpenAnswer] = []
        try:
            for sequence in sequences:
                self._answers.append(OpenAnswer(worker, sequence))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for answer in self._answers:
            answer.close()

    async def strides(self) -> AsyncIterator[tuple[int, Stride]]:
        """Each stride with the number of its answer. Raises what any of them failed with."""
        tasks = {asyncio.ensure_future(answer.__anext__()): index for index, answer in enumerate(self._answers)}
        try:
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda task: tasks[task]):
                    index, stride = tasks[task], task.result()
                    del tasks[task]
                    if stride.finish_reason is None:
                        tasks[asyncio.ensure_future(self._answers[index].__anext__())] = index
                    yield index, stride
        finally:
            for task in tasks:
                task.cancel()


async def unless_left(request: Request, work: Awaitable[T]) -> T:
    """What the work gives, unless the client leaves first."""
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
    # The body was read: what can still come is the news that nobody listens.
    while (await request.receive())["type"] != "http.disconnect":
        pass
