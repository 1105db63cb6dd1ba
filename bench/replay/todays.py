"""Today's policy over a trace: the class `Planned` itself, with `switches`, as behind `auto`.

Its backend is scripted: draws are the trace's text, a gate answers with the trace's chains (second choices are leaves,
where a real gate drafts on behind the likeliest of them, too), and the clock is virtual. One policy writes all texts
one after the other, as in a server: its running estimates go from text to text.
"""

import sys
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.play import LOOK_UP_K, Run
from bench.replay.times import StepTimes
from bench.replay.trace import LONGEST, Trace
from stridelm.cache.kv_cache import BLOCK_SIZE, Table
from stridelm.contracts import Growth
from stridelm.decode.planned import Planned
from stridelm.decode.rates import Clock, DepthRates
from stridelm.draft.calibration import LEAST, MOST, Calibration
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.params import SamplingParams
from stridelm.types import MASKS, ROOT, Block, DraftTree, GrownTree, Output, Sequence

_VOCABULARY, _NODES = 2**16, 16
_MAX_TOKENS = 128
_LOGITS_V = np.zeros(1, np.float32)


class VirtualClock:
    def __init__(self) -> None:
        self.milliseconds = 0.0

    def __call__(self) -> float:
        return 1e-3 * self.milliseconds


class ScriptedGate:
    """Keeps `contracts.Gate`. A mask's hidden state is its anchor's number in the trace and its place."""

    k, tail, state_size = LONGEST + 1, 0, 0
    prior = None

    def __init__(self, times: StepTimes, clock: VirtualClock) -> None:
        self.times, self.clock = times, clock
        self.trace: Trace | None = None

    def grow(self, logits_DV: Any, hidden_DC: np.ndarray, state_1S: Any, growth: Growth) -> GrownTree:
        assert self.trace is not None
        anchor, used = (int(each) for each in hidden_DC[0])
        tokens_AUD, seconds_AUD = self.trace.first_tokens, self.trace.second_tokens
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        node, path, levels = ROOT, 1.0, 0
        for place in range(used, used + len(hidden_DC)):
            levels += 1
            first, second = (float(each[anchor, used, place]) for each in (self.trace.scores, self.trace.second_scores))
            for token, score in ((tokens_AUD, first), (seconds_AUD, second))[: growth.branches]:
                if score and path * score >= growth.floor:
                    tokens.append(int(token[anchor, used, place]))
                    parents.append(node)
                    scores.append(score)
            if not first or path * first < growth.floor:
                break
            node, path = (
                max(at for at, parent in enumerate(parents) if parent == node and scores[at] == first),
                path * first,
            )
        self.clock.milliseconds += self.times.level * levels
        return GrownTree(DraftTree.of(tokens, parents, MASKS, scores), [], None)

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        self.clock.milliseconds += self.times.head + self.times.head_row * (len(hidden_XC) - 1)
        return np.broadcast_to(_LOGITS_V, (len(hidden_XC), _VOCABULARY))

    def top(self, logits_V: Any, count: int) -> tuple[Any, Any]:
        raise AssertionError("candidates are the trace's")

    def foretell(self, hidden_C: Any) -> Any:
        raise AssertionError("there are no tail heads")

    def start(self, chains: int) -> Any:
        raise AssertionError("there is no sequential head: its drafts are the trace's")

    def read(self, hidden_XC: Any, before: list[int], state_XS: Any) -> tuple[Any, Any]:
        raise AssertionError("there is no sequential head: its drafts are the trace's")

    def moved(self, tokens_N: Any, logits: Any, added: Any) -> Any:
        raise AssertionError("there is no sequential head: its drafts are the trace's")


class _LookUp(NgramDrafter):
    def __init__(self, times: StepTimes, clock: VirtualClock) -> None:
        super().__init__(LOOK_UP_K)
        self._times, self._clock = times, clock

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        self._clock.milliseconds += self._times.look_up
        return super().propose(sequences)


Ablation = Callable[[Planned], None]


def play_all(
    traces: Iterable[Trace], times: StepTimes, ablate: Iterable[str] = (), real: StepTimes | None = None
) -> list[Run]:
    """One policy for all texts. `ablate`: names of ABLATIONS. `real`: what steps take, if not what it thinks."""
    clock = VirtualClock()
    gate = ScriptedGate(real or times, clock)
    drafters = () if "look-up" in ablate else (_LookUp(real or times, clock),)
    policy = Planned(
        times.cost, masks=MaskDrafter(gate), k=gate.k, drafters=drafters, nodes=_NODES, switches=True, now=clock
    )
    for name in ablate:
        ABLATIONS[name](policy)
    return [_Writer(trace, policy, gate, real or times, clock).run() for trace in traces]


