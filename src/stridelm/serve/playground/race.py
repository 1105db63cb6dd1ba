"""/playground/race: one prompt, two answers by turns on one engine: one token at a time, and by a decoder.

In one batch the two lanes would slow each other down, and one would reuse the prompt that the other has read. So each
lane has a clock of its own, which runs only while the lane does; both read the whole prompt; and the lane whose clock
is behind runs next. The result looks like two machines side by side. Other requests to the server slow both lanes down.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from stridelm.cache.kv_cache import BLOCK_SIZE
from stridelm.engine.worker import Event, Worker
from stridelm.serve.context import Context
from stridelm.serve.errors import ApiError
from stridelm.serve.generation import Generation, Plan, check_queue
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.http.sse import EventStream
from stridelm.serve.playground.schema import RaceRequest
from stridelm.serve.prompts import Prompts
from stridelm.serve.trace import traced
from stridelm.settings import PLAIN
from stridelm.stats import path_in_words
from stridelm.types import Sequence, Stride


class Moment(NamedTuple):
    """An event of one of the lanes."""

    lane: int
    seconds: float
    """On the lane's own clock."""
    event: Event


class Race:
    """Sequences that take turns; `moments` yields their strides. It must be closed, whether read to its end or not. The
    race pauses when `max_unread` strides or more are unread, and resumes below `resume_below`."""

    def __init__(
        self, worker: Worker, sequences: list[Sequence], *, max_unread: int = 256, resume_below: int = 64
    ) -> None:
        self._worker, self._sequences = worker, sequences
        self._max_unread, self._resume_below = max_unread, resume_below
        self._loop = asyncio.get_running_loop()
        self._moments: asyncio.Queue[Moment] = asyncio.Queue()
        self._clocks = [0.0] * len(sequences)
        self._running = set(range(len(sequences)))
        self._unread = set(self._running)
        self._is_paused = False
        """Whether too much is unread: then no lane runs, and no clock."""
        for sequence in sequences:
            sequence.reads_anew = True
        for later in sequences[1:]:
            later.is_held = True
        self._since = time.perf_counter()
        """When the turn of the running lane began."""
        try:
            for lane, sequence in enumerate(sequences):
                worker.submit(sequence, partial(self._receive, lane))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for lane in self._unread:
            self._worker.cancel(self._sequences[lane])

    async def moments(self) -> AsyncIterator[tuple[int, float, Stride]]:
        """Every stride with its lane and that lane's clock. Raises the error that a lane failed with."""
        while self._unread:
            lane, seconds, event = await self._moments.get()
            if isinstance(event, Exception):
                self._unread.discard(lane)
                raise event
            if event.finish_reason:
                self._unread.discard(lane)
            if self._is_paused and self._moments.qsize() < self._resume_below:
                self._resume()
            yield lane, seconds, event

    def _receive(self, lane: int, event: Event) -> None:
        """Called in the worker's thread, between two steps: lanes that are not held here take part in the next one."""
        self._clocks[lane] += time.perf_counter() - self._since
        # The whole prompt was read. If the lane is preempted later, it may reuse its own text from the cache.
        self._sequences[lane].reads_anew = False
        if isinstance(event, Exception) or event.finish_reason:
            self._running.discard(lane)
        self._is_paused = self._moments.qsize() >= self._max_unread
        for each in self._running:
            self._sequences[each].is_held = self._is_paused or each != self._behind
        try:
            self._loop.call_soon_threadsafe(self._moments.put_nowait, Moment(lane, self._clocks[lane], event))
        except RuntimeError:  # the event loop is closed, so the client is gone, too
            self.close()
        self._since = time.perf_counter()

    @property
    def _behind(self) -> int | None:
        return min(self._running, key=lambda each: self._clocks[each], default=None)

    def _resume(self) -> None:
        """End the pause. No lane takes part in a step now, so nothing changes meanwhile."""
        self._is_paused = False
        self._since = time.perf_counter()
        if (lane := self._behind) is not None:
            self._worker.hold(self._sequences[lane], False)


async def answer_race(context: Context, prompts: Prompts, vocabulary: Vocabulary, request: RaceRequest) -> Response:
    if request.stride.model_dump()["decoder"] == PLAIN:
        message = "the other lane takes one token at a time already: choose another decoder"
        raise ApiError(400, message, param="stride.decoder")
    prompt = await prompts.chat(request.messages, [], opens_turn=True, continues=False)
    prompts.checked(prompt, "messages")
    seed = secrets.randbits(53) if request.seed is None else request.seed
    sequences: list[Sequence] = []
    plans: list[Plan] = []
    _check_room(context, prompt, request.max_tokens)
    for lane in request.lanes(seed):
        generation = Generation(context, lane, None)
        await generation.load_parts()
        sequences += generation.sequences(prompt, generation.room(prompt, request.max_tokens, "max_tokens"))
        plans.append(generation.plan(sequences[-1]))
    check_queue(context, len(sequences), "messages")
    start = _start(context, sequences, plans)
    race = Race(context.worker, sequences)
    return EventStream(start, _chunks(race, sequences, context, vocabulary), race.close, context.settings)


def _check_room(context: Context, prompt: list[int], max_tokens: int) -> None:
    """Refuse races for which the cache is too small: lanes that preempt each other would read their texts again and
    again, while their clocks run."""
    most = context.model.engine.forward.cache.block_count // 2 * BLOCK_SIZE - len(prompt)
    if max_tokens > most:
        message = f"max_tokens is {max_tokens}, but with two lanes in its cache this server has room for {max(most, 0)}"
        raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")


def _start(context: Context, sequences: list[Sequence], plans: list[Plan]) -> dict[str, Any]:
    """What is known before the first stride."""
    return {
        "model": context.name,
        "exact_to": context.exact_to,
        "backend": context.model.engine.forward.backend,
        "prompt_tokens": sequences[0].prompt_length,
        "seed": plans[0].seed,
        "others": context.worker.running + context.worker.waiting,
        "lanes": [{"decoder": plan.settings.decoder, "exact": plan.is_exact} for plan in plans],
    }


async def _chunks(
    race: Race, sequences: list[Sequence], context: Context, vocabulary: Vocabulary
) -> AsyncIterator[dict[str, Any]]:
    backend = context.model.engine.forward.backend
    async for lane, seconds, stride in race.moments():
        stats = sequences[lane].stats
        path = path_in_words(backend, stats.forwards, stats.own_forwards) if stride.finish_reason else None
        yield {
            "lane": lane,
            "seconds": seconds,
            "text": stride.text,
            "finish_reason": stride.finish_reason,
            "path": path,
            "forward": traced(stride, lane, vocabulary),
        }
