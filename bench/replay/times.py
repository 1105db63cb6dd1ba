"""What a step costs in replay: milliseconds by its real rows and its masks, and of what surrounds the forward.

Tables of measured shapes; between them and beyond, straight lines.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu.forward import parse
from stridelm.decode.cost import Cost, line

MOST_ROWS = 256


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds."""

    real: Mapping[int, float]
    """Real rows -> the forward."""
    masks: float
    """Beyond that, for any masks."""
    mask_row: float
    """Beyond a real row, for each mask row."""
    around: float
    """Around each forward: draws, walk, compaction, text."""
    level: float
    """To draft one depth from masks."""
    head: float = 0.0
    """The output head by itself, on one row."""
    head_row: float = 0.0
    """On each further row; masks that are deferred save it."""
    look_up: float = 0.02
    """To look for the text's last tokens in it."""
    plan: float = 0.0
    """To decide about drafts and masks, where that is not done in passing."""

    @cached_property
    def table(self) -> list[float]:
        rows, known = zip(*sorted(self.real.items()), strict=True)
        found = np.interp(np.arange(MOST_ROWS + 1), rows, np.maximum.accumulate(known))
        if len(rows) > 1:
            slope = (known[-1] - known[-2]) / (rows[-1] - rows[-2])
            found[rows[-1] :] += slope * np.arange(MOST_ROWS + 1 - rows[-1])
        return found.tolist()

    def forward(self, real: int, masks: int = 0) -> float:
        return self.table[real + masks] + (self.masks + self.mask_row * masks if masks else 0.0)

    def __call__(self, real: int, masks: int = 0, levels: int = 0) -> float:
        """A whole step."""
        return self.forward(real, masks) + self.around + self.level * levels

    @property
    def cost(self) -> Cost:
        """The same as the planner's, in seconds."""
        rows = sorted(self.real)
        return Cost(
            tuple(rows),
            tuple(1e-3 * self.real[each] for each in rows),
            masks=1e-3 * self.masks,
            mask_row=1e-3 * self.mask_row,
            head=1e-3 * self.head,
            head_row=1e-3 * self.head_row,
            level=1e-3 * self.level,
        )


def of_forwards(shapes: Mapping[str, float], **beside: float) -> StepTimes:
    """From milliseconds by shape, as bench/cpu/forward.py names them; those whose masks are left out by the output head
    are left out here. `beside`: the fields that are no forwards."""
    parsed = [(*parse(shape), each) for shape, each in shapes.items()]
    real = {rows: each for rows, masks, *_, each in parsed if not masks}
    bare = StepTimes(real, 0.0, 0.0, 0.0, 0.0)
    counts: list[int] = []
    extra: list[float] = []
    for rows, masks, anchors, defers, each in parsed:
        if masks and not defers:
            counts.append(masks * anchors)
            extra.append(each - bare.forward(rows + masks * anchors))
    constant, per_row = line(counts, extra) if extra else (0.0, 0.0)
    return StepTimes(real, constant, per_row, **beside)


def load_times(file: Path, activations: str) -> StepTimes:
    """What bench/replay/step_times.py has measured."""
    measured = json.loads(file.read_text(encoding="utf-8"))["milliseconds"][activations]
    return of_forwards(measured["forwards"], **measured["beside"])
