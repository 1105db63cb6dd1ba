"""Steps that a device runs by itself, among sequences that come, go, make room and take the host's way: every answer is
the one it would be alone. The device is a fake that reads and writes the cache's memory as a GPU would."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_drafters import SomewhereRight
from hash_stepper import FAULTS, Device, Drafting, Fault, HashStepper, SteppingForward, expected
from hashing_model import CONTEXT, END, VOCABULARY, answer, letters
from stepping import step_of
from stridelm.backends.gpu.stepper import GpuStepper
from stridelm.contracts import Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.speculative import Speculative
from stridelm.draft.ngram import NgramDrafter
from stridelm.engine.engine import Engine
from stridelm.engine.step_kind import ENGINE_FIELDS
from stridelm.engine.worker import Worker
from stridelm.params import InputError, SamplingParams
from stridelm.types import Sequence, Stride

ENDS = frozenset({END})
PLAIN = Autoregressive()
SELF = Drafting(4)


def engine_of(blocks: int = 64, device: Device | None = None) -> Engine:
    return Engine(SteppingForward(blocks, device), letters())


def device_of(engine: Engine) -> Device:
    assert isinstance(engine.forward, SteppingForward)
    return engine.forward.device


def in_flight(engine: Engine) -> int:
    assert isinstance(engine.forward, SteppingForward)
    return engine.forward.in_flight


def prompts(count: int, *, length: int = 20, least: int = 30) -> list[list[int]]:
    """Prompts whose answers are no shorter than so many tokens."""
    params = SamplingParams(max_tokens=least)
    drawn = (random.Random(seed).choices(range(END), k=length) for seed in itertools.count())
    return list(itertools.islice((prompt for prompt in drawn if len(answer(prompt, params, 0)) == least), count))


def make(
    prompt: list[int], policy: Policy = SELF, ends: frozenset[int] = ENDS, max_tokens: int = 30, **asked: object
) -> Sequence:
    stop: object = asked.pop("stop", ())
    params = SamplingParams(max_tokens=max_tokens, stop=stop)  # type: ignore[arg-type]
    return Sequence(list(prompt), params, policy, ends, CONTEXT, **asked)  # type: ignore[arg-type]


def finish(engine: Engine, *sequences: Sequence) -> None:
    for sequence in sequences:
        if sequence.table is None:
            engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        step_of(engine)
        engine.forward.cache.check_integrity()


def assert_right(*sequences: Sequence) -> None:
    for sequence in sequences:
        assert sequence.output == expected(sequence)


class AllowsAll:
    """Keeps `contracts.Grammar`."""

    def allowed(self, written: Items[int]) -> np.ndarray:
        return np.ones(VOCABULARY, dtype=bool)

    def accepts(self, written: Items[int], tokens: Items[int]) -> int:
        return len(tokens)


class Knowing(SomewhereRight):
    """Works out each sequence's answer for itself."""

    def __init__(self) -> None:
        super().__init__({})

    def _future(self, sequence: Sequence) -> list[int]:
        prompt, written = sequence.tokens[: sequence.prompt_length], len(sequence.output)
        return answer(prompt, sequence.params, sequence.seed, sequence.choice)[written : written + self.k]


# What a sequence may ask for

CHANGED: dict[str, object] = {
    "max_tokens": 9, "temperature": 0.7, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2,
    "presence_penalty": 0.4, "frequency_penalty": 0.4, "logit_bias": {3: 1.0}, "seed": 7, "stop": ("a b",),
}  # fmt: skip
"""Every field of SamplingParams with a value that asks for something."""
ASKED: dict[str, object] = {
    "choice": 1, "grammar": AllowsAll(), "alternatives": 2, "prediction": (1, 2, 3), "is_traced": True,
}  # fmt: skip
"""Every field of Sequence that a request decides, and that is neither the text nor the engine's."""


