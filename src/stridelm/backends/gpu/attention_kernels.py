"""Triton kernels for attention: a row sees the cached prefix and its own ancestors.

    attend_spans   softmax over one span of positions
    join_spans     the results of all spans, combined in order

A program takes a run of rows (each the child of the previous row), all query heads of one key-value head, and a span of
positions. The keys that such rows see are on one path, and are read in the order of their positions, wherever they are
stored:

    position   0 .. start-1       in the cache's pages
               start .. + chain   the block's first rows, a chain: row 0, row 1, ...
               beyond             ancestors among drafts and masks: `tails` holds their offsets

Other branches of the tree are never read. Spans begin at fixed positions and are joined in order by the second kernel.
So a row's sum runs over the same keys in the same order as it will once they are all part of the prefix, and its bits
are the same.

Shape letters: M query rows of a program (rows x heads), T keys of a span, D head size, S spans, X heads of a key head.
"""

# Triton's language only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from stridelm.backends.gpu.dependent_launch import await_inputs, let_next_begin


@triton.jit(do_not_specialize=["begin_row", "end_row"])
def attend_spans(
    query, keys, values, runs, starts, chains, tails, tables, sums, bests, totals, scale, begin_row, end_row,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr,
    SPAN: tl.constexpr, SPANS: tl.constexpr, PAGES: tl.constexpr, PAGE: tl.constexpr, TAIL: tl.constexpr,
    WINDOW: tl.constexpr, TREE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Each row's softmax over one span: the weighted sum of values, the best score and the sum of weights. Only results
    of the rows from `begin_row` up to `end_row` are stored."""
    run, head, span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(runs + run * 4)
    count = tl.load(runs + run * 4 + 1)
    block = tl.load(runs + run * 4 + 2)
    depth = tl.load(runs + run * 4 + 3)
    start = tl.load(starts + block)
    chain = tl.load(chains + block)
    first = start + depth
    end = first + count
    begin = span * SPAN
    is_idle = (count == 0) | (begin >= end) | (first_row + count <= begin_row) | (first_row >= end_row)
    if WINDOW > 0:
        is_idle |= begin + SPAN <= first - WINDOW + 1
    if is_idle:
        await_inputs(AHEAD)
        return
    SHARE: tl.constexpr = H // G
    at_M = tl.arange(0, BM)
    row_M = at_M // SHARE
    at_D = tl.arange(0, BD)
    held_M = (row_M < count) & (row_M < ROWS)
    held_MD = held_M[:, None] & (at_D < D)[None, :]
    of_MD = (first_row + row_M)[:, None] * (H * D) + (head * SHARE + at_M % SHARE)[:, None] * D + at_D[None, :]
    position_M = first + row_M
    position_T = begin + tl.arange(0, SPAN)
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
    # Keys of the prefix were written by earlier steps: no need to wait for this step's.
    if begin + SPAN <= start:
        key_TD = tl.load(keys + at_TD, mask=held_TD, other=0.0)
        value_TD = tl.load(values + at_TD, mask=held_TD, other=0.0)
        await_inputs(AHEAD)
    else:
        await_inputs(AHEAD)
        key_TD = tl.load(keys + at_TD, mask=held_TD, other=0.0)
        value_TD = tl.load(values + at_TD, mask=held_TD, other=0.0)
    query_MD = tl.load(query + of_MD, mask=held_MD, other=0.0)
    score_MT = tl.dot(query_MD, tl.trans(key_TD), input_precision="ieee") * scale
    sees_MT = (position_T[None, :] <= position_M[:, None]) & is_key_T[None, :]
    if WINDOW > 0:
        sees_MT &= position_T[None, :] > position_M[:, None] - WINDOW
    score_MT = tl.where(sees_MT, score_MT, float("-inf"))
    best_M = tl.max(score_MT, axis=1)
    # A row may see nothing of a span that other rows of its run see.
    floor_M = tl.where(best_M == float("-inf"), 0.0, best_M)
    weight_MT = tl.exp(score_MT - floor_M[:, None])
    sum_MD = tl.dot(weight_MT.to(value_TD.dtype), value_TD, input_precision="ieee")
    let_next_begin(AHEAD)
    number_M = first_row + row_M
    is_noted_M = held_M & (number_M >= begin_row) & (number_M < end_row)
    to_M = ((number_M - begin_row) * H + head * SHARE + at_M % SHARE) * SPANS + span
    tl.store(
        sums + to_M.to(tl.int64)[:, None] * D + at_D[None, :], sum_MD, mask=is_noted_M[:, None] & (at_D < D)[None, :]
    )
    tl.store(bests + to_M, best_M, mask=is_noted_M)
    tl.store(totals + to_M, tl.sum(weight_MT, axis=1), mask=is_noted_M)


@triton.jit(do_not_specialize=["begin_row"])
def join_spans(
    sums, bests, totals, blocks, depths, starts, output, begin_row,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BX: tl.constexpr, SPAN: tl.constexpr,
    SPANS: tl.constexpr, WINDOW: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Combine one row's spans, in order, for the query heads of one key head."""
    local, head = tl.program_id(0), tl.program_id(1)
    row = begin_row + local
    position = tl.load(starts + tl.load(blocks + row)) + tl.load(depths + row)
    await_inputs(AHEAD)
    begin = position * 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0) // SPAN
    SHARE: tl.constexpr = H // G
    at_X = tl.arange(0, BX)
    at_D = tl.arange(0, BD)
    held_XD = (at_X < SHARE)[:, None] & (at_D < D)[None, :]
    from_X = (local * H + head * SHARE + at_X) * SPANS
    sum_XD = tl.zeros((BX, BD), tl.float32)
    total_X = tl.zeros((BX,), tl.float32)
    best_X = tl.full((BX,), float("-inf"), tl.float32)
    for span in range(begin, position // SPAN + 1):
        own_best_X = tl.load(bests + from_X + span, mask=at_X < SHARE, other=0.0)
        own_total_X = tl.load(totals + from_X + span, mask=at_X < SHARE, other=0.0)
        own_XD = tl.load(sums + (from_X + span).to(tl.int64)[:, None] * D + at_D[None, :], mask=held_XD, other=0.0)
        higher_X = tl.maximum(best_X, own_best_X)
        shrink_X, own_shrink_X = tl.exp(best_X - higher_X), tl.exp(own_best_X - higher_X)
        sum_XD = sum_XD * shrink_X[:, None] + own_XD * own_shrink_X[:, None]
        total_X = total_X * shrink_X + own_total_X * own_shrink_X
        best_X = higher_X
    let_next_begin(AHEAD)
    to_XD = row * (H * D) + (head * SHARE + at_X)[:, None] * D + at_D[None, :]
    tl.store(output + to_XD, (sum_XD / total_X[:, None]).to(output.dtype.element_ty), mask=held_XD)
