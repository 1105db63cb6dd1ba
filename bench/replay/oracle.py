"""The least time in which a text can be written by any controller that knows what will stand: an upper bound.

By dynamic programming from the text's end: how long the rest takes from every length and every chain that may be left
then. Only drafts that stand are verified; drafting is paid for those alone.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.play import looked_up
from bench.replay.times import StepTimes
from bench.replay.trace import LONGEST, Trace


def least_milliseconds(trace: Trace, times: StepTimes, *, branches: bool = False, looks_up: bool = False) -> float:
    """With `branches` the second choice may be verified instead of the first where the first is wrong; with `looks_up`
    look-up's drafts may."""
    start, end = trace.prompt_length + 1, len(trace.tokens)
    # rest[length][used, masks]: the milliseconds from there; masks 0 for no chain, at used 0.
    rest = np.full((end + LONGEST + 2, LONGEST, LONGEST + 1), np.inf)
    rest[end:] = 0.0
    new_chain = np.array(
        [[times.forward(1 + drafts, masks) for masks in range(LONGEST + 1)] for drafts in range(LONGEST + 1)]
    )
    for length in range(end - 1, start - 1, -1):
        renewed = [_renewed(rest, length, drafts, new_chain[drafts]) for drafts in range(LONGEST + 1)]
        found = min(looked_up(trace, length)[0], end - 1 - length) if looks_up else 0
        for used in range(min(LONGEST, length - start + 1)):
            stood = _stood(trace, length, used, branches)
            for masks in (0, *range(used + 1, LONGEST + 1)) if not used else range(used + 1, LONGEST + 1):
                if masks and length - 2 - used < trace.first_anchor + 1 - 1:
                    continue
                drafted = 0 if not masks else min(stood, masks - used)
                best = np.inf
                for drafts in range(max(drafted, found) + 1):
                    over = drafts + 1 + used
                    kept = rest[length + drafts + 1, over, masks] if masks > over else rest[length + drafts + 1, 0, 0]
                    levels = times.level * drafts if drafts <= drafted else 0.0
                    if drafts <= found:
                        levels = 0.0
                    step = min(renewed[drafts], times.forward(1 + drafts) + kept)
                    best = min(best, step + levels)
                rest[length, used, masks] = best + times.around + times.plan
    return float(rest[start, 0, 0])


def _renewed(rest: np.ndarray, length: int, drafts: int, seconds: np.ndarray) -> float:
    """The best of all chains that may be hung off a row of a step whose drafts all stand."""
    after = rest[length + drafts + 1]
    return min(float((seconds[over + 1 :] + after[over, over + 1 :]).min()) for over in range(min(drafts + 1, LONGEST)))


def _stood(trace: Trace, length: int, used: int, branches: bool) -> int:
    """How many drafts of the longest chain can be accepted at this length."""
    anchor = length - 2 - used - trace.first_anchor
    if anchor < 0:
        return 0
    stood = int(trace.stood[anchor, used])
    if branches and used + stood < LONGEST and trace.second_stood[anchor, used, used + stood]:
        stood += 1
    return stood