def test_every_field_is_obeyed_or_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that nobody has thought of yet is the host's: nothing is dropped silently."""
    assert set(CHANGED) == {each.name for each in fields(SamplingParams)}
    named = {each.name for each in fields(Sequence)}
    assert named == set(ASKED) | (named & ENGINE_FIELDS) | {"eos_ids", "seed"}
    for obeyed in (GpuStepper.obeys, GpuStepper.obeys - {"top_k", "is_traced"}, GpuStepper.obeys - {"eos_ids"}):
        monkeypatch.setattr(HashStepper, "obeys", obeyed)
        for name, value in (CHANGED | ASKED).items():
            params = SamplingParams(**{"max_tokens": 12, "seed": 3, **({name: value} if name in CHANGED else {})})  # type: ignore[arg-type]
            sequence = Sequence(prompts(1)[0], params, SELF, ENDS, CONTEXT)
            if name in ASKED:
                setattr(sequence, name, value)
            finish(engine_of(), sequence)
            assert_right(sequence)
            is_own = name in obeyed | ENGINE_FIELDS and "eos_ids" in obeyed
            assert (sequence.stats.own_forwards > 0) == is_own, name


def test_a_trace_tells_what_the_backend_ran() -> None:
    engine = engine_of(device=Device(right=0.8, row_seconds=0.0))
    sequence = make(prompts(1)[0], is_traced=True)
    engine.add(sequence)
    written = list(sequence.tokens)
    while sequence.finish_reason is None:
        for _, stride in step_of(engine):
            assert stride.trace is not None
            block, kept = stride.trace.block, stride.trace.kept
            assert block.start + block.pending == len(written) and block.tokens[block.pending - 1] == written[-1]
            accepted = [block.tokens[row] for row in kept[block.pending :]]
            assert accepted == list(stride.tokens[:-1]) and len(block.tree) == stride.drafted
            if len(kept) < len(block.tree) + 1 and stride.finish_reason is None:
                assert block.tree.tokens[len(accepted)] != stride.tokens[-1], "a draft that stood was not followed"
            written += stride.tokens
    assert sequence.stats.own_forwards == sequence.stats.forwards - 1 and sequence.stats.accepted > 0
    assert_right(sequence)


# What is counted


def test_a_plain_decoder_has_one_token_per_forward() -> None:
    engine = engine_of()
    sequence = make(prompts(1)[0], PLAIN)
    finish(engine, sequence)
    assert_right(sequence)
    stats = sequence.stats
    assert (stats.tokens, stats.forwards, stats.prefill_forwards) == (30, 30, 0)
    assert (stats.rows, stats.drafted, stats.accepted) == (20 + 29, 0, 0)
    # The prompt's step was the host's. The others were launched once each, and none in vain: the last one was known.
    assert device_of(engine).launches == 29


@pytest.mark.parametrize(("most", "options"), [(3, {0, 2, 3}), (8, {0, 2, 4, 7}), (15, {0, 2, 4, 7, 12})])
def test_steps_are_made_before_somebody_waits(most: int, options: set[int]) -> None:
    engine = engine_of(device=Device(row_seconds=0.0))
    engine.own_steps.warm_up(most, ENDS)
    assert isinstance(engine.forward, SteppingForward)
    made = set(engine.forward.steppers)
    assert {drafts for drafts, places, _ in made if places == 1} == options
    finish(engine, make(prompts(1)[0], Drafting(most)))
    assert set(engine.forward.steppers) == made


def test_steps_with_too_many_rows_are_not_even_made() -> None:
    """64 texts with two drafts each are 576 rows."""
    engine = engine_of(4096, Device(row_seconds=0.0))
    finish(engine, *(make(prompt, Drafting(4)) for prompt in prompts(64)))
    assert isinstance(engine.forward, SteppingForward)
    assert {drafts for drafts, places, _ in engine.forward.steppers if places == 64} == {0}


@pytest.mark.parametrize(("right", "forwards"), [(1.0, 1 + 1 + 6), (0.0, 30)])
def test_what_drafts_bring_is_counted(right: float, forwards: int) -> None:
    """The first step after sitting down has masks and no drafts yet; a step writes five tokens if all are right."""
    engine = engine_of(device=Device(right, row_seconds=0.0))
    policy = Drafting(4)
    sequence = make(prompts(1)[0], policy)
    engine.add(sequence)
    strides: list[Stride] = []
    while sequence.finish_reason is None:
        strides += [stride for _, stride in step_of(engine)]
    assert_right(sequence)
    stats = sequence.stats
    if right:
        assert (stats.tokens, stats.forwards, stats.accepted) == (30, forwards, 30 - forwards)
        assert stats.drafted == 4 * (forwards - 2)
        assert stats.rows == 20 + 5 + 25 * (forwards - 2)
        assert [len(stride.tokens) for stride in strides] == [1, 1, 5, 5, 5, 5, 5, 3]
    assert [stride.drafted for stride in strides[:3]] == [0, 0, 4]
    assert stats.forwards == len(strides) and stats.tokens == 30
    assert stats.accepted == sum(len(stride.tokens) - 1 for stride in strides)
    for stride in strides:
        assert stride.sources == (*("self",) * (len(stride.tokens) - 1), "model")
        assert all(0 < each <= 1 for each in stride.confidence) and len(stride.confidence) == len(stride.tokens)


