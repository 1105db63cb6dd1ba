"""Rows: from parent pointers to ids, positions, the attention rule and the rows whose logits are wanted.

The rule is one sentence: a row sees the cached prefix and its own ancestors (itself among them), nothing else.

    cached prefix  p0 p1 d1 d2 e1        p0-p1 pending, p1-d1-d2 and p1-e1 drafted
    p0   # # # #    #
    p1   # # # #    #  #
    d1   # # # #    #  #  #
    d2   # # # #    #  #  #  #
    e1   # # # #    #  #  .  .  #

A chain of masks may hang off the last pending row and off any node, and asks what comes after it. Real rows see none:

    cached prefix  p0 d1 m1 m2 n1 n2     p0-d1 as above, p0-m1-m2 and d1-n1-n2 masks
    p0   # # # #    #
    d1   # # # #    #  #
    m1   # # # #    #  .  #
    m2   # # # #    #  .  #  #
    n1   # # # #    #  #  .  .  #
    n2   # # # #    #  #  .  .  #  #

Shape letters: Q rows of a step, M mask rows, W wanted rows, q rows of one block.
"""

from collections.abc import Sequence as Items
from functools import lru_cache

import numpy as np

from stridelm.types import NO_DRAFT, ROOT, Block, DraftTree, RowKind, Rows


def make_block(
    start: int,
    pending: Items[int],
    tree: DraftTree = NO_DRAFT,
    *,
    anchors: Items[int] = (),
    masks: int = 0,
    defers_masks: bool = False,
    reads_logits: bool = True,
    reads_all: bool = False,
    layers: tuple[int, ...] = (),
) -> Block:
    """A chain of pending tokens, a tree off its last one, and `masks` masks off each anchor: ROOT or a tree's node.

    Logits are wanted of the last pending row (`reads_all`: of every pending row), of every draft and every mask.
    """
    assert len(pending) > 0, "a block needs a pending row for its tree to hang off"
    assert masks > 0 or not anchors, "a chain needs a mask"
    count, real, total = len(pending), len(pending) + len(tree), len(pending) + len(tree) + masks * len(anchors)
    # ROOT is -1: relative to the first node's row, that is the last pending row.
    parents = [*range(ROOT, count - 1), *(count + parent for parent in tree.parents)]
    for anchor in anchors:
        parents += [count + anchor, *range(len(parents), len(parents) + masks - 1)]
    return Block(
        start=start,
        tokens=(*pending, *tree.tokens, *(0,) * (total - real)),
        parents=tuple(parents),
        kinds=(RowKind.REAL,) * real + (RowKind.MASK,) * (total - real),
        wanted=tuple(range(0 if reads_all else count - 1, total)) if reads_logits else (),
        pending=count,
        tree=tree,
        mask_anchors=tuple(anchors),
        masks=masks,
        defers_masks=defers_masks,
        layers=layers,
    )


def lineage(parents: Items[int]) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are ancestors of which (q x q, a row counts as its own), and every row's depth, the first being 0.

    By pointer doubling: a row that knows its ancestors at a distance below m, and the one at distance m, also gets that
    one's ancestors. So a prompt of a thousand rows takes ten rounds and no loop over rows.
    """
    count = len(parents)
    if list(parents) == list(range(ROOT, count - 1)):
        return _chain(count)
    # Row `count` stands for the prefix: its own parent, without ancestors.
    jump = np.append(np.asarray(parents, dtype=np.int64), ROOT)
    jump[jump == ROOT] = count
    sees = np.eye(count + 1, dtype=bool)
    sees[count, count] = False
    while (jump[:count] != count).any():
        sees |= sees[jump]
        jump = jump[jump]
    return sees[:count, :count], sees[:count].sum(axis=1) - 1


@lru_cache(maxsize=16)
def _chain(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The lineage of plain decoding and of prompts: the same in step after step."""
    return np.tri(count, dtype=bool), np.arange(count)


def lay_out(blocks: Items[Block]) -> Rows:
    """Pack the blocks of a step."""
    ancestors: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    parents: list[np.ndarray] = []
    segments: list[slice] = []
    wanted: list[int] = []
    wanted_segments: list[slice] = []
    scored_segments: list[slice] = []
    rows = 0
    for block in blocks:
        sees, depths = lineage(block.parents)
        ancestors.append(sees)
        positions.append(block.start + depths)
        within = np.asarray(block.parents, dtype=np.int64)
        parents.append(within if rows == 0 else np.where(within == ROOT, ROOT, within + rows))
        segments.append(slice(rows, rows + len(block)))
        end = len(wanted) + len(block.wanted)
        wanted_segments.append(slice(len(wanted), end))
        scored_segments.append(slice(len(wanted), end - block.defers_masks * len(block.mask_anchors) * block.masks))
        wanted.extend(rows + row for row in block.wanted)
        rows += len(block)
    mask_rows_M = np.flatnonzero(np.fromiter((kind for block in blocks for kind in block.kinds), np.int8, rows))
    return Rows(
        ids_Q=np.fromiter((token for block in blocks for token in block.tokens), np.int64, rows),
        positions_Q=np.concatenate(positions),
        parents_Q=np.concatenate(parents),
        starts=tuple(block.start for block in blocks),
        segments=tuple(segments),
        ancestors=tuple(ancestors),
        wanted_W=np.asarray(wanted, dtype=np.int64),
        wanted_segments=tuple(wanted_segments),
        scored_segments=tuple(scored_segments),
        mask_rows_M=mask_rows_M,
        mask_depths_M=_mask_depths(blocks, ancestors) if len(mask_rows_M) else mask_rows_M,
        layers=tuple(sorted({layer for block in blocks for layer in block.layers})),
    )


def _mask_depths(blocks: Items[Block], ancestors: Items[np.ndarray]) -> np.ndarray:
    """How many masks each mask row sees of its block, itself included."""
    depths: list[np.ndarray] = []
    for block, sees in zip(blocks, ancestors, strict=True):
        mask_rows = np.flatnonzero(np.asarray(block.kinds))
        depths.append(sees[np.ix_(mask_rows, mask_rows)].sum(axis=1))
    return np.concatenate(depths)


def visible(start: int, ancestors: np.ndarray, positions: np.ndarray, window: int | None) -> np.ndarray | None:
    """What each of a block's q rows sees of the prefix and the block: q x (start + q), or None if everything.

    A window counts positions, not slots: a row sees rows that are fewer than `window` positions before it.
    """
    count = len(positions)
    if ancestors.all() and (window is None or int(positions.max()) < window):
        return None
    sees = np.concatenate([np.ones((count, start), dtype=bool), ancestors], axis=1)
    if window is not None:
        behind = positions[:, None] - np.concatenate([np.arange(start), positions])[None, :]
        sees &= behind < window
    return sees
