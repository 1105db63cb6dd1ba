"""Triton kernels for the products of a layer, fused with the operations before and after them.

    embed_rows      embeddings
    project_heads   query-key-value product, rotation; keys and values go straight into the cache
    add_product     product of attention's or the MLP's output, added to the residual
    gate_units      gate and up product, SiLU, their elementwise product
    norm_rows       the last norm
    score_rows      the output head, with every tile's best token and its part of the softmax's sum

A norm is a weight per input and a scale per row. The kernel that writes the residual also writes it times the weight of
the next norm, as `x`, and the sum of squares of its own outputs; a kernel that reads `x` scales its product at the end.
So the products' inner loops hold nothing but loads and dots.

A tile always has 64 rows and sums over the inputs in order: a row's bits do not depend on the other rows. Real rows
come first, then mask rows. The adapter is applied to mask rows in one of two ways:

    MERGED   mask rows read weights of their own, into which the adapter is merged and which are stored behind the
             base's; no tile holds both kinds of rows. No tile takes longer than a plain one, but a step reads twice as
             many weights: for small models, which are bound by latency rather than by memory bandwidth.
    LOW      the first programs of a tile of rows multiply them by the adapter's first factors, as if these were
             further rows of the weight. By the time the other programs have their own product, that result is ready
             for the second factor, which is applied at the tile's end, times the row's gate. Programs start in order,
             so none waits for one that cannot start.

Shape letters: M rows, C inputs, N outputs, R rank, H query heads, G key-value heads, D head size, I inner units,
S cache slots, V vocabulary.
"""

# Triton's language only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from stridelm.backends.gpu.dependent_launch import await_inputs, fetch_rows, let_next_begin
from stridelm.backends.gpu.product_tiles import (
    apply_down,
    apply_up,
    await_low,
    load_rows,
    load_up,
    load_weights,
    norm_scale,
    rows_of_tile,
)