def test_confidence_is_the_hosts() -> None:
    told: list[list[float]] = []
    for alternatives in (0, 2):  # who wants some takes the host's way
        engine = engine_of()
        sequence = make(prompts(1)[0], alternatives=alternatives)
        engine.add(sequence)
        told.append([])
        while sequence.finish_reason is None:
            told[-1] += [each for _, stride in step_of(engine) for each in stride.confidence]
    assert told[0] == pytest.approx(told[1], rel=1e-5)


# Who comes and goes


def test_those_who_stay_do_not_notice_who_comes_and_goes() -> None:
    """With places to spare nobody else sits down anew, and nothing in flight is lost."""
    engine = engine_of(device=Device(right=1.0, row_seconds=0.0))
    first = [make(prompt, max_tokens=100) for prompt in prompts(3, least=100)]
    for sequence in first:
        engine.add(sequence)
    for _ in range(4):
        step_of(engine)
    begins, strides = device_of(engine).begins, [sequence.stats.forwards for sequence in first]
    newcomer = make(prompts(1, length=9)[0], max_tokens=9)
    engine.add(newcomer)
    while newcomer.finish_reason is None:
        step_of(engine)
    assert device_of(engine).begins == begins + 1
    steps = {now.stats.forwards - before for now, before in zip(first, strides, strict=True)}
    assert len(steps) == 1
    # Every launch but the one in flight was read by all who stay: at five tokens each.
    assert all(len(sequence.output) == 2 + 5 * (sequence.stats.forwards - 2) for sequence in first)
    finish(engine, *first)
    assert_right(*first, newcomer)


def test_policies_that_come_to_the_same_step_share_it() -> None:
    """One writes plainly, the other has found that drafts do not pay: both sit at the same stepper."""
    device = Device(right=0.0, row_seconds=1.0)
    engine = engine_of(device=device)
    drafting, plain = (
        make(prompt, policy, max_tokens=100)
        for prompt, policy in zip(prompts(2, least=100), (SELF, PLAIN), strict=True)
    )
    engine.add(drafting)
    while len(drafting.output) < 40:
        step_of(engine)
    engine.add(plain)
    launches, written = device.launches, len(drafting.output)
    while len(plain.output) < 20:
        step_of(engine)
    assert device.launches - launches < 1.5 * (len(drafting.output) - written)
    finish(engine, drafting, plain)
    assert_right(drafting, plain)


def test_two_in_turn_at_the_same_stepper() -> None:
    """As in a race: whoever is behind is let into the next step, the other is held."""
    engine = engine_of(device=Device(right=0.3, row_seconds=1.0))
    racers = [
        make(prompt, policy, max_tokens=60) for prompt, policy in zip(prompts(2, least=60), (SELF, PLAIN), strict=True)
    ]
    for racer in racers:
        engine.add(racer)
    for turn in itertools.count():
        if all(racer.finish_reason for racer in racers):
            break
        racers[0].is_held, racers[1].is_held = turn % 3 == 0, turn % 3 != 0
        if engine.scheduler.has_work:
            step_of(engine)
        for racer in racers:
            racer.is_held = False
    assert_right(*racers)


def test_one_of_two_is_held_for_a_step() -> None:
    """The other moves to a stepper for one, and back: what was in flight of the first is lost, and nothing else."""
    engine = engine_of()
    sequences = [make(prompt, max_tokens=60) for prompt in prompts(2, least=60)]
    for sequence in sequences:
        engine.add(sequence)
    for step in itertools.count():
        if all(sequence.finish_reason for sequence in sequences):
            break
        sequences[0].is_held = step % 5 == 4 and not sequences[1].finish_reason
        step_of(engine)
    assert_right(*sequences)


