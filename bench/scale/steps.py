"""How fast a layout of GPUs decodes, from measured step costs and acceptance. For bench/scale/project.py.

A step's time is that of a forward over so many rows. What comes out of it follows from the acceptance by depth. Several
ways to spend rows are compared, and plain decoding is always among them:

    plain          p                     1 row, 1 token
    fused          p-d-d, masks at all   (n + 1)^2 rows: n drafts are verified, and n masks at every node draft anew
    alternating    p-m-m, then p-d-d     two forwards of n + 1 rows: one drafts (and gives a token), one verifies
    plugin         p-m-m, then p-d-d-d   the same in vLLM, whose drafter also proposes the token that its real row gives
                                         and has it verified with the others
    two models     p-m-m, then p-d-d-d   the same in vLLM without our plugin: the drafts come from a second copy of the
                                         model, which has a cache of its own and reads anew what was verified
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

PLAIN, FUSED, ALTERNATING, PLUGIN, TWO_MODELS = "plain", "fused", "alternating", "plugin", "two models"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of drafts by depth, each given that those before it stood."""

    name: str
    by_depth: tuple[float, ...]
    measured: float
    """Tokens per forward with all depths."""

    def tokens(self, drafts: int) -> float:
        """That a step with so many drafts gives. Measured runs end in mid-step, so all of them gave a little less than
        the rates say: what is beyond the first token is scaled to fit."""
        paths = list(accumulate(self.by_depth, mul))
        return 1.0 + sum(paths[:drafts]) * (self.measured - 1.0) / sum(paths)


class Curve:
    """Milliseconds of a step by rows per sequence: straight between measured points. Some numbers of rows suit kernels
    badly; an engine adds rows that nobody reads up to a better number, so no point is above a later one."""

    def __init__(self, points: dict[int, float]) -> None:
        self.rows = np.array(sorted(points), dtype=float)
        self.milliseconds = np.minimum.accumulate([points[int(row)] for row in self.rows[::-1]])[::-1]

    @property
    def most(self) -> float:
        return float(self.rows[-1])

    def __call__(self, rows: float) -> float:
        assert self.rows[0] <= rows <= self.most, rows
        return float(np.interp(rows, self.rows, self.milliseconds))


class StepCosts:
    """What bench/scale/step_cost.py wrote."""

    def __init__(self, report: dict[str, Any]) -> None:
        self._found: dict[tuple[str, int, int], dict[int, dict[tuple[int, int], dict[int, float]]]] = {}
        self._layers: dict[str, int] = {}
        for group in report["groups"]:
            shape = group["shape"]
            self._layers[shape["name"]] = shape["layers"]
            by_layers = self._found.setdefault((shape["name"], shape["tensor_parallel"], group["rank"]), {})
            points = by_layers.setdefault(group["layers"], {})
            for point in group["points"]:
                curve = points.setdefault((point["batch"], point["context"]), {})
                curve[point["rows"]] = point["milliseconds"]

    def batches(self, model: str, ranks: int, context: int) -> list[int]:
        """Those that were measured, with one row a sequence at least."""
        measured = min(self._found.get((model, ranks, 0), {}).items(), default=(0, {}))[1]
        return sorted(batch for (batch, at), rows in measured.items() if at == context and 1 in rows)

    def curve(self, model: str, ranks: int, batch: int, context: int, *, adapted: bool = False) -> Curve:
        """Of all layers. `ranks` of tensor parallel: one rank's part, without communication."""
        found = self._found[model, ranks, 0]
        points = _whole({count: at.get((batch, context), {}) for count, at in found.items()}, self._layers[model])
        if adapted:
            points = {rows: time + self._extra(model, ranks, batch, rows, time) for rows, time in points.items()}
        return Curve(points)

    def _extra(self, model: str, ranks: int, batch: int, rows: int, time: float) -> float:
        """Milliseconds that the adapter adds to all layers: as measured, where there are drafts. Of that, what one
        sequence pays for fewest rows is the launching of kernels, which no rank is spared; the rest is shared. Where
        this model was not measured with it, another's share of the step is taken."""
        if rows == 1:
            return 0.0
        own, layers = self._differences(model), self._layers[model]
        if (batch, rows) in own:
            launching = min(own[least := min(own)][0], own[batch, rows][0])
            assert least[0] == 1, "one sequence is measured first"
            return layers * (launching + (own[batch, rows][0] - launching) / ranks)
        shares = [at[batch, rows][1] for name in self._layers if (batch, rows) in (at := self._differences(name))]
        return time * max(shares, default=0.0)

    def _differences(self, model: str) -> dict[tuple[int, int], tuple[float, float]]:
        """(batch, rows) -> milliseconds a layer that the adapter adds, and its share of the step."""
        made: dict[tuple[int, int], tuple[float, float]] = {}
        bare = self._found.get((model, 1, 0), {})
        for (name, ranks, rank), by_layers in self._found.items():
            if name == model and ranks == 1 and rank:
                for layers, found in by_layers.items():
                    for (batch, context), times in found.items():
                        without = bare.get(layers, {}).get((batch, context), {})
                        for rows in times.keys() & without.keys():
                            added = max(0.0, times[rows] - without[rows])
                            made[batch, rows] = (added / layers, added / without[rows])
        return made