@triton.jit
def embed_rows(
    ids, masks, table, mask_table, norm, residual, x, squares,
    C: tl.constexpr, BC: tl.constexpr, TILES: tl.constexpr, BT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """One row per program: its token's embedding, or, for a mask, the embedding of its depth."""
    await_inputs(AHEAD)
    row = tl.program_id(0)
    at = tl.arange(0, BC)
    depth = tl.load(masks + row)
    if depth > 0:
        value = tl.load(mask_table + (depth - 1) * C + at, mask=at < C, other=0.0)
    else:
        token = tl.maximum(tl.load(ids + row), 0).to(tl.int64)  # -1: there is no draft yet
        value = tl.load(table + token * C + at, mask=at < C, other=0.0)
    let_next_begin(AHEAD)
    value = value.to(tl.float32)
    tl.store(residual + row * C + at, value, mask=at < C)
    scale = tl.load(norm + at, mask=at < C, other=0.0).to(tl.float32)
    tl.store(x + row * C + at, (value * scale).to(x.dtype.element_ty), mask=at < C)
    tile = tl.arange(0, BT)
    total = tl.sum(value * value, axis=0)
    tl.store(squares + row * TILES + tile, tl.where(tile == 0, total, 0.0), mask=tile < TILES)


@triton.jit(do_not_specialize=["real", "M"])
def project_heads(
    x, squares, weight, bias, head_norms, down, up, low, done, cosine, sine,
    blocks, depths, offsets, masks, starts, tables, query, keys, values, real, M, eps,
    C: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, SPLIT: tl.constexpr,
    R: tl.constexpr, BR: tl.constexpr, PAGES: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    TILES: tl.constexpr, BT: tl.constexpr, MERGED: tl.constexpr, LOW: tl.constexpr, BIASED: tl.constexpr,
    HEAD_NORMED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """One head of one tile of rows, or one of SPLIT parts of it. The two halves of a head are separate products, since
    the rotation mixes them."""
    tile, own = tl.program_id(0), tl.program_id(1)
    row_M, end, of_masks = rows_of_tile(tile, real, M, BM, MERGED)
    has_masks = (tile + 1) * BM > real
    if LOW:
        if own < 3 * R // BR:
            if has_masks:
                await_inputs(AHEAD)
                scale_M = norm_scale(squares, row_M, end, eps, C, TILES, BT)
                apply_down(x, row_M, end, down, own, masks, scale_M, low, done, tile, C, 3 * R, BR, BK)
            return
        own -= 3 * R // BR
    head = own // SPLIT
    half_N = own % SPLIT * HALF + tl.arange(0, HALF)
    if MERGED:
        weight += of_masks.to(tl.int64) * ((H + 2 * G) * D * C)
    fetch_rows(weight, head * D + own % SPLIT * HALF, HALF, (H + 2 * G) * D, C, AHEAD)
    fetch_rows(weight, head * D + D // 2 + own % SPLIT * HALF, HALF, (H + 2 * G) * D, C, AHEAD)
    first, second = head * D, head * D + D // 2
    kind = (head >= H).to(tl.int32) + (head >= H + G).to(tl.int32)
    is_row_M = row_M < end
    is_half_N = half_N < D // 2
    # Indices that the end needs are loaded first: each of these loads depends on the previous one.
    block_M = tl.load(blocks + row_M, mask=is_row_M, other=0)
    start_M = tl.load(starts + block_M, mask=is_row_M, other=0)
    position_M = start_M + tl.load(depths + row_M, mask=is_row_M, other=0)
    place_M = start_M + tl.load(offsets + row_M, mask=is_row_M, other=0)
    page_M = tl.load(tables + block_M * PAGES + place_M // PAGE, mask=is_row_M, other=0)
    slot_M = page_M.to(tl.int64) * PAGE + place_M % PAGE
    angle_MN = position_M[:, None] * (D // 2) + half_N[None, :]
    cosine_MN = tl.load(cosine + angle_MN, mask=is_row_M[:, None] & is_half_N[None, :], other=0.0)
    sine_MN = tl.load(sine + angle_MN, mask=is_row_M[:, None] & is_half_N[None, :], other=0.0)
    if LOW:
        one_up_RN = load_up(up, half_N, first, D // 2, R)
        two_up_RN = load_up(up, half_N, second, D // 2, R)
    await_inputs(AHEAD)
    scale_M = norm_scale(squares, row_M, end, eps, C, TILES, BT)
    one_MN = tl.zeros((BM, HALF), tl.float32)
    two_MN = tl.zeros((BM, HALF), tl.float32)
    for k in range(0, C, BK):
        x_MK = load_rows(x, row_M, k, end, C, BK)
        one_MN = tl.dot(x_MK, load_weights(weight, half_N, first, D // 2, k, C, BK), one_MN, input_precision="ieee")
        two_MN = tl.dot(x_MK, load_weights(weight, half_N, second, D // 2, k, C, BK), two_MN, input_precision="ieee")
    let_next_begin(AHEAD)
    one_MN *= scale_M[:, None]
    two_MN *= scale_M[:, None]
    if LOW:
        if has_masks:
            await_low(done, tile, 3 * R // BR)
            one_MN += apply_up(low, row_M, end, one_up_RN, kind, R, 3)
            two_MN += apply_up(low, row_M, end, two_up_RN, kind, R, 3)
    if BIASED:
        one_MN += tl.load(bias + first + half_N, mask=is_half_N, other=0.0).to(tl.float32)[None, :]
        two_MN += tl.load(bias + second + half_N, mask=is_half_N, other=0.0).to(tl.float32)[None, :]
    # Round here, so that the compiler cannot fuse the sum with what follows in some variants and not in others.
    one_MN = one_MN.to(x.dtype.element_ty).to(tl.float32)
    two_MN = two_MN.to(x.dtype.element_ty).to(tl.float32)
    if HEAD_NORMED:
        if kind < 2:
            length_M = tl.sum(one_MN * one_MN, axis=1) + tl.sum(two_MN * two_MN, axis=1)
            turn_M = 1 / tl.sqrt(length_M / D + eps)
            one_N = tl.load(head_norms + kind * D + half_N, mask=is_half_N, other=0.0).to(tl.float32)
            two_N = tl.load(head_norms + kind * D + D // 2 + half_N, mask=is_half_N, other=0.0).to(tl.float32)
            one_MN = (one_MN * turn_M[:, None] * one_N[None, :]).to(x.dtype.element_ty).to(tl.float32)
            two_MN = (two_MN * turn_M[:, None] * two_N[None, :]).to(x.dtype.element_ty).to(tl.float32)
    if kind < 2:
        turned_MN = one_MN * cosine_MN - two_MN * sine_MN
        two_MN = two_MN * cosine_MN + one_MN * sine_MN
        one_MN = turned_MN
    stored = is_row_M[:, None] & is_half_N[None, :]
    if kind == 0:
        to_MN = query + row_M[:, None] * (H * D) + head * D + half_N[None, :]
        tl.store(to_MN, one_MN.to(query.dtype.element_ty), mask=stored)
        tl.store(to_MN + D // 2, two_MN.to(query.dtype.element_ty), mask=stored)
    else:
        at_MN = slot_M[:, None] * (G * D) + half_N[None, :]
        to_MN = keys + at_MN + (head - H) * D
        if kind == 2:
            to_MN = values + at_MN + (head - H - G) * D
        tl.store(to_MN, one_MN.to(keys.dtype.element_ty), mask=stored)
        tl.store(to_MN + D // 2, two_MN.to(keys.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["real", "M"])
def add_product(
    inputs, weight, bias, down, up, low, done, masks, residual, norm, x, squares, real, M,
    N: tl.constexpr, C: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
    MERGED: tl.constexpr, LOW: tl.constexpr, BIASED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """residual += inputs weight^T; also writes what the next norm needs of the sum."""
    tile, own = tl.program_id(0), tl.program_id(1)
    row_M, end, of_masks = rows_of_tile(tile, real, M, BM, MERGED)
    has_masks = (tile + 1) * BM > real
    if LOW:
        if own < R // BR:
            if has_masks:
                await_inputs(AHEAD)
                apply_down(inputs, row_M, end, down, own, masks, row_M * 0 + 1.0, low, done, tile, C, R, BR, BK)
            return
        own -= R // BR
    if MERGED:
        weight += of_masks.to(tl.int64) * (N * C)
    fetch_rows(weight, own * BN, BN, N, C, AHEAD)
    out_N = own * BN + tl.arange(0, BN)
    norm_N = tl.load(norm + out_N, mask=out_N < N, other=0.0).to(tl.float32)
    if LOW:
        up_RN = load_up(up, out_N, 0, N, R)
    await_inputs(AHEAD)
    at_MN = row_M[:, None] * N + out_N[None, :]
    stored = (row_M[:, None] < end) & (out_N[None, :] < N)
    before_MN = tl.load(residual + at_MN, mask=stored, other=0.0)
    sum_MN = tl.zeros((BM, BN), tl.float32)
    for k in range(0, C, BK):
        x_MK = load_rows(inputs, row_M, k, end, C, BK)
        sum_MN = tl.dot(x_MK, load_weights(weight, out_N, 0, N, k, C, BK), sum_MN, input_precision="ieee")
    let_next_begin(AHEAD)
    if LOW:
        if has_masks:
            await_low(done, tile, R // BR)
            sum_MN += apply_up(low, row_M, end, up_RN, 0, R, 1)
    if BIASED:
        sum_MN += tl.load(bias + out_N, mask=out_N < N, other=0.0).to(tl.float32)[None, :]
    sum_MN = before_MN + sum_MN
    tl.store(residual + at_MN, sum_MN, mask=stored)
    tl.store(x + at_MN, (sum_MN * norm_N[None, :]).to(x.dtype.element_ty), mask=stored)
    total_M = tl.sum(tl.where(stored, sum_MN * sum_MN, 0.0), axis=1)
    tl.store(squares + row_M * tl.cdiv(N, BN) + own, total_M, mask=row_M < end)


@triton.jit(do_not_specialize=["real", "M"])
def gate_units(
    x, squares, weight, down, up, low, done, masks, units, real, M, eps,
    N: tl.constexpr, C: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
    TILES: tl.constexpr, BT: tl.constexpr, MERGED: tl.constexpr, LOW: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up. The weight holds the N rows of gate, then those of up."""
    tile, own = tl.program_id(0), tl.program_id(1)
    row_M, end, of_masks = rows_of_tile(tile, real, M, BM, MERGED)
    has_masks = (tile + 1) * BM > real
    if LOW:
        if own < 2 * R // BR:
            if has_masks:
                await_inputs(AHEAD)
                scale_M = norm_scale(squares, row_M, end, eps, C, TILES, BT)
                apply_down(x, row_M, end, down, own, masks, scale_M, low, done, tile, C, 2 * R, BR, BK)
            return
        own -= 2 * R // BR
    if MERGED:
        weight += of_masks.to(tl.int64) * (2 * N * C)
    fetch_rows(weight, own * BN, BN, 2 * N, C, AHEAD)
    fetch_rows(weight, N + own * BN, BN, 2 * N, C, AHEAD)
    out_N = own * BN + tl.arange(0, BN)
    if LOW:
        gate_up_RN = load_up(up, out_N, 0, N, R)
        up_up_RN = load_up(up, out_N, N, N, R)
    await_inputs(AHEAD)
    gate_MN = tl.zeros((BM, BN), tl.float32)
    up_MN = tl.zeros((BM, BN), tl.float32)
    scale_M = norm_scale(squares, row_M, end, eps, C, TILES, BT)
    for k in range(0, C, BK):
        x_MK = load_rows(x, row_M, k, end, C, BK)
        gate_MN = tl.dot(x_MK, load_weights(weight, out_N, 0, N, k, C, BK), gate_MN, input_precision="ieee")
        up_MN = tl.dot(x_MK, load_weights(weight, out_N + N, 0, 2 * N, k, C, BK), up_MN, input_precision="ieee")
    let_next_begin(AHEAD)
    gate_MN *= scale_M[:, None]
    up_MN *= scale_M[:, None]
    if LOW:
        if has_masks:
            await_low(done, tile, 2 * R // BR)
            gate_MN += apply_up(low, row_M, end, gate_up_RN, 0, R, 2)
            up_MN += apply_up(low, row_M, end, up_up_RN, 1, R, 2)
    gate_MN = gate_MN.to(x.dtype.element_ty).to(tl.float32)
    up_MN = up_MN.to(x.dtype.element_ty).to(tl.float32)
    units_MN = gate_MN / (1 + tl.exp(-gate_MN)) * up_MN
    stored = (row_M[:, None] < end) & (out_N[None, :] < N)
    tl.store(units + row_M[:, None] * N + out_N[None, :], units_MN.to(units.dtype.element_ty), mask=stored)


@triton.jit
def norm_rows(x, norm, wanted, normed, eps, C: tl.constexpr, BC: tl.constexpr, AHEAD: tl.constexpr):
    """The output head's input for the wanted rows, one per program; row -1 is padding."""
    await_inputs(AHEAD)
    place = tl.program_id(0)
    row = tl.load(wanted + place)
    at = tl.arange(0, BC)
    held = (at < C) & (row >= 0)
    value = tl.load(x + row * C + at, mask=held, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, axis=0) / C + eps)
    weight = tl.load(norm + at, mask=at < C, other=0.0).to(tl.float32)
    let_next_begin(AHEAD)
    tl.store(normed + place * C + at, (value * scale * weight).to(normed.dtype.element_ty), mask=at < C)


@triton.jit
def score_rows(
    x, weight, bias, logits, best, best_token, exponentials, M,
    V: tl.constexpr, C: tl.constexpr, TILES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BIASED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Logits, and for every tile of tokens the best token, its logit, and the sum of e^(logit - best)."""
    await_inputs(AHEAD)
    # Tiles of rows that read the same weights run side by side, while the weights are in the cache.
    tile = tl.program_id(1)
    out_N = tile * BN + tl.arange(0, BN)
    row_M = tl.program_id(0) * BM + tl.arange(0, BM)
    sum_MN = tl.zeros((BM, BN), tl.float32)
    for k in range(0, C, BK):
        x_MK = load_rows(x, row_M, k, M, C, BK)
        sum_MN = tl.dot(x_MK, load_weights(weight, out_N, 0, V, k, C, BK), sum_MN, input_precision="ieee")
    if BIASED:
        sum_MN += tl.load(bias + out_N, mask=out_N < V, other=0.0).to(tl.float32)[None, :]
    stored = (row_M[:, None] < M) & (out_N[None, :] < V)
    at_MN = row_M[:, None].to(tl.int64) * V + out_N[None, :]
    tl.store(logits + at_MN, sum_MN, mask=stored)
    let_next_begin(AHEAD)
    sum_MN = tl.where(out_N[None, :] < V, sum_MN, float("-inf"))
    best_M, place_M = tl.max(sum_MN, axis=1, return_indices=True)
    at_M = row_M * TILES + tile
    tl.store(best + at_M, best_M, mask=row_M < M)
    tl.store(best_token + at_M, tile * BN + place_M, mask=row_M < M)
    tl.store(exponentials + at_M, tl.sum(tl.exp(sum_MN - best_M[:, None]), axis=1), mask=row_M < M)
