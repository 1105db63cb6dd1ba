"""The engine in its thread, and coroutines that read from it, slowly, not at all, or not to the end."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hashing_model import CONTEXT, END, HashForward, answer, letters
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.speculative import Speculative
from stridelm.draft.ngram import NgramDrafter
from stridelm.engine.engine import Engine
from stridelm.engine.worker import EngineStopped, Worker
from stridelm.params import InputError, SamplingParams
from stridelm.serve.stride_stream import StrideStream
from stridelm.types import Sequence, Stride

BLOCKS = 40
ENDLESS = SamplingParams(max_tokens=100, logit_bias={END: float("-inf")})


class Watcher:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.tokens = 0
        self.endings: list[str] = []

    def strode(self, sequence: Sequence, stride: Stride) -> None:
        self.tokens += len(stride.tokens)

    def ended(self, sequence: Sequence, ending: str) -> None:
        self.endings.append(ending)


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def worker(watcher: Watcher) -> Iterator[Worker]:
    worker = Worker(Engine(HashForward(BLOCKS), letters()), [watcher])
    worker.start()
    yield worker
    if worker.is_healthy:
        worker.stop()
    assert not worker.is_healthy


def make(seed: int, params: SamplingParams = ENDLESS) -> Sequence:
    prompt = random.Random(seed).choices(range(END), k=1 + seed % 40)
    policy = Speculative(NgramDrafter(4)) if seed % 2 else Autoregressive()
    return Sequence(prompt, params, policy, frozenset({END}), CONTEXT)


def step_once(worker: Worker, monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool]) -> None:
    """The second step waits, so that no answer is through before what a test does after the first."""
    step, steps = worker.engine.step, itertools.count()

    def waiting() -> list[tuple[Sequence, Stride | Exception]]:
        if next(steps) > 0:
            while not until():
                time.sleep(0.001)
        return step()

    monkeypatch.setattr(worker.engine, "step", waiting)


async def read(worker: Worker, sequence: Sequence) -> list[int]:
    opened = StrideStream(worker, sequence)
    try:
        return [token async for stride in opened for token in stride.tokens]
    finally:
        opened.close()


def expected(sequence: Sequence) -> list[int]:
    return answer(sequence.tokens[: sequence.prompt_length], sequence.params, sequence.seed)


async def until_idle(worker: Worker) -> None:
    async with asyncio.timeout(20):
        while not worker.is_idle or worker._left:
            await asyncio.sleep(0.001)


def free_blocks(worker: Worker) -> int:
    worker.engine.forward.cache.check_integrity()
    return worker.engine.forward.cache.free_blocks


def test_many_readers_share_the_steps(worker: Worker, watcher: Watcher) -> None:
    async def read_all() -> list[list[int]]:
        return await asyncio.gather(*(read(worker, sequence) for sequence in sequences))

    sequences = [make(seed) for seed in range(12)]
    assert asyncio.run(read_all()) == [expected(sequence) for sequence in sequences]
    assert watcher.tokens == 1200 and watcher.endings == ["length"] * 12
    assert worker.is_idle and free_blocks(worker) == BLOCKS


def cancel_at_random(worker: Worker, count: int) -> None:
    """Answers that are given up at any moment: before their first step, within, and when they are finished."""
    moments = random.Random(4)

    async def give_up(seed: int) -> None:
        opened = StrideStream(worker, make(seed))
        strides = moments.choice([0, 0, 1, 2, moments.randrange(100), 1000])
        async for _ in opened:
            strides -= 1
            if strides < 0:
                break
        if moments.random() < 0.3:
            await asyncio.sleep(moments.random() * 0.003)
        opened.close()
        opened.close()

    async def run() -> None:
        for first in range(0, count, 50):
            await asyncio.gather(*(give_up(seed) for seed in range(first, first + 50)))
        await until_idle(worker)
        assert free_blocks(worker) == BLOCKS
        sequence = make(1)
        async with asyncio.timeout(20):
            assert await read(worker, sequence) == expected(sequence)

    asyncio.run(run())
    assert free_blocks(worker) == BLOCKS


def test_cancellations_at_random_moments_leave_no_block_behind(worker: Worker, watcher: Watcher) -> None:
    cancel_at_random(worker, 300)
    assert len(watcher.endings) == 301
    assert min(watcher.endings.count("abort"), watcher.endings.count("length")) > 20


@pytest.mark.slow
def test_two_thousand_cancellations(worker: Worker) -> None:
    cancel_at_random(worker, 2000)


def test_a_reader_that_does_not_read_is_held_and_stalls_nobody(worker: Worker) -> None:
    async def run() -> None:
        slow = make(0)
        opened = StrideStream(worker, slow, hold_at=8, resume_below=3)
        other = make(2)
        assert await read(worker, other) == expected(other)
        async with asyncio.timeout(20):
            while not slow.is_held:
                await asyncio.sleep(0.001)
        written = len(slow.output)
        another = make(4)
        assert await read(worker, another) == expected(another)
        assert len(slow.output) <= written + 1 < 100
        assert len(opened._events) <= len(slow.output)
        assert [token async for stride in opened for token in stride.tokens] == expected(slow)

    asyncio.run(run())


def test_a_refused_sequence_fails_alone(worker: Worker, watcher: Watcher) -> None:
    banned = SamplingParams(logit_bias=dict.fromkeys(range(END + 1), float("-inf")))
    too_long = SamplingParams(max_tokens=10**6)

    async def run() -> None:
        good, bad, large = make(0), make(2, banned), make(4, too_long)
        large.most_tokens = 10**6
        results = await asyncio.gather(*(read(worker, each) for each in (good, bad, large)), return_exceptions=True)
        assert results[0] == expected(good)
        assert all(isinstance(result, InputError) for result in results[1:])

    asyncio.run(run())
    assert sorted(watcher.endings) == ["error", "error", "length"]
    assert worker.is_healthy and free_blocks(worker) == BLOCKS


def test_a_crash_is_told_to_everyone(worker: Worker, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    is_broken = threading.Event()
    step_once(worker, monkeypatch, until=is_broken.is_set)

    async def run() -> None:
        opened = [StrideStream(worker, make(seed)) for seed in range(3)]
        await anext(opened[0])
        monkeypatch.setattr(worker.engine.scheduler, "schedule", lambda: 1 / 0)
        is_broken.set()
        for each in opened:
            with pytest.raises(EngineStopped, match="crashed") as told:
                async for _ in each:
                    pass
            assert told.value.has_crashed
        with pytest.raises(EngineStopped) as told:
            StrideStream(worker, make(9))
        assert told.value.has_crashed

    asyncio.run(run())
    assert isinstance(worker.failure, ZeroDivisionError) and not worker.is_healthy
    assert worker._rounds is not None
    worker._rounds.result()
    assert watcher.endings == ["error"] * 3


def test_stopping_gives_up_what_is_open(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    step_once(worker, monkeypatch, until=lambda: worker._is_stopping)

    async def run() -> None:
        opened = StrideStream(worker, make(0))
        await anext(opened)
        await asyncio.to_thread(worker.stop)
        with pytest.raises(EngineStopped, match="told to stop") as told:
            async for _ in opened:
                pass
        assert not told.value.has_crashed
        with pytest.raises(EngineStopped) as told:
            StrideStream(worker, make(9))
        assert not told.value.has_crashed

    asyncio.run(run())
    assert free_blocks(worker) == BLOCKS and worker.failure is None


def test_a_reader_whose_loop_is_gone_is_given_up(worker: Worker) -> None:
    async def leave() -> StrideStream:
        return StrideStream(worker, make(0))

    left = asyncio.run(leave())
    assert left.sequence.finish_reason in (None, "length")
    asyncio.run(until_idle(worker))
    assert worker.is_healthy and free_blocks(worker) == BLOCKS


def test_nothing_runs_while_there_is_nothing_to_do(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = threading.Semaphore(0)
    step = worker.engine.step

    def counted():
        steps.release()
        return step()

    monkeypatch.setattr(worker.engine, "step", counted)
    sequence = make(0, SamplingParams(max_tokens=3, logit_bias={END: float("-inf")}))
    assert asyncio.run(read(worker, sequence)) == expected(sequence)
    counts = 0
    while steps.acquire(timeout=0.05):
        counts += 1
    assert counts == 3


def test_nobody_is_held_within_a_step() -> None:
    """The scheduler may take a held sequence's room: that one must not be about to run."""
    worker = Worker(Engine(HashForward(BLOCKS), letters()))
    sequence = Sequence([5, 6], SamplingParams(max_tokens=2), Autoregressive(), frozenset(), CONTEXT)
    worker.hold(sequence, True)
    assert not sequence.is_held
    assert worker._next_round() and sequence.is_held
    worker.hold(sequence, False)
    assert sequence.is_held
    assert worker._next_round() and not sequence.is_held
