"""Triton kernel: a row sees the cached prefix and its own ancestors.

A program takes a run of rows, each the child of the one before it, and all query heads of one key-value head. The keys
that such rows see lie on one path, and are read in the order of their positions, wherever they lie:

    position   0 .. start-1       in the cache's pages
               start .. + chain   the block's pending rows, a chain: row 0, row 1, ...
               beyond             ancestors among drafts and masks: `tails` names their rows

So a row's sum runs over the same keys in the same order and the same tiles as it will once they all lie in the prefix.
What stands between, other branches of the tree, is never read.

Shape letters: R runs, M query rows of a program (rows x heads), T keys of a tile, D head size.
"""

# What a kernel is written in only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl


@triton.jit
def attended(
    query, keys, values, output, run_rows, run_counts, blocks, depths, starts, chains, tails, tables, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr,
    BT: tl.constexpr, PAGES: tl.constexpr, PAGE: tl.constexpr, TAIL: tl.constexpr, WINDOW: tl.constexpr,
    TREE: tl.constexpr,
):  # fmt: skip
    run, head = tl.program_id(0), tl.program_id(1)
    count = tl.load(run_counts + run)
    if count == 0:
        return
    first_row = tl.load(run_rows + run)
    block = tl.load(blocks + first_row)
    start = tl.load(starts + block)
    chain = tl.load(chains + block)
    first = start + tl.load(depths + first_row)
    end = first + count
    SHARE: tl.constexpr = H // G
    at_M = tl.arange(0, BM)
    row_M = at_M // SHARE
    at_D = tl.arange(0, BD)
    held_MD = (row_M < count)[:, None] & (row_M < ROWS)[:, None] & (at_D < D)[None, :]
    to_MD = (first_row + row_M)[:, None] * (H * D) + (head * SHARE + at_M % SHARE)[:, None] * D + at_D[None, :]
    query_MD = tl.load(query + to_MD, mask=held_MD, other=0.0)
    position_M = first + row_M
    best_M = tl.full((BM,), float("-inf"), tl.float32)
    total_M = tl.zeros((BM,), tl.float32)
    sum_MD = tl.zeros((BM, BD), tl.float32)
    begin = start * 0
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // BT * BT
    for tile in range(begin, end, BT):
        position_T = tile + tl.arange(0, BT)
        is_key_T = position_T < end
        place_T = position_T
        if TREE:
            beyond_T = position_T - start - chain
            tail_T = tl.load(tails + run * TAIL + beyond_T, mask=is_key_T & (beyond_T >= 0), other=0)
            place_T = tl.where(beyond_T >= 0, start + tail_T, position_T)
        page_T = tl.load(tables + block * PAGES + place_T // PAGE, mask=is_key_T, other=0)
        slot_T = page_T.to(tl.int64) * PAGE + place_T % PAGE
        at_TD = slot_T[:, None] * (G * D) + head * D + at_D[None, :]
        held_TD = is_key_T[:, None] & (at_D < D)[None, :]
        key_TD = tl.load(keys + at_TD, mask=held_TD, other=0.0)
        value_TD = tl.load(values + at_TD, mask=held_TD, other=0.0)
        score_MT = tl.dot(query_MD, tl.trans(key_TD), input_precision="ieee") * scale
        sees_MT = position_T[None, :] <= position_M[:, None]
        if WINDOW > 0:
            sees_MT &= position_T[None, :] > position_M[:, None] - WINDOW
        score_MT = tl.where(sees_MT, score_MT, float("-inf"))
        higher_M = tl.maximum(best_M, tl.max(score_MT, axis=1))
        # A row may see nothing of the first tiles of a window.
        floor_M = tl.where(higher_M == float("-inf"), 0.0, higher_M)
        weight_MT = tl.exp(score_MT - floor_M[:, None])
        shrink_M = tl.exp(best_M - floor_M)
        total_M = total_M * shrink_M + tl.sum(weight_MT, axis=1)
        sum_MD = sum_MD * shrink_M[:, None]
        sum_MD = tl.dot(weight_MT.to(value_TD.dtype), value_TD, sum_MD, input_precision="ieee")
        best_M = higher_M
    sum_MD = sum_MD / total_M[:, None]
    tl.store(output + to_MD, sum_MD.to(output.dtype.element_ty), mask=held_MD)