class _Writer:
    """One answer, from its second token on."""

    def __init__(
        self, trace: Trace, policy: Planned, gate: ScriptedGate, times: StepTimes, clock: VirtualClock
    ) -> None:
        self.trace, self.policy, self.gate, self.times, self.clock = trace, policy, gate, times, clock
        gate.trace = trace
        self.text = trace.tokens.tolist()
        prompt = trace.prompt_length
        # An answer that ended early did so with a token that occurs nowhere else in it.
        ended = trace.written < _MAX_TOKENS and self.text[prompt:].count(self.text[-1]) == 1
        ends = frozenset({self.text[-1]} if ended else ())
        context = prompt + 2 * _MAX_TOKENS
        params = SamplingParams(max_tokens=max(_MAX_TOKENS, trace.written))
        self.sequence = Sequence(
            self.text[:prompt], params, policy, ends, context, table=Table(list(range(context // BLOCK_SIZE + 16)))
        )
        self.sequence.tokens.append(self.text[prompt])
        self.sequence.cached, self.sequence.allowance = prompt, 1

    def run(self) -> Run:
        run, sequence, policy = Run(), self.sequence, self.policy
        before = self.clock.milliseconds
        while len(sequence.tokens) < len(self.text):
            (block,) = policy.plan([sequence])
            self.clock.milliseconds += self.times.plan
            masks = block.masks * len(block.mask_anchors)
            self.clock.milliseconds += (
                self.times(len(block) - masks, masks) - block.defers_masks * self.times.head_row * masks
            )
            output = self._output(block)
            (commit,) = policy.commit([sequence], [block], [output], self._drawer)
            sequence.cached += len(commit.kept)
            sequence.tokens.extend(commit.tokens)
            policy.observe([sequence], [block], [output], [commit])
            run.tokens = min(len(sequence.tokens), len(self.text)) - 1 - self.trace.prompt_length
            run.steps += 1
            run.drafts += len(block.tree)
            run.masks += masks
            run.plain_steps += len(block) == 1
        policy.release(sequence)
        run.milliseconds = self.clock.milliseconds - before
        return run

    def _drawer(self, logits_WV: Any, sequence: Sequence, tolerance: float = 0.0) -> Callable[..., int]:
        # Behind the text's end nothing is known: a token that nobody drafts.
        return lambda row, before, proposed=(): (*self.text[len(before) : len(before) + 1], _VOCABULARY - 1)[0]

    def _output(self, block: Block) -> Output:
        real = 1 + len(block.tree)
        hidden_WC = np.zeros((len(block.wanted), 2))
        depths = (0, *block.tree.depths)
        for anchor in block.mask_anchors:
            place = block.start + depths[anchor + 1] - self.trace.first_anchor
            hidden_WC[block.mask_outputs(anchor)] = [(place, each) for each in range(block.masks)]
        scored = real if block.defers_masks else len(block.wanted)
        logits_WV = np.broadcast_to(_LOGITS_V, (scored, _VOCABULARY))
        return Output(logits_WV, hidden_WC, {}, np.zeros(scored))


class _CurveAlone(Clock):
    @property
    def wants_plain(self) -> bool:
        return False

    def took_plain(self, seconds: float) -> None: ...

    def took(self, beyond: float, seconds: float) -> None: ...


class _Uncalibrated(Calibration):
    def accepted(self, source: str, score: float, depth: int) -> float:
        return min(max(LEAST, score), MOST)


class _PriorRates(DepthRates):
    def for_new_text(self) -> DepthRates:
        return self

    def observe(self, depth: int, stood: bool) -> None: ...


def _plain_rate(policy: Planned) -> None:
    policy.pace.stepped = lambda tokens, forward, around: None  # type: ignore[method-assign]
    policy.pace._tokens = 1.0
    policy.pace._seconds = policy.cost(1)


def _set(policy: Planned, **values: Any) -> None:
    for name, value in values.items():
        setattr(policy, name, value)


ABLATIONS: dict[str, Ablation] = {
    "Pace": _plain_rate,
    "Use": lambda policy: _set(policy, uses=[]),
    "Clock": lambda policy: _set(policy, clock=_CurveAlone(policy.cost(1))),
    "Calibration": lambda policy: _set(policy, calibrations={each: _Uncalibrated() for each in (False, True)}),
    "DepthRates": lambda policy: _set(policy, rates=_PriorRates(policy.places)),
    "look-up": lambda policy: None,
}
"""Each controller alone, switched off."""
ALL_BUT_LOOK_UP: Items[str] = tuple(name for name in ABLATIONS if name != "look-up")
