"""What the planner chose, and why: its part of `--explain`."""

from collections import Counter
from collections.abc import Mapping

from stridelm.decode.cost import Cost
from stridelm.decode.rates import Pace
from stridelm.draft.calibration import Calibration

_SHOWN = 8
"""Maximum number of kinds of blocks that are listed."""


def explain(
    cost: Cost,
    pace: Pace,
    plans: Counter[tuple[int, int, int]],
    calibrations: Mapping[bool, Calibration],
    *,
    has_masks: bool,
) -> list[str]:
    curve = ", ".join(f"{rows}: {seconds * 1e3:.1f}" for rows, seconds in zip(cost.rows, cost.seconds, strict=True))
    lines = [
        f"a forward here takes, by rows, in ms: {curve}; with masks {cost.masks * 1e3:.1f} more and "
        f"{cost.mask_row * 1e3:.2f} per mask",
        f"pace: {pace.rate:.1f} tokens/s by that curve, {pace.rate / pace.plain:.2f}x one token at a time; drafting "
        f"and planning take {pace.overhead * 1e3:.1f} ms a step",
    ]
    for is_sampled, calibration in calibrations.items():
        for source, levels in calibration.snapshot().items():
            seen, stood = levels["looked_at"], levels["accepted"]
            rates = " ".join(f"{taken / looked:.2f}" for taken, looked in zip(stood, seen, strict=True) if looked)
            lines.append(
                f"{source}{' (sampled)' if is_sampled else ''}: of {sum(seen)} drafts that were looked at "
                f"{sum(stood)} stood; by depth {rates or 'none'}"
            )
    total = plans.total()
    lines.append(f"blocks, of {total}:")
    for (nodes, anchors, masks), count in plans.most_common(_SHOWN):
        lines.append(f"  {count / total:4.0%}  {_block(nodes, anchors, masks, has_masks)}")
    return lines


def _block(nodes: int, anchors: int, masks: int, has_masks: bool) -> str:
    if not nodes and not anchors:
        return "one token at a time: nothing paid"
    drafts = f"{nodes} draft{'s' * (nodes != 1)}" if nodes else "no drafts"
    places = f"{anchors} place{'s' * (anchors != 1)}"
    if not has_masks:
        return drafts
    return drafts + (f", {masks} masks at {places}" if anchors else ", no masks: those of before still serve")
