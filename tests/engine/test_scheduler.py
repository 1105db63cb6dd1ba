"""Sequences come, grow, share, make room for each other and leave; every answer is the one it would be alone."""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import permutations

import pytest

from fake_drafters import SomewhereRight
from hashing_model import CONTEXT, END, VOCABULARY, HashForward, answer, letters
from stepping import step_of
from stridelm.cache.kv_cache import BLOCK_SIZE
from stridelm.contracts import Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.speculative import Speculative
from stridelm.draft.ngram import NgramDrafter
from stridelm.engine.engine import Engine
from stridelm.params import InputError, SamplingParams
from stridelm.types import Sequence, Stride

GREEDY = SamplingParams(max_tokens=30)


def engine_of(blocks: int) -> Engine:
    return Engine(HashForward(blocks), letters())


def make(prompt: list[int], params: SamplingParams = GREEDY, policy: Policy | None = None, choice: int = 0) -> Sequence:
    return Sequence(list(prompt), params, policy or Autoregressive(), frozenset({END}), CONTEXT, choice=choice)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(END), k=length)


def finish(engine: Engine, *sequences: Sequence) -> None:
    for sequence in sequences:
        engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        step_of(engine)
        engine.forward.cache.check_integrity()


def assert_right(*sequences: Sequence) -> None:
    for sequence in sequences:
        prompt = sequence.tokens[: sequence.prompt_length]
        assert sequence.output == answer(prompt, sequence.params, sequence.seed, sequence.choice)


def test_a_second_text_starts_from_what_the_first_left() -> None:
    engine = engine_of(32)
    first = make(prompt_of(50))
    finish(engine, first)
    second = make([*prompt_of(50), 3])
    finish(engine, second)
    assert (first.stats.reused, second.stats.reused) == (0, 48)
    # A conversation goes on: what was written is known as well.
    third = make([*first.tokens[:-1], 1, 2, 3])
    finish(engine, third)
    assert third.stats.reused >= (len(first.tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE - BLOCK_SIZE
    assert_right(first, second, third)


def test_answers_to_one_prompt_read_it_once() -> None:
    engine = engine_of(64)
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=3)
    choices = [make(prompt_of(100), params, choice=choice) for choice in range(4)]
    finish(engine, *choices)
    assert_right(*choices)
    assert [choice.stats.reused for choice in choices] == [0, 96, 96, 96]
    assert len({tuple(choice.output) for choice in choices}) == 4


def test_prompts_that_begin_alike_do_not_wait_for_what_is_little() -> None:
    engine = engine_of(64)
    sequences = [make([*prompt_of(20), number, *prompt_of(60, seed=number)]) for number in range(3)]
    for sequence in sequences:
        engine.add(sequence)
    engine.step()
    assert len(engine.scheduler.running) == 3
    engine.reset()


def test_sequences_of_one_policy_stand_together_in_the_order_of_arrival() -> None:
    """Whatever the policies' addresses in memory: those differ from run to run."""
    policies = sorted((Autoregressive() for _ in range(3)), key=id)
    for order in permutations(policies):
        engine = engine_of(64)
        sequences = [make(prompt_of(5, number), policy=order[number % 3]) for number in range(9)]
        for sequence in sequences:
            engine.add(sequence)
        batch = engine.scheduler.schedule()
        assert [sequence.arrival for sequence in batch] == [0, 3, 6, 1, 4, 7, 2, 5, 8]
        engine.reset()


def test_those_who_came_last_make_room_and_go_on_later() -> None:
    engine = engine_of(8)
    endless = SamplingParams(max_tokens=60, logit_bias={END: float("-inf")})
    sequences = [make(prompt_of(20, seed), endless) for seed in range(5)]
    finish(engine, *sequences)
    assert engine.scheduler.preemptions > 0
    assert_right(*sequences)
    assert engine.forward.cache.free_blocks == 8


def test_a_shared_prompt_lets_in_more_than_the_cache_has_room_for() -> None:
    """Four copies of the prompt would take 24 blocks."""
    engine = engine_of(14)
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=1)
    sequences = [make(prompt_of(96), params, choice=choice) for choice in range(4)]
    for sequence in sequences:
        engine.add(sequence)
    engine.step()
    engine.step()
    assert len(engine.scheduler.running) == 4
    while engine.scheduler.running:
        engine.step()
    assert_right(*sequences)
    assert engine.scheduler.preemptions == 0


def test_a_long_prompt_does_not_stall_those_who_write() -> None:
    engine = engine_of(64)
    engine.scheduler.shared_prefill_rows = 16
    writing = make(prompt_of(5), SamplingParams(max_tokens=40))
    engine.add(writing)
    engine.step()
    long = make(prompt_of(120, 1))
    engine.add(long)
    written = len(writing.output)
    rows = engine.forward.rows  # type: ignore[attr-defined]
    engine.step()
    assert len(writing.output) == written + 1 and long.cached == 16
    assert engine.forward.rows - rows == 17  # type: ignore[attr-defined]
    while engine.scheduler.running:
        engine.step()
    assert_right(writing, long)


def test_a_held_sequence_writes_nothing_and_makes_room_first() -> None:
    engine = engine_of(8)
    held = make(prompt_of(60, 1), SamplingParams(max_tokens=60))
    engine.add(held)
    engine.step()
    held.is_held = True
    assert not engine.scheduler.has_work
    other = make(prompt_of(60, 2), SamplingParams(max_tokens=60))
    finish(engine, other)
    assert len(held.output) == 1 and engine.scheduler.preemptions == 1
    assert not engine.scheduler.has_work
    held.is_held = False
    while held.finish_reason is None:
        engine.step()
    assert_right(held, other)


