"""Users who do whatever they like, over a backend whose steps fail now and then: a state machine.

The cache, the scheduler and the policies are the real ones; the model is a hash, so a single wrong block shows in the
text. After every action the cache is whole; at the end everyone has been served, and every text is plain decoding's.
"""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hash_stepper import FAULTS, Device, Drafting, Fault, SteppingForward, expected
from hashing_model import CONTEXT, END, HashGate, letters
from stridelm.contracts import Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.planned import Planned
from stridelm.decode.speculative import Speculative
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.engine.engine import Engine
from stridelm.params import SamplingParams
from stridelm.types import Sequence
from suite import COST

ENDS = frozenset({END})
DRAFTS = (0, 2, 4, 7, 8, 12, None)
MAX_STEPS = 4000
"""Of all users together, once nobody disturbs them."""


def policies() -> list[Policy]:
    """The last one's number of drafts changes under way."""
    gate = HashGate()
    return [
        Autoregressive(),
        Planned(COST, masks=MaskDrafter(gate), k=gate.k),
        Planned(COST, masks=MaskDrafter(gate), k=gate.k, drafters=(NgramDrafter(4),), switches=True),
        Speculative(NgramDrafter(4)),
        Drafting(15, spare_rows=40),
        Drafting(7),
    ]


@dataclass(frozen=True)
class Request:
    beginning: int
    """Tokens that it shares with others."""
    rest: tuple[int, ...]
    policy: int
    max_tokens: int
    ends: frozenset[int]
    stop: tuple[str, ...]
    temperature: float
    penalty: float

    def sequence(self, policies: list[Policy]) -> Sequence:
        prompt = [*random.Random(1).choices(range(END), k=self.beginning), *self.rest]
        params = SamplingParams(
            self.max_tokens, self.temperature, seed=3, stop=self.stop, repetition_penalty=self.penalty
        )
        return Sequence(prompt, params, policies[self.policy], self.ends, CONTEXT)


REQUESTS = st.builds(
    Request,
    beginning=st.sampled_from([0, 0, 20, 64]),
    rest=st.lists(st.integers(0, END - 1), min_size=1, max_size=12).map(tuple),
    policy=st.integers(0, len(policies()) - 1),
    max_tokens=st.integers(1, 40),
    ends=st.sampled_from([ENDS, ENDS, ENDS | {3}]),
    stop=st.sampled_from([(), (), (), ("a b",)]),
    temperature=st.sampled_from([0.0, 0.0, 0.8]),
    penalty=st.sampled_from([1.0, 1.0, 1.0, 1.3]),
)
WHICH = st.integers(0, 1000)


SEEN: Counter[str] = Counter()
"""What has happened over all runs: a machine that tries nothing would pass."""


class Users(RuleBasedStateMachine):
    @initialize(
        blocks=st.sampled_from([10, 14, 24, 200]),
        right=st.sampled_from([0.5, 1.0]),
        row_seconds=st.sampled_from([0.0, 0.0, 0.05]),
    )
    def begin(self, blocks: int, right: float, row_seconds: float) -> None:
        self.blocks, self.device = blocks, Device(right, row_seconds)
        self.engine = Engine(SteppingForward(blocks, self.device), letters())
        self.policies = policies()
        self.open: list[Sequence] = []
        self.finished: list[Sequence] = []

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=9))
    def arrive(self, requests: list[Request]) -> None:
        for request in requests:
            sequence = request.sequence(self.policies)
            self.engine.add(sequence)
            self.open.append(sequence)

    @rule(request=REQUESTS, count=st.integers(4, 17))
    def crowd(self, request: Request, count: int) -> None:
        """Answers to one prompt."""
        self.arrive([request] * count)

    @precondition(lambda self: self.open)
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        self.engine.remove(self.open.pop(which % len(self.open)))

    @precondition(lambda self: self.open)
    @rule(which=WHICH)
    def hold(self, which: int) -> None:
        sequence = self.open[which % len(self.open)]
        sequence.is_held = not sequence.is_held

    @rule(drafts=st.sampled_from(DRAFTS))
    def change_drafts(self, drafts: int | None) -> None:
        policy = self.policies[-1]
        assert isinstance(policy, Drafting)
        policy.own_drafts = drafts

    @rule(right=st.sampled_from([0.0, 0.5, 1.0]))
    def change_subject(self, right: float) -> None:
        self.device.right = right

    @rule(fault=st.sampled_from(FAULTS))
    def break_next(self, fault: Fault) -> None:
        self.device.faults.append(fault)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        before = self._where()
        for sequence, event in self.engine.step():
            assert not isinstance(event, Exception), event
            if event.finish_reason:
                self.open.remove(sequence)
                self.finished.append(sequence)
        assert self.engine.own_steps.failures == self.device.failed, "a step failed that was not made to"
        assert not self.engine.scheduler.has_work or self._where() != before, "a step gave nobody anything"

    def _where(self) -> list[tuple[int, int, bool]]:
        return [(len(each.tokens), each.cached, each.table is None) for each in self.open]

    @invariant()
    def is_whole(self) -> None:
        if hasattr(self, "engine"):
            self.engine.forward.cache.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for sequence in self.open:
            sequence.is_held = False
        for _ in range(MAX_STEPS):
            if not self.open:
                break
            self._step()
            self.is_whole()
        assert not self.open, "somebody waits for ever"
        for sequence in self.finished:
            assert sequence.output == expected(sequence)
        assert self.engine.forward.cache.free_blocks == self.blocks
        SEEN["preempted"] += self.engine.scheduler.preemptions
        SEEN["failed"] += self.device.failed
        SEEN["run by the backend"] += sum(sequence.stats.own_forwards for sequence in self.finished)
        SEEN["run by the host"] += sum(each.stats.forwards - each.stats.own_forwards for each in self.finished)
        SEEN["accepted"] += sum(sequence.stats.accepted for sequence in self.finished)
        SEEN["shared"] += sum(sequence.stats.reused for sequence in self.finished)


def run_machine(runs: int) -> None:
    SEEN.clear()
    run_state_machine_as_test(Users, settings=settings(max_examples=runs, stateful_step_count=50))
    assert len(SEEN) == 6 and min(SEEN.values()) > runs // 2, SEEN


def test_users_who_do_what_they_like() -> None:
    run_machine(100)


@pytest.mark.slow
def test_users_who_do_what_they_like_for_long() -> None:
    run_machine(2000)