def test_who_is_alone_and_held_in_turn_loses_nothing() -> None:
    """What is in flight of a stepper waits until its texts are wanted again."""
    device = Device(right=1.0, row_seconds=0.0)
    engine = engine_of(device=device)
    racers = [
        make(prompt, policy, max_tokens=60) for prompt, policy in zip(prompts(2, least=60), (SELF, PLAIN), strict=True)
    ]
    for racer in racers:
        engine.add(racer)
    step_of(engine)
    for turn in itertools.count():
        if all(racer.finish_reason for racer in racers):
            break
        behind = min((racer for racer in racers if not racer.finish_reason), key=lambda racer: len(racer.tokens))
        for racer in racers:
            racer.is_held = racer is not behind
        step_of(engine)
        assert turn < 100
    assert_right(*racers)
    assert device.begins == 2
    assert racers[0].stats.forwards < 20 and racers[1].stats.forwards == 60


def test_texts_of_other_ends_have_steps_of_their_own() -> None:
    engine = engine_of()
    sequences = [
        make(prompt, policy, ends)
        for prompt, policy, ends in zip(
            prompts(4), (SELF, SELF, PLAIN, PLAIN), (ENDS, ENDS | {3}, ENDS | {3}, ENDS | {4, 5}), strict=True
        )
    ]
    finish(engine, *sequences)
    assert_right(*sequences)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, CONTEXT])
@pytest.mark.parametrize("policy", [PLAIN, SELF])
def test_answers_end_where_they_must(max_tokens: int, policy: Policy) -> None:
    engine = engine_of()
    long = prompts(3, length=CONTEXT - 12, least=12)
    sequences = [make(prompt, policy, max_tokens=max_tokens) for prompt in [*long, [5], [7, 8]]]
    finish(engine, *sequences)
    assert_right(*sequences)
    if max_tokens == CONTEXT:
        assert [sequence.finish_reason for sequence in sequences[:3]] == ["length"] * 3


def test_stop_strings_end_answers_the_device_goes_on_with() -> None:
    engine = engine_of(device=Device(right=0.9))
    sequences: list[Sequence] = []
    for prompt in prompts(4):
        written = answer(prompt, SamplingParams(max_tokens=30), 0)
        stop = " ".join(chr(ord("a") + token) for token in written[13:15])
        sequences.append(make(prompt, stop=(stop,)))
    finish(engine, *sequences)
    assert_right(*sequences)
    assert {sequence.finish_reason for sequence in sequences} == {"stop"}
    assert engine.forward.cache.free_blocks == 64


def test_what_a_device_cannot_do_takes_the_hosts_way() -> None:
    device = Device()
    engine = engine_of(device=device)
    sequences = [
        make(prompts(1)[0], alternatives=3),
        make(prompts(1)[0], grammar=AllowsAll()),
        make(prompts(1)[0], Speculative(Knowing())),
        Sequence(prompts(1)[0], SamplingParams(30, repetition_penalty=1.1), SELF, ENDS, CONTEXT),
    ]
    finish(engine, *sequences)
    assert_right(*sequences)
    assert device.launches == 0


def test_a_prompt_is_read_beside_texts_that_are_written() -> None:
    engine = engine_of()
    engine.scheduler.shared_prefill_rows = 16
    writing = [make(prompt, max_tokens=40) for prompt in prompts(2, least=40)]
    for sequence in writing:
        engine.add(sequence)
    for _ in range(3):
        step_of(engine)
    begins, written = device_of(engine).begins, [len(sequence.output) for sequence in writing]
    long = make(prompts(1, length=90)[0])
    engine.add(long)
    for _ in range(4):
        step_of(engine)
    assert long.cached == 64 and device_of(engine).begins == begins
    assert all(len(sequence.output) >= before + 4 for sequence, before in zip(writing, written, strict=True))
    finish(engine, *writing, long)
    assert_right(*writing, long)


# Blocks that are taken back


