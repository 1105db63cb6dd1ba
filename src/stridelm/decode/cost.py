"""What a forward costs on this machine: measured once per machine, model and precision, then stored.

    seconds = curve(rows) + (masks ? constant + per mask row) + rows x context x slope + per further sequence

A mask row costs more than a real one (its low-rank part); the curve is that of real rows at a short context. Drafting
from masks, which is not part of a forward, is timed separately.
"""

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from stridelm import __version__
from stridelm.cache.kv_cache import Table
from stridelm.contracts import Forward, Gate
from stridelm.decode.autoregressive import Autoregressive
from stridelm.draft.grow import Chain
from stridelm.draft.mask import MaskDrafter
from stridelm.layout import lay_out, make_block
from stridelm.models.builtin import cache_folder
from stridelm.models.target import Target
from stridelm.params import SamplingParams
from stridelm.types import ROOT, Array, DraftTree, Sequence

_WIDTHS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 64)
"""Kernels run rows in tiles of eight: the first row of another tile costs more than those behind it."""
_SEQUENCES = 8
"""Sequences in the step that measures what further sequences cost: with two, the cost would drown in noise."""
_MASKS = (2, 4, 8)
_LEVELS = 3
_CONTEXT, _LONG_CONTEXT = 128, 1024
_BUDGET = 6.0
"""Seconds to spend on measuring."""
_MAX_ROUNDS = 15
"""Maximum number of rounds over all shapes."""
_DISTURBED = 1.5
"""If the median round took this much longer than the fast ones, other processes used the machine: the result is not
stored."""
_CHANGED = 1.4
"""A stored measurement that is off by more than this factor is repeated."""
LARGEST = 1024
"""Number of rows up to which the curve is tabulated; beyond, it stays at its last value."""

Steps = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a forward."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    """Seconds for these numbers of real rows of one sequence, rising."""
    masks: float = 0.0
    """Extra for any masks at all."""
    mask_row: float = 0.0
    """Extra per mask row, compared with a real row."""
    context: float = 0.0
    """Per row and token of context."""
    sequence: float = 0.0
    """Per sequence beyond the first."""
    head: float = 0.0
    """The output head on one row."""
    head_row: float = 0.0
    """The output head on each further row."""
    level: float = 0.0
    """To draft one depth of a tree from masks."""
    table: np.ndarray = field(init=False, repr=False, compare=False)
    """Seconds by number of rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self._table())

    def _table(self) -> np.ndarray:
        table = np.interp(np.arange(LARGEST + 1), self.rows, np.maximum.accumulate(self.seconds))
        last = self.rows[-1]
        if len(self.rows) > 1:
            slope = max(0.0, (self.seconds[-1] - self.seconds[-2]) / (last - self.rows[-2]))
            table[last:] += slope * np.arange(LARGEST + 1 - last)
        return table

    def __call__(self, real: int, masks: int = 0, *, context: int = 0, sequences: int = 1) -> float:
        rows = real + masks
        return (
            float(self.table[min(rows, LARGEST)])
            + (self.masks + self.mask_row * masks if masks else 0.0)
            + self.context * rows * context
            + self.sequence * (sequences - 1)
        )

    def is_cheaper_in_two_stages(self, masks: int, needed: int) -> bool:
        """Whether running the output head separately, on the masks that turn out to be needed, is cheaper."""
        return self.head + self.head_row * needed < self.head_row * masks


def load_or_measure(target: Target, forward: Forward) -> Cost:
    """The cost of this model on this machine; from an earlier measurement if there is one."""
    file = cache_folder() / "costs" / f"{_key(target, forward)}.json"
    try:
        kept: dict[str, Any] = json.loads(file.read_text())
        cost = Cost(tuple(kept.pop("rows")), tuple(kept.pop("seconds")), **kept)
        if _still_holds(cost, forward):
            return cost
    except (OSError, ValueError, TypeError, KeyError):
        pass
    cost, is_quiet = measure(forward)
    if not is_quiet:
        return cost
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        working = file.with_suffix(f".{os.getpid()}")
        working.write_text(json.dumps({name: value for name, value in asdict(cost).items() if name != "table"}))
        os.replace(working, file)
    except OSError:
        pass  # if the disk cannot be written, the next start measures again, which takes two seconds
    return cost


def _still_holds(cost: Cost, forward: Forward) -> bool:
    """Whether one row, eight, and rows with masks still take about as long: the stored cost may have been measured on a
    busy machine."""
    trial = forward.with_cache(2 * _CONTEXT)
    shapes = [Shape(1, 1, context=16), Shape(1, 8, context=16)]
    if forward.gate is not None:
        shapes.append(Shape(1, 2, _MASKS[-1], context=16))
    times = _rounds({str(at): Trial(trial, shape) for at, shape in enumerate(shapes)}, forward, most=4)
    one, *more = (min(times[str(at)]) / cost(shape.real, shape.masks) for at, shape in enumerate(shapes))
    return all(1 / _CHANGED < ratio < _CHANGED for ratio in (one, *(each / one for each in more)))


def _key(target: Target, forward: Forward) -> str:
    masks_k = None if forward.gate is None else forward.gate.k
    parts = (target.fingerprint, forward.identity, __version__, masks_k, _WIDTHS, [each.name for each in fields(Cost)])
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Shape:
    """The rows of a step that is timed."""

    sequences: int
    real: int
    """Rows per sequence."""
    masks: int = 0
    context: int = _CONTEXT


