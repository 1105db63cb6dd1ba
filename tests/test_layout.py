"""The row layout against a brute-force walk up the parent pointers."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stridelm.layout import lay_out, lineage, make_block, visible
from stridelm.types import ROOT, DraftTree, RowKind


@st.composite
def trees(draw: st.DrawFn, most: int = 12) -> DraftTree:
    """Any tree whose parents come before their children."""
    count = draw(st.integers(0, most))
    parents = tuple(draw(st.integers(ROOT, index - 1)) for index in range(count))
    tokens = tuple(draw(st.lists(st.integers(0, 99), min_size=count, max_size=count)))
    return DraftTree.of(tokens, parents, "any")


def ancestors_by_walking(parents: tuple[int, ...], row: int) -> list[int]:
    """The row itself, its parent, and so on up to the prefix."""
    found = []
    while row != ROOT:
        found.append(row)
        row = parents[row]
    return found


@given(trees(most=40))
def test_lineage_equals_walking_up(tree: DraftTree) -> None:
    sees, depths = lineage(tree.parents)
    for row in range(len(tree)):
        expected = ancestors_by_walking(tree.parents, row)
        assert np.flatnonzero(sees[row]).tolist() == sorted(expected)
        assert depths[row] == len(expected) - 1


@given(
    st.integers(0, 30),
    st.lists(st.integers(0, 99), min_size=1, max_size=5),
    trees(),
    st.integers(1, 20) | st.none(),
    st.integers(0, 3),
)
def test_a_row_sees_the_prefix_and_its_ancestors_within_the_window(
    start: int, pending: list[int], tree: DraftTree, window: int | None, masks: int
) -> None:
    block = make_block(start, pending, tree, anchors=range(ROOT, len(tree)) if masks else (), masks=masks)
    rows = lay_out([block])
    sees = visible(start, rows.ancestors[0], rows.positions_Q, window)
    if sees is None:
        sees = np.ones((len(block), start + len(block)), dtype=bool)
    for row in range(len(block)):
        mine = ancestors_by_walking(block.parents, row)
        position = start + len(mine) - 1
        assert rows.positions_Q[row] == position
        for column in range(start + len(block)):
            in_prefix = column < start
            other = column if in_prefix else rows.positions_Q[column - start]
            is_mine = in_prefix or column - start in mine
            assert sees[row, column] == (is_mine and (window is None or position - other < window))


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.integers(0, 99), min_size=1, max_size=4), trees(4)),
        min_size=1,
        max_size=4,
    )
)
def test_packing_keeps_blocks_apart(parts: list[tuple[int, list[int], DraftTree]]) -> None:
    blocks = [make_block(*part) for part in parts]
    rows = lay_out(blocks)
    assert len(rows.ids_Q) == sum(map(len, blocks))
    for index, block in enumerate(blocks):
        alone = lay_out([block])
        segment, wanted = rows.segments[index], rows.wanted_segments[index]
        assert rows.ids_Q[segment].tolist() == list(block.tokens)
        assert rows.positions_Q[segment].tolist() == alone.positions_Q.tolist()
        assert (rows.ancestors[index] == alone.ancestors[0]).all()
        assert (rows.wanted_W[wanted] - segment.start).tolist() == list(block.wanted)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.integers(0, 99), min_size=1, max_size=4), trees(5), st.integers(0, 4)),
        min_size=1,
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_masks_hang_off_their_anchors_and_count_their_depth(
    parts: list[tuple[int, list[int], DraftTree, int]], chance: random.Random
) -> None:
    blocks = [
        make_block(
            start,
            pending,
            tree,
            anchors=[node for node in range(ROOT, len(tree)) if masks and chance.random() < 0.6],
            masks=masks,
        )
        for start, pending, tree, masks in parts
    ]
    rows = lay_out(blocks)
    expected: list[tuple[int, int]] = []
    for block, segment in zip(blocks, rows.segments, strict=True):
        anchors = {anchor: block.pending + anchor for anchor in block.mask_anchors}
        for row in range(len(block)):
            lineage = ancestors_by_walking(block.parents, row)
            above = [block.kinds[ancestor] for ancestor in lineage]
            depth = above.count(RowKind.MASK)
            # Masks are at the end of a lineage, and their chain hangs off an anchor.
            assert above[:depth] == [RowKind.MASK] * depth
            if depth:
                assert lineage[depth] in anchors.values()
                expected.append((segment.start + row, depth))
        for anchor, row in anchors.items():
            wanted = [block.wanted[output] for output in range(len(block.wanted))[block.mask_outputs(anchor)]]
            assert [ancestors_by_walking(block.parents, mask)[depth] for depth, mask in enumerate(wanted, 1)] == [
                row
            ] * block.masks
    assert list(zip(rows.mask_rows_M.tolist(), rows.mask_depths_M.tolist(), strict=True)) == expected
    assert len(expected) == sum(block.masks * len(block.mask_anchors) for block in blocks)


def test_a_block_wants_the_last_pending_row_and_every_draft() -> None:
    block = make_block(7, [1, 2, 3], DraftTree.of((4, 5), (ROOT, ROOT), "two"))
    assert block.parents == (ROOT, 0, 1, 2, 2)
    assert block.wanted == (2, 3, 4)
    assert lay_out([block]).positions_Q.tolist() == [7, 8, 9, 10, 10]


def test_masks_come_behind_the_tree_anchor_by_anchor() -> None:
    block = make_block(7, [1, 2], DraftTree.chain([4, 5], "chain"), anchors=(ROOT, 1), masks=2)
    assert block.parents == (ROOT, 0, 1, 2, 1, 4, 3, 6)
    assert block.wanted == (1, 2, 3, 4, 5, 6, 7)
    rows = lay_out([block])
    assert rows.positions_Q.tolist() == [7, 8, 9, 10, 9, 10, 11, 12]
    assert rows.mask_rows_M.tolist() == [4, 5, 6, 7]
    assert rows.mask_depths_M.tolist() == [1, 2, 1, 2]
    assert (block.mask_outputs(ROOT), block.mask_outputs(1)) == (slice(3, 5), slice(5, 7))


def test_a_part_of_a_prompt_wants_nothing() -> None:
    assert make_block(0, [1, 2, 3], reads_logits=False).wanted == ()


@given(trees(), st.integers(0, 6), st.integers(0, 12))
def test_pruning_keeps_the_first_shallow_nodes(tree: DraftTree, depth: int, nodes: int) -> None:
    pruned = tree.pruned(depth, nodes)

    def paths(of: DraftTree) -> list[tuple[int, ...]]:
        return [tuple(of.tokens[node] for node in ancestors_by_walking(of.parents, row)) for row in range(len(of))]

    assert paths(pruned) == [path for path in paths(tree) if len(path) <= depth][:nodes]
