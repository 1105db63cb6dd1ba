"""The planner: which drafts to verify, and where to hang masks, to get the most tokens per second.

A step's block is worth the tokens that it is expected to emit, plus what its masks are expected to add to the next
step; it costs its time, at the current rate of tokens per second. The block with the largest difference wins, and a
single row is always among the candidates: if nothing pays, decoding is plain.

    worth = 1 + sum of the path probabilities of its nodes
              + sum over the places where the path may end: probability x what masks there add to the next step
              - rate x seconds

Masks that hang off an ancestor of the place where the path ends are of use, too: those for tokens that are known by
then are skipped, and the sequential head reads these tokens instead. The same holds for the masks of the previous step.

Shape letters: P places (the text's end, then the nodes), A sets of anchors, M numbers of masks.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from stridelm.types import ROOT, DraftTree

NEVER = 10**6
"""The distance to an anchor that is not an ancestor."""
_ALL_SETS = 5
"""Up to this many places, every set of anchors is tried; beyond, single anchors and sets of the likeliest ends."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The costs and gains that a plan is chosen by."""

    rate: float
    """Tokens per second at the current pace."""
    seconds: np.ndarray
    """[rows of this sequence] -> seconds of the step, with masks counted as real rows; never decreasing."""
    pending: int
    """Rows that the sequence has in any case."""
    mask_options: tuple[int, ...] = ()
    """Possible numbers of masks per chain; empty without masks."""
    mask_seconds: float = 0.0
    """Extra seconds of a step with any masks."""
    mask_row_seconds: float = 0.0
    """Extra seconds per mask row, compared with a real row."""
    fresh: Items[Items[float]] = ()
    """[option][tokens since its anchor] -> tokens that such masks add to the next step, net of their cost."""
    left: Items[float] = (0.0,)
    """[tokens accepted in this step] -> the same for the previous step's masks; the last entry holds for all beyond."""


@dataclass(frozen=True, slots=True)
class Plan:
    nodes: int
    """Number of nodes, the first ones of the tree."""
    anchors: tuple[int, ...]
    """Nodes, or ROOT, that masks hang off."""
    masks: int
    """Per anchor."""
    worth: float


def choose(tree: DraftTree, outlook: Outlook) -> Plan:
    """The best plan. The tree's nodes are in decreasing order of path probability, and its scores are probabilities."""
    paths = path_probabilities(tree)
    left_P = np.asarray(outlook.left)[np.minimum((0, *tree.depths), len(outlook.left) - 1)]
    fresh_M = np.array([[*row, 0.0] for row in outlook.fresh])
    most_to_come = max(0.0, float(left_P.max()), float(fresh_M.max(initial=0.0)))
    best = Plan(0, (), 0, -np.inf)
    emitted, ends_P = 1.0, np.zeros(len(tree) + 1)
    ends_P[0] = 1.0
    for nodes in range(len(tree) + 1):
        if nodes:
            parent, path = tree.parents[nodes - 1], paths[nodes - 1]
            ends_P[nodes], emitted = path, emitted + path
            ends_P[parent + 1] = max(0.0, ends_P[parent + 1] - path)
        base = emitted - outlook.rate * outlook.seconds[outlook.pending + nodes]
        plan = _anchored(tree.parents[:nodes], base, ends_P[: nodes + 1], left_P[: nodes + 1], fresh_M, outlook)
        if plan.worth > best.worth:
            best = plan
        # No later plan takes less time, so none can be worth more than this.
        if base + sum(paths[nodes:]) + most_to_come <= best.worth:
            break
    return best


def path_probabilities(tree: DraftTree) -> list[float]:
    """Per node, the probability that it and all its ancestors are accepted."""
    paths: list[float] = []
    for parent, score in zip(tree.parents, tree.scores, strict=True):
        paths.append(score * (1.0 if parent == ROOT else paths[parent]))
    return paths