def test_blocks_that_are_taken_back_while_a_step_is_in_flight() -> None:
    """A step that was launched has written where another text lies now: that one writes later, and what the first gave
    is run again."""
    engine = engine_of(10, Device(right=1.0, row_seconds=0.0))
    first = make(prompts(1, length=33, least=60)[0], max_tokens=60)
    engine.add(first)
    for _ in range(3):
        step_of(engine)
    assert in_flight(engine) == 1 and first.table is not None
    held, cuts = list(first.table.blocks), first.table.cuts
    second = make(prompts(1, length=80)[0], PLAIN, max_tokens=20)
    engine.add(second)
    step_of(engine)
    assert second.table is not None and first.table is not None
    assert first.table.cuts > cuts and set(second.table.blocks) & set(held)
    finish(engine, first, second)
    assert_right(first, second)


def test_a_text_that_made_room_goes_on_where_it_was() -> None:
    engine = engine_of(8)
    sequences = [make(prompt, policy, max_tokens=60) for prompt in prompts(3, least=60) for policy in (SELF, PLAIN)]
    finish(engine, *sequences)
    assert engine.scheduler.preemptions > 0
    assert_right(*sequences)
    assert engine.forward.cache.free_blocks == 8


@pytest.mark.parametrize("spare_rows", [0, 90])
def test_a_small_cache_does_not_cost_drafts(spare_rows: int) -> None:
    """What the scheduler grants for one step is not cut off behind it, or every step would begin anew."""
    device = Device(right=1.0, row_seconds=0.0)
    engine = engine_of(11, device)
    sequence = make(prompts(1, length=20, least=100)[0], Drafting(4, spare_rows), max_tokens=100)
    engine.add(sequence)
    begins: list[int] = []
    while sequence.finish_reason is None:
        step_of(engine)
        begins.append(device.begins)
    assert_right(sequence)
    assert device.begins == 1 and sequence.stats.forwards == 22


def test_a_cache_without_room_for_drafts_is_no_reason_to_take_the_hosts_way() -> None:
    """A step with eight drafts writes 81 rows."""
    engine = engine_of(8)
    sequence = make(prompts(1, least=70)[0], Drafting(8), max_tokens=70)
    finish(engine, sequence)
    assert_right(sequence)
    assert sequence.stats.drafted > 0 and engine.forward.rows == 20  # type: ignore[attr-defined]


def test_texts_with_the_same_beginning_share_it() -> None:
    engine = engine_of(40)
    beginning = prompts(1, length=64)[0]
    first = make(beginning)
    finish(engine, first)
    sequences = [make([*first.tokens[:-1], number], policy) for number in range(4) for policy in (SELF, PLAIN)]
    finish(engine, *sequences)
    assert_right(first, *sequences)
    assert all(sequence.stats.reused >= 80 for sequence in sequences)


# What goes wrong


def test_logits_that_are_not_finite_fail_their_sequence_alone() -> None:
    device = Device()
    engine = engine_of(device=device)
    good = [make([1, *prompt], policy) for prompt in prompts(3) for policy in (SELF, PLAIN)]
    bad = [make([2, *prompts(1)[0]], SELF), make([2, *prompts(1)[0]], PLAIN)]
    for sequence in itertools.chain(*itertools.zip_longest(good[:2], bad)):
        engine.add(sequence)
    for sequence in good[2:]:
        engine.add(sequence)
    step_of(engine)
    device.spoilt = {2}
    failed: dict[Sequence, Exception] = {}
    while engine.scheduler.running:
        failed |= {sequence: event for sequence, event in engine.step() if isinstance(event, Exception)}
        engine.forward.cache.check_integrity()
    assert set(failed) == set(bad) and all(isinstance(error, InputError) for error in failed.values())
    finished = [sequence for sequence in good if sequence.finish_reason]
    assert finished == good
    assert_right(*good)
    assert engine.forward.cache.free_blocks == 64


def test_the_host_runs_what_the_device_fails_at(caplog: pytest.LogCaptureFixture) -> None:
    device = Device()
    engine = engine_of(device=device)
    sequences = [make(prompt, policy) for prompt, policy in zip(prompts(3), (SELF, SELF, PLAIN), strict=True)]
    for sequence in sequences:
        engine.add(sequence)
    for step in itertools.count():
        if 5 <= step < 9:
            device.faults = ["launch"]
        step_of(engine)
        engine.forward.cache.check_integrity()
        if all(sequence.finish_reason for sequence in sequences):
            break
    assert_right(*sequences)
    assert caplog.text.count("the host runs it") == 1
    assert engine.own_steps.failures == device.failed > 1


