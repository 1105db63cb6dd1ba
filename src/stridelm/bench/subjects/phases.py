"""Where the time of an answer goes in our own decoders, measured by wrappers: the engine's loop is not changed.

    draft      the policy's `plan` (drafting, and choosing how much of it is run) and its `observe`
    forward    the forward pass without its output head, including reading the prompt
    head       what the output head costs on as many rows, timed separately and subtracted from the forward: both
               backends run it inside their pass, where it cannot be timed
    sampling   the draws from the model's own rows
    verify     the rest of the policy's `commit`: the walk over the tree, the model's confidence, what the planner
               learns, and the masks that the next drafts come from
    steps      whole steps that the backend runs by itself, whose parts cannot be timed from outside
    rest       everything else: tokenizing the prompt, scheduling, the cache, detokenizing

Their sum is the answer's time.
"""

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from stridelm.cache.kv_cache import Table
from stridelm.contracts import Forward, Policy
from stridelm.engine.engine import Engine
from stridelm.engine.own_steps import Outcome, OwnSteps
from stridelm.sampling import Draw, drawer
from stridelm.types import Array, Output, Rows, Sequence

_HEAD_TRIALS = 5
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class HeadCost:
    """Seconds of a model's output head, by number of rows; each number is timed when first needed."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._seconds: dict[int, float] = {0: 0.0}

    def __call__(self, rows: int) -> float:
        if rows not in self._seconds:
            self._seconds[rows] = self._time(rows)
        return self._seconds[rows]

    def _time(self, rows: int) -> float:
        forward, hidden_XC = self._forward, self._forward.zeros(rows)
        times: list[float] = []
        for _ in range(1 + _HEAD_TRIALS):  # the first warms up
            started = time.perf_counter()
            forward.score(hidden_XC)
            forward.synchronize()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])


class Watch:
    """Seconds spent in each wrapped part, and how often the output head ran on each number of rows."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.scored: Counter[int] = Counter()

    def timed(self, part: str, call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        def run(*arguments: _Given.args, **named: _Given.kwargs) -> _Result:
            started = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[part] += time.perf_counter() - started

        return run

    def phases(self, seconds: float, head_cost: HeadCost) -> dict[str, float]:
        """Seconds by phase, of an answer that took `seconds`, which is their sum."""
        forward = self.seconds["forward"]
        head = min(forward, sum(count * head_cost(rows) for rows, count in self.scored.items()))
        phases = {
            "draft": self.seconds["draft"],
            "forward": forward - head,
            "head": head,
            "verify": max(0.0, self.seconds["commit"] - self.seconds["sampling"]),
            "sampling": self.seconds["sampling"],
            "steps": self.seconds["steps"],
        }
        return phases | {"rest": max(0.0, seconds - sum(phases.values()))}


class _WatchedPolicy:
    """A policy that delegates to another one and counts its time."""

    def __init__(self, policy: Policy, watch: Watch) -> None:
        self.exact, self.reads_whole_texts = policy.exact, policy.reads_whole_texts
        self.needed_rows, self.spare_rows = policy.needed_rows, policy.spare_rows
        self.own_drafts, self.own_plan = policy.own_drafts, policy.own_plan
        self.reads_predictions = policy.reads_predictions
        self.plan = watch.timed("draft", policy.plan)
        self.commit = watch.timed("commit", partial(policy.commit, drawer=partial(_timed_drawer, watch)))
        self.observe = watch.timed("draft", policy.observe)
        self.release = policy.release


class _WatchedForward:
    """A forward that delegates to another one and times its calls."""

    def __init__(self, forward: Forward, watch: Watch) -> None:
        self._forward, self._watch = forward, watch
        self._run = watch.timed("forward", self._finish)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward, name)

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        self._watch.scored[sum(each.stop - each.start for each in rows.scored_segments)] += 1
        return self._run(rows, tables)

    def _finish(self, rows: Rows, tables: list[Table]) -> list[Output]:
        outputs = self._forward(rows, tables)
        self._forward.synchronize()  # otherwise a GPU's time would be counted where its results are first read
        return outputs


class _WatchedOwnSteps:
    """Delegates to another OwnSteps and times the steps that the backend runs by itself."""

    def __init__(self, own_steps: OwnSteps, watch: Watch) -> None:
        self._own_steps, self._watch = own_steps, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own_steps, name)

    def step(self, batch: list[Sequence]) -> Outcome:
        started = time.perf_counter()
        outcome = self._own_steps.step(batch)
        if outcome.count:  # do not count the check that finds that the host must run the step
            self._watch.seconds["steps"] += time.perf_counter() - started
        return outcome


def _timed_drawer(watch: Watch, logits_WV: Array, sequence: Sequence, tolerance: float = 0.0) -> Draw:
    """Times both calls: plain greedy rows are decided when the `Draw` is made, others when it is called."""
    return watch.timed("sampling", watch.timed("sampling", drawer)(logits_WV, sequence, tolerance))


@contextmanager
def watched(engine: Engine, sequence: Sequence) -> Iterator[Watch]:
    """Watch one answer, not yet added to the engine, until the end of the block. The engine must run no other."""
    watch = Watch()
    forward, own_steps, policy = engine.forward, engine.own_steps, sequence.policy
    engine.forward = cast(Forward, _WatchedForward(forward, watch))
    engine.own_steps = cast(OwnSteps, _WatchedOwnSteps(own_steps, watch))
    sequence.policy = _WatchedPolicy(policy, watch)
    try:
        yield watch
    finally:
        engine.forward, engine.own_steps, sequence.policy = forward, own_steps, policy