def _anchored(
    parents: tuple[int, ...], base: float, ends_P: np.ndarray, left_P: np.ndarray, fresh_M: np.ndarray, outlook: Outlook
) -> Plan:
    """The best anchors for these nodes; `base`: their worth without masks."""
    nodes = len(parents)
    bare = Plan(nodes, (), 0, base + float(ends_P @ left_P))
    if not outlook.mask_options:
        return bare
    masks_M1 = np.array(outlook.mask_options)[:, None]
    sets_AP, since_AP, sizes_A = _all_sets(parents) if nodes < _ALL_SETS else _likely_sets(parents, ends_P)
    brings_MAP = fresh_M[:, np.minimum(since_AP, fresh_M.shape[1] - 1)]
    rows_MA = sizes_A * masks_M1
    first = outlook.pending + nodes
    seconds_MA = outlook.seconds[first + rows_MA] - outlook.seconds[first]
    seconds_MA += outlook.mask_seconds + outlook.mask_row_seconds * rows_MA
    worth_MA = np.maximum(brings_MAP, left_P) @ ends_P - outlook.rate * seconds_MA
    option, top = np.unravel_index(int(worth_MA.argmax()), worth_MA.shape)
    worth = base + float(worth_MA[option, top])
    if worth <= bare.worth:
        return bare
    anchors = tuple(int(place) - 1 for place in np.flatnonzero(sets_AP[top]))
    return Plan(nodes, anchors, outlook.mask_options[option], worth)


Sets = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Sets of places; each place's distance to its nearest ancestor in a set; the sizes of the sets."""


@lru_cache(maxsize=4096)
def _all_sets(parents: tuple[int, ...]) -> Sets:
    """All sets but the empty one. Cached: small trees of the same shape occur again and again."""
    places = len(parents) + 1
    chosen = [each for size in range(1, places + 1) for each in combinations(range(places), size)]
    sets_AP = np.zeros((len(chosen), places), dtype=bool)
    for row, each in enumerate(chosen):
        sets_AP[row, list(each)] = True
    return sets_AP, _since(sets_AP, _distances(parents)), sets_AP.sum(axis=1)


def _likely_sets(parents: tuple[int, ...], ends_P: np.ndarray) -> Sets:
    """Single places, and the two likeliest ends, the three likeliest, ..., all."""
    places, distances_PP = len(parents) + 1, _distances(parents)
    order_P = np.argsort(-ends_P, kind="stable")
    rank_P = np.empty(places, dtype=int)
    rank_P[order_P] = np.arange(places)
    counts = np.arange(2, places + 1)
    nearest_PP = np.minimum.accumulate(distances_PP[order_P], axis=0)
    return (
        np.concatenate([np.eye(places, dtype=bool), rank_P[None, :] < counts[:, None]]),
        np.concatenate([distances_PP, nearest_PP[1:]]),
        np.concatenate([np.ones(places, dtype=int), counts]),
    )


def _since(sets_AP: np.ndarray, distances_PP: np.ndarray) -> np.ndarray:
    return np.where(sets_AP[:, :, None], distances_PP[None], NEVER).min(axis=1)


@lru_cache(maxsize=4096)
def _distances(parents: tuple[int, ...]) -> np.ndarray:
    """[anchor][end] -> number of tokens from an anchor to an end below it."""
    places = len(parents) + 1
    distances_PP = np.full((places, places), NEVER)
    distances_PP[0, 0] = 0
    for node, parent in enumerate(parents):
        above_P = distances_PP[:, parent + 1]
        distances_PP[:, node + 1] = np.where(above_P < NEVER, above_P + 1, NEVER)
        distances_PP[node + 1, node + 1] = 0
    return distances_PP


def gains(acceptance: Items[float], row_seconds: Items[float], rate: float) -> list[list[float]]:
    """[masks of a chain][tokens since its anchor] -> tokens that the chain adds to the next step, at the best length of
    draft: each token is worth the probability that all up to it are accepted, less the time of its row. `acceptance`:
    by depth of mask, as long as the longest chain."""
    longest = len(acceptance)
    found = [[0.0] * (longest + 1) for _ in range(longest + 1)]
    for since in range(longest):
        best, worth, path = 0.0, 0.0, 1.0
        for depth in range(since, longest):
            path *= acceptance[depth]
            worth += path - rate * row_seconds[depth - since]
            if worth > best:
                best = worth
            # An older chain knows less: if the estimates say otherwise, they rest on few observations.
            row = found[depth + 1]
            row[since] = best if not since or best < row[since - 1] else row[since - 1]
    return found