@pytest.mark.parametrize("fault", FAULTS)
def test_own_steps_come_back_after_a_failure(fault: Fault) -> None:
    """One user of two leaves, so that places are given, taken back and given anew."""
    device = Device(right=0.5, row_seconds=0.0, faults=[fault])
    engine = engine_of(device=device)
    staying, leaving = (make(prompt, max_tokens=80) for prompt in prompts(2, least=80))
    engine.add(staying)
    engine.add(leaving)
    for _ in range(6):
        step_of(engine)
    engine.remove(leaving)
    for _ in range(6):
        step_of(engine)
    assert device.failed == 1
    own = staying.stats.own_forwards
    finish(engine, staying)
    assert_right(staying)
    # Steps that could not be made are not tried again: all others are.
    assert (staying.stats.own_forwards > own) == (fault != "make")


def test_a_stepper_that_fails_always_is_tried_more_and_more_seldom() -> None:
    device = Device(faults=["launch"] * 1000)
    engine = engine_of(device=device)
    sequence = make(prompts(1, least=120)[0], PLAIN, max_tokens=120)
    finish(engine, sequence)
    assert_right(sequence)
    # The host runs 1, 2, 4, ... steps in between: of 119 steps 7 are tried.
    assert device.failed == 7 and sequence.stats.own_forwards == 0


def test_one_text_that_fails_costs_nobody_else_a_step() -> None:
    device = Device(right=0.0, row_seconds=1.0)
    engine = engine_of(device=device)
    sequences = [make(prompt, PLAIN) for prompt in prompts(4)]
    for sequence in sequences:
        engine.add(sequence)
    for _ in range(5):
        step_of(engine)
    device.faults = ["place"]
    finish(engine, *sequences)
    assert_right(*sequences)
    assert sorted(sequence.stats.forwards - sequence.stats.own_forwards for sequence in sequences) == [1, 1, 1, 2]