def measure(forward: Forward) -> tuple[Cost, bool]:
    """Time steps of several shapes in turn, round after round, so that a slow moment of the machine affects all alike.
    Returns the cost, and whether the machine was quiet."""
    context = min(_LONG_CONTEXT, forward.longest - 64)
    short = min(_CONTEXT, context // 2)
    shapes = {f"{width}": Shape(1, width, context=short) for width in _WIDTHS}
    shapes["long"] = Shape(1, 8, context=context)
    shapes["sequences"] = Shape(_SEQUENCES, 1, context=short)
    if forward.gate is not None:
        shapes |= {_masks(count): Shape(1, 2, count, context=short) for count in _MASKS}
    trial = forward.with_cache(max(2 * context, _SEQUENCES * short) + 256)
    steps: Steps = {name: Trial(trial, shape) for name, shape in shapes.items()}
    if forward.gate is not None:
        hidden_XC = forward.zeros(8)
        steps = {
            **steps,
            "head": lambda: forward.score(hidden_XC[:1]),
            "head on 8": lambda: forward.score(hidden_XC),
            "levels": _Drafting(forward.gate, forward.zeros(_LEVELS)),
        }
    times, is_quiet = _time(steps, forward)
    return _cost(times, context - short), is_quiet


class Trial:
    """A step of one shape, to be repeated, over whatever the cache holds."""

    def __init__(self, forward: Forward, shape: Shape) -> None:
        self.forward, self.shape = forward, shape
        anchors = [ROOT] if shape.masks else []
        # Drafts, not pending rows: the output head runs on every one of them.
        tree = DraftTree.chain([1] * (shape.real - 1), "trial")
        block = make_block(shape.context, [1], tree, anchors=anchors, masks=shape.masks)
        self.rows = lay_out([block] * shape.sequences)

    def __call__(self) -> None:
        cache = self.forward.cache
        tables: list[Table] = []
        for _ in range(self.shape.sequences):
            table = cache.open(self.shape.context + self.shape.real + self.shape.masks)
            table.length = self.shape.context  # no text was read: for timing, any keys will do
            tables.append(table)
        try:
            self.forward(self.rows, tables)
        finally:
            for table in tables:
                cache.free(table)


class _Drafting:
    """Drafts a tree from masks with all-zero states, as deep as there are masks."""

    def __init__(self, gate: Gate, hidden_DC: Array) -> None:
        self.drafter, self.hidden_DC = MaskDrafter(gate), hidden_DC
        self.logits_DV = gate.score(hidden_DC)
        self.sequence = Sequence([1], SamplingParams(), Autoregressive(), frozenset(), _CONTEXT)

    def __call__(self) -> None:
        chain = Chain(self.logits_DV, self.hidden_DC, top=self.drafter.gate.top)
        self.drafter.draft([self.sequence], [chain], depth=len(self.hidden_DC), floor=0.0)


def _time(steps: Steps, forward: Forward) -> tuple[dict[str, float], bool]:
    """Every step's time: the lower quartile of several rounds, since disturbances only add time."""
    times = _rounds(steps, forward, most=_MAX_ROUNDS)
    quick = {name: sorted(each)[len(each) // 4] for name, each in times.items()}
    middle = sum(statistics.median(each) for each in times.values())
    return quick, middle < _DISTURBED * sum(quick.values())


def _rounds(steps: Steps, forward: Forward, *, most: int) -> dict[str, list[float]]:
    """Every step's times over as many rounds as the time budget allows; the first round is a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    started = time.perf_counter()
    for number in range(most + 1):
        for name, step in steps.items():
            before = time.perf_counter()
            step()
            forward.synchronize()
            if number:
                times[name].append(time.perf_counter() - before)
        if number and time.perf_counter() - started > _BUDGET:
            break
    return times


def _masks(count: int) -> str:
    return f"{count} masks"


def line(counts: Items[int], extra: Items[float]) -> tuple[float, float]:
    """The constant and the slope through these points. Where one of them is negative, that is noise, and the other
    explains all."""
    slope, constant = np.polyfit(counts, extra, 1) if len(set(counts)) > 1 else (0.0, extra[0])
    if constant < 0:
        return 0.0, max(0.0, sum(extra) / sum(counts))
    return (float(constant), float(slope)) if slope > 0 else (max(0.0, sum(extra) / len(extra)), 0.0)


def _cost(times: dict[str, float], further: int) -> Cost:
    # Disturbances only add time, so fewer rows take at most as long as more rows were seen to take.
    curve = np.minimum.accumulate([times[str(width)] for width in reversed(_WIDTHS)])[::-1]
    plain = Cost(_WIDTHS, tuple(curve.tolist()))
    masks = mask_row = head = head_row = level = 0.0
    if _masks(_MASKS[0]) in times:
        masks, mask_row = line(_MASKS, [times[_masks(count)] - plain(2 + count) for count in _MASKS])
        head, head_row = times["head"], max(0.0, (times["head on 8"] - times["head"]) / 7)
        level = times["levels"] / _LEVELS
    return Cost(
        _WIDTHS,
        plain.seconds,
        masks=masks,
        mask_row=mask_row,
        context=max(0.0, (times["long"] - plain(8)) / (8 * further)),
        sequence=max(0.0, (times["sequences"] - plain(_SEQUENCES)) / (_SEQUENCES - 1)),
        head=head,
        head_row=head_row,
        level=level,
    )