def _whole(by_layers: dict[int, dict[int, float]], layers: int) -> dict[int, float]:
    """Times by rows of a decoder with so many layers, measured as it is or with fewer of them, twice."""
    if layers in by_layers:
        return by_layers[layers]
    (few, at_few), (many, at_many) = sorted(by_layers.items())
    return {rows: _extrapolated(at_few[rows], few, at_many[rows], many, layers) for rows in at_few if rows in at_many}


def _extrapolated(at_few: float, few: int, at_many: float, many: int, layers: int) -> float:
    """A straight line through two numbers of layers; what does not grow with them is not below zero."""
    layer = min((at_many - at_few) / (many - few), at_many / many)
    return at_many + (layers - many) * layer


@dataclass(frozen=True, slots=True)
class Links:
    """What is between GPUs; all of it assumed, none measured here."""

    node_bytes_per_second: float = 350e9
    """Of an all-reduce within a machine (NVLink), each way."""
    node_latency: float = 12e-6
    """Seconds of an all-reduce of nothing."""
    network_bytes_per_second: float = 45e9
    """Between machines (400 Gbit/s a GPU)."""
    network_latency: float = 20e-6
    """Seconds of a message of nothing."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model lies on GPUs."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline

    @property
    def name(self) -> str:
        parts = [f"TP {self.tensor}"] if self.tensor > 1 else []
        parts += [f"PP {self.pipeline}"] if self.pipeline > 1 else []
        return " x ".join(parts) or "one GPU"

    def communication(self, rows: int, layers: int, hidden: int, vocabulary: int, links: Links) -> float:
        """Milliseconds of a step over so many rows (of all sequences): two all-reduces a layer, logits gathered, and a
        hop between stages. Nothing of it is hidden behind arithmetic."""
        ring = (self.tensor - 1) / self.tensor
        reduced = 2 * layers * (2 * ring * rows * hidden * 2 / links.node_bytes_per_second + links.node_latency)
        gathered = ring * rows * vocabulary * 2 / links.node_bytes_per_second
        hop = rows * hidden * 2 / links.network_bytes_per_second + links.network_latency
        return 1000 * ((reduced + gathered if self.tensor > 1 else 0.0) + (self.pipeline - 1) * hop)


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to spend rows."""

    way: str
    drafts: int
    rows: int
    """Per sequence, of the widest forward."""
    tokens: float
    milliseconds: float
    """For those tokens."""

    @property
    def pace(self) -> float:
        """Tokens per second of one sequence."""
        return 1000 * self.tokens / self.milliseconds


@dataclass(frozen=True, slots=True)
class Setting:
    """Where plans are made: the step's time by rows per sequence, communication included."""

    bare: Curve
    adapted: Curve
    head_milliseconds: float = 0.0
    """Of the sequential head, per draft."""
    most_drafts: int = 8

    def plain(self) -> Plan:
        return Plan(PLAIN, 0, 1, 1.0, self.bare(1))

    def exact(self, acceptance: Acceptance) -> Iterator[Plan]:
        """Every plan that a gated conversion has, as far as was measured."""
        yield self.plain()
        for drafts in range(1, min(self.most_drafts, len(acceptance.by_depth)) + 1):
            tokens, head = acceptance.tokens(drafts), drafts * self.head_milliseconds
            rows = (drafts + 1) ** 2
            if rows <= self.adapted.most:
                yield Plan(FUSED, drafts, rows, tokens, self.adapted(rows) + head)
            if drafts + 1 <= self.adapted.most:
                time = self.adapted(drafts + 1) + self.bare(drafts + 1) + head
                yield Plan(ALTERNATING, drafts, drafts + 1, 1.0 + tokens, time)

    def plugin(self, acceptance: Acceptance) -> Iterator[Plan]:
        """A gated adapter in vLLM, by the number of drafts that are asked for: the first is the target's own."""
        for drafts in range(2, min(self.most_drafts, len(acceptance.by_depth)) + 2):
            if drafts + 1 <= self.bare.most:
                time = self.adapted(drafts) + (drafts - 1) * self.head_milliseconds + self.bare(drafts + 1)
                yield Plan(PLUGIN, drafts, drafts + 1, 1.0 + acceptance.tokens(drafts - 1), time)

    def two_models(self, acceptance: Acceptance) -> Iterator[Plan]:
        """A whole conversion in vLLM that drafts for itself, by the number of drafts that are asked for. Its copy runs
        the k + 1 rows that were just verified, for its own cache (vLLM pads the rejected ones), the new token and k - 1
        masks. The new token's row is the target's own, so the first draft is always right."""
        for drafts in range(2, min(self.most_drafts, len(acceptance.by_depth)) + 2):
            rows = 2 * drafts + 1
            if rows <= self.bare.most:
                time = self.bare(rows) + self.bare(drafts + 1)
                yield Plan(TWO_MODELS, drafts, rows, 1.0 + acceptance.tokens(drafts - 1), time)


def best(plans: Sequence[Plan]) -> Plan:
    return max(plans, key=lambda plan: plan.pace)