def test_steps_that_obey_less_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend whose steps with drafts are greedy only: a sequence at a temperature has none."""
    made = SteppingForward.stepper

    def greedy_drafts(self: SteppingForward, drafts: int, places: int, ends: frozenset[int]) -> HashStepper:
        stepper = made(self, drafts, places, ends)
        if drafts:
            stepper.obeys = GpuStepper.obeys - {"temperature"}
        return stepper

    monkeypatch.setattr(SteppingForward, "stepper", greedy_drafts)
    engine = engine_of(device=Device(right=1.0, row_seconds=0.0))
    sequence = Sequence(prompts(1)[0], SamplingParams(30, 0.8, seed=2), SELF, ENDS, CONTEXT)
    finish(engine, sequence)
    assert_right(sequence)
    assert sequence.stats.own_forwards > 0 and sequence.stats.drafted == 0


@pytest.mark.parametrize("max_in_flight", [1, 2, 3, 5])
def test_there_is_room_for_all_steps_in_flight(max_in_flight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SteppingForward.stepper

    def deeper(self: SteppingForward, drafts: int, places: int, ends: frozenset[int]) -> HashStepper:
        stepper = made(self, drafts, places, ends)
        stepper.max_in_flight = max_in_flight
        return stepper

    monkeypatch.setattr(SteppingForward, "stepper", deeper)
    engine = engine_of(24, Device(right=1.0, row_seconds=0.0))
    sequences = [make(prompt, max_tokens=60) for prompt in prompts(3, least=60)]
    finish(engine, *sequences)
    assert_right(*sequences)
    assert all(sequence.stats.own_forwards > 5 for sequence in sequences)


@pytest.mark.parametrize("length", [1, 17, 33])
def test_an_answers_first_token_is_the_hosts(length: int) -> None:
    """Also where the cache holds all of the prompt but its last token."""
    engine = engine_of()
    first, second = (make(prompts(1, length=length)[0]) for _ in range(2))
    for sequence in (first, second):
        finish(engine, sequence)
        assert_right(sequence)
        assert sequence.stats.own_forwards == sequence.stats.forwards - 1
    assert second.stats.reused == length - 1


def test_loops_do_not_hold_on_to_what_has_ended() -> None:
    engine = engine_of(256)
    crowd = [make(prompt) for prompt in prompts(9)]
    finish(engine, *crowd)
    last = make(prompts(1)[0], PLAIN)
    finish(engine, last)
    held = {text.sequence for loop in engine.own_steps._loops.values() for text in loop.texts if text is not None}
    assert held <= {last}


def test_nobody_is_left_after_a_reset() -> None:
    engine = engine_of()
    for prompt, policy in zip(prompts(4), (SELF, PLAIN, SELF, PLAIN), strict=True):
        engine.add(make(prompt, policy))
    for _ in range(4):
        step_of(engine)
    assert in_flight(engine)
    engine.reset()
    assert in_flight(engine) == 0 and engine.forward.cache.free_blocks == 64
    again = [make(prompt, policy) for prompt, policy in zip(prompts(2), (SELF, PLAIN), strict=True)]
    finish(engine, *again)
    assert_right(*again)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_sequence_may_be_removed_at_any_time(count: int) -> None:
    engine = engine_of(16)
    sequences = [make(prompt) for prompt in prompts(count)]
    for sequence in sequences:
        engine.add(sequence)
    for _ in range(3):
        step_of(engine)
    engine.remove(sequences[0])
    others = [make(prompt, policy) for prompt in prompts(2, length=30) for policy in (SELF, PLAIN)]
    finish(engine, *sequences[1:], *others)
    assert_right(*sequences[1:], *others)


def test_every_step_gives_somebody_something() -> None:
    """Or whoever waits for strides would turn in circles."""
    engine = engine_of(12)
    sequences = [make(prompt, policy, max_tokens=50) for prompt in prompts(3, least=50) for policy in (SELF, PLAIN)]
    for sequence in sequences:
        engine.add(sequence)
    while engine.scheduler.has_work:
        before = [(sequence.cached, sequence.table) for sequence in sequences]
        assert step_of(engine) or before != [(sequence.cached, sequence.table) for sequence in sequences]
    assert_right(*sequences)


def test_a_worker_runs_them_all() -> None:
    worker = Worker(engine_of(20))
    worker.start()
    sequences = [make(prompt, policy) for prompt in prompts(4) for policy in (SELF, PLAIN)]
    for sequence in sequences:
        worker.submit(sequence, lambda event: None)
    while not worker.is_idle:
        assert worker.is_healthy
    worker.stop()
    assert_right(*sequences)


# All of it at once


POLICIES: list[Policy] = [PLAIN, SELF, Drafting(8), Drafting(2, spare_rows=40), Speculative(NgramDrafter(4))]


@dataclass(frozen=True)
class Request:
    at: int
    """The step before which it comes."""
    beginning: int
    """Tokens that it shares with others."""
    rest: tuple[int, ...]
    policy: int
    max_tokens: int
    ends: frozenset[int]
    stop: tuple[str, ...]
    is_sampled: bool
    hosts: int
    """Of which it asks for something that only the host has."""

    def sequence(self) -> Sequence:
        prompt = [*random.Random(1).choices(range(END), k=self.beginning), *self.rest]
        params = SamplingParams(self.max_tokens, temperature=float(self.is_sampled), seed=3, stop=self.stop)
        asked = ({}, {}, {}, {"alternatives": 2}, {"is_traced": True}, {"grammar": AllowsAll()})[self.hosts]
        return Sequence(prompt, params, POLICIES[self.policy], self.ends, CONTEXT, **asked)  # type: ignore[arg-type]


REQUESTS = st.builds(
    Request,
    at=st.integers(0, 30),
    beginning=st.integers(0, 70),
    rest=st.lists(st.integers(0, END - 1), min_size=1, max_size=20).map(tuple),
    policy=st.integers(0, len(POLICIES) - 1),
    max_tokens=st.integers(1, 60),
    ends=st.sampled_from([ENDS, ENDS, ENDS | {3}]),
    stop=st.sampled_from([(), (), ("a b",), ("c", "d e f")]),
    is_sampled=st.sampled_from([False, False, False, True]),
    hosts=st.integers(0, 5),
)
DISTURBANCES = st.tuples(st.integers(1, 60), st.sampled_from(["hold", "let go", "cancel"]), st.integers(0, 11))


@settings(max_examples=150)
@given(
    st.lists(REQUESTS, min_size=1, max_size=12),
    st.lists(DISTURBANCES, max_size=12),
    st.integers(10, 40),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 1.0]),
)
def test_every_answer_is_the_one_it_would_be_alone(
    requests: list[Request],
    disturbances: list[tuple[int, str, int]],
    blocks: int,
    right: float,
    row_seconds: float,
) -> None:
    engine = engine_of(blocks, Device(right, row_seconds))
    run(engine, [(request.at, request.sequence()) for request in requests], disturbances)
    assert engine.forward.cache.free_blocks == blocks


def run(engine: Engine, arriving: list[tuple[int, Sequence]], disturbances: list[tuple[int, str, int]]) -> None:
    sequences = [sequence for _, sequence in arriving]
    cancelled: set[Sequence] = set()
    for step in range(5000):
        for at, sequence in arriving:
            if at == step:
                engine.add(sequence)
        for at, what, which in disturbances:
            if at == step:
                sequence = sequences[which % len(sequences)]
                sequence.is_held = what == "hold"
                if what == "cancel" and sequence.finish_reason is None:
                    engine.remove(sequence)
                    cancelled.add(sequence)
        if step == 70:
            for sequence in sequences:
                sequence.is_held = False
        if step > 70 and not engine.scheduler.has_work:
            break
        step_of(engine)
        engine.forward.cache.check_integrity()
    for sequence in sequences:
        if sequence not in cancelled or sequence.finish_reason:
            assert sequence.finish_reason and sequence.output == expected(sequence)


class Traffic:
    """Random requests, cancellations and holds against one engine, for long."""

    def __init__(self, seed: int, blocks: int) -> None:
        self.random = random.Random(seed)
        self.device = Device(right=0.6)
        self.engine = engine_of(blocks, self.device)
        self.open: list[Sequence] = []
        self.seen: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        draw = self.random
        for step in range(steps):
            if step % 100 == 0:
                self.device.right = draw.choice([0.0, 0.5, 0.9])
            if len(self.open) < 12 and draw.random() < 0.3:
                self._arrive()
            if self.open and draw.random() < 0.02:
                self.engine.remove(self.open.pop(draw.randrange(len(self.open))))
                self.seen["cancelled"] += 1
            for sequence in self.open:
                if draw.random() < 0.02:
                    sequence.is_held = not sequence.is_held
                    self.seen["held"] += 1
            for sequence, stride in step_of(self.engine):
                if stride.finish_reason:
                    self.open.remove(sequence)
                    self.seen["finished"] += 1
                    self.seen["accepted"] += sequence.stats.accepted
                    self.seen["reused"] += sequence.stats.reused > 0
                    assert_right(sequence)
            self.engine.forward.cache.check_integrity()
        self.seen["preempted"] = self.engine.scheduler.preemptions

    def _arrive(self) -> None:
        draw = self.random
        request = Request(
            at=0,
            beginning=draw.choice([0, 16, 40, 60]),
            rest=tuple(draw.choices(range(END), k=draw.randint(1, 20))),
            policy=draw.randrange(len(POLICIES)),
            max_tokens=draw.randint(1, 60),
            ends=draw.choice([ENDS, ENDS, ENDS | {3}]),
            stop=draw.choice([(), (), ("a b",)]),
            is_sampled=draw.random() < 0.1,
            hosts=draw.choice([0, 0, 0, 0, 3, 4, 5]),
        )
        self.open.append(request.sequence())
        self.engine.add(self.open[-1])


@pytest.mark.parametrize("blocks", [11, 24])
def test_random_traffic(blocks: int) -> None:
    traffic = Traffic(blocks, blocks)
    traffic.run(1500)
    assert min(traffic.seen[name] for name in ("finished", "accepted", "reused", "cancelled", "held")) > 10
    assert traffic.device.launches > 500 and (traffic.seen["preempted"] > 10 or blocks > 11)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [10, 12, 16, 40])
def test_random_traffic_for_long(blocks: int) -> None:
    Traffic(blocks, blocks).run(20_000)