@pytest.mark.parametrize("places", [1, 8])
def test_a_held_sequence_makes_no_room_in_vain(places: int) -> None:
    """A newcomer that has no room even then waits, and what was read stays."""
    engine = engine_of(12)
    engine.scheduler.max_sequences = places + 1
    writing, held = (make(prompt_of(60, seed), SamplingParams(max_tokens=30)) for seed in (1, 2))
    for sequence in (writing, held):
        engine.add(sequence)
        engine.step()
    held.is_held = True
    large = make(prompt_of(130, 3), SamplingParams(max_tokens=30))
    engine.add(large)
    engine.step()
    assert held in engine.scheduler.running and engine.scheduler.preemptions == 0
    held.is_held = False
    while engine.scheduler.has_work:
        engine.step()
    assert_right(writing, held, large)


def test_a_request_that_fails_fails_alone() -> None:
    engine = engine_of(32)
    bans_all = SamplingParams(logit_bias=dict.fromkeys(range(VOCABULARY), float("-inf")))
    policy = Speculative(NgramDrafter(4))
    good, bad = [make(prompt_of(20, seed), policy=policy) for seed in range(3)], make(prompt_of(9), bans_all, policy)
    for sequence in (good[0], bad, *good[1:]):
        engine.add(sequence)
    events = engine.step()
    failed = [(sequence, event) for sequence, event in events if isinstance(event, Exception)]
    assert [sequence for sequence, _ in failed] == [bad]
    assert isinstance(failed[0][1], InputError) and "bans every token" in str(failed[0][1])
    engine.forward.cache.check_integrity()
    while engine.scheduler.running:
        step_of(engine)
    assert_right(*good)
    assert engine.forward.cache.free_blocks == 32


def test_what_only_we_can_break_is_not_blamed_on_a_request() -> None:
    engine = engine_of(8)
    engine.add(make(prompt_of(20)))
    engine.step()
    engine.scheduler.running[0].table.length -= 1  # type: ignore[union-attr]
    with pytest.raises(AssertionError):
        engine.step()


class Knowing(SomewhereRight):
    """Works out each sequence's answer for itself."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        super().__init__(answers)
        self.futures: dict[Sequence, list[int]] = {}

    def _future(self, sequence: Sequence) -> list[int]:
        if sequence not in self.futures:
            prompt = sequence.tokens[: sequence.prompt_length]
            self.futures[sequence] = answer(prompt, sequence.params, sequence.seed, sequence.choice)
        written = len(sequence.output)
        return self.futures[sequence][written : written + self.k]

    def release(self, sequence: Sequence) -> None:
        self.futures.pop(sequence, None)


@dataclass
class Traffic:
    """Random requests, cancellations and holds against one engine."""

    seed: int
    blocks: int
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.engine = engine_of(self.blocks)
        self.policies: list[Policy] = [
            Autoregressive(),
            Speculative(NgramDrafter(6)),
            Speculative(Knowing({})),
        ]
        self.beginnings = [prompt_of(48, seed) for seed in range(3)]
        self.open: list[Sequence] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._disturb()
            for sequence, event in self.engine.step():
                assert isinstance(event, Stride), event
                if event.finish_reason:
                    self.open.remove(sequence)
                    self.seen["finished"] += 1
                    self.seen["reused"] += sequence.stats.reused > 0
                    assert_right(sequence)
            self.engine.forward.cache.check_integrity()
        for sequence in self.open:
            self.engine.remove(sequence)
        assert self.engine.forward.cache.free_blocks == self.blocks
        self.seen["preempted"] = self.engine.scheduler.preemptions

    def _disturb(self) -> None:
        draw = self.random
        if len(self.open) < 12 and draw.random() < 0.3:
            self._arrive()
        if self.open and draw.random() < 0.02:
            sequence = self.open.pop(draw.randrange(len(self.open)))
            self.engine.remove(sequence)
            self.seen["cancelled"] += 1
        if self.open and draw.random() < 0.1:
            sequence = draw.choice(self.open)
            sequence.is_held = not sequence.is_held
            self.seen["held"] += 1
        if self.open and draw.random() < 0.1:
            for sequence in self.open:
                sequence.is_held = False

    def _arrive(self) -> None:
        draw = self.random
        beginning = draw.choice(self.beginnings)[: draw.randrange(48)] if draw.random() < 0.7 else []
        prompt = beginning + draw.choices(range(END), k=draw.randint(1, 50))
        params = SamplingParams(
            max_tokens=draw.randint(1, 50),
            temperature=draw.choice([0.0, 0.0, 1.0]),
            repetition_penalty=draw.choice([1.0, 1.0, 1.3]),
            seed=draw.randrange(1000),
        )
        policy = draw.choice(self.policies)
        for choice in range(draw.choice([1, 1, 1, 2, 3])):
            sequence = make(prompt, params, policy, choice)
            self.open.append(sequence)
            self.engine.add(sequence)


def assert_everything_happened(seen: Counter[str]) -> None:
    """Else little was shown."""
    assert min(seen[name] for name in ("finished", "reused", "preempted", "cancelled", "held")) > 10, seen


def test_random_traffic_in_a_tiny_cache() -> None:
    traffic = Traffic(seed=1, blocks=12)
    traffic.run(2500)
    assert_everything_happened(traffic.seen)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [10, 12, 16, 40])
def test_random_traffic_for_long(blocks: int) -> None:
    """100,000 steps in all."""
    traffic = Traffic(seed=blocks, blocks=blocks)
    traffic.run(25_000)
    if blocks < 40:
        assert_everything_happened(traffic.seen)
