"""Triton kernels that draft for the next step, from the masks that hang off the row where the walk ended.

    find_candidates   each mask's likeliest tokens
    project_inputs    the sequential head's inputs from masks and tokens: three products in one launch
    grow_depth        one depth of the tree: its nodes' tokens, and the sequential head's states after reading them

The sequential head's inputs from a mask's output and from a token can be computed for all candidates before the first
is chosen (`read`, `before`), and so can the change of a candidate's score per unit of state (`moves`). What has to be
done depth by depth is one product with the state: it gives both the best candidate and the next state.

Shape letters: B places, K masks, N candidates, X nodes of a depth, S state of the sequential head, T tiles of the
vocabulary, C model width. Within a product: M rows, K inputs, N outputs.
"""

# Triton's language only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
import torch
import triton
import triton.language as tl

from stridelm.backends.gpu.dependent_launch import await_inputs, fetch_rows, let_next_begin
from stridelm.backends.gpu.sampling_kernels import best_logit, gumbel, key_at

_NONE = tl.constexpr(-0x7F800001)
"""`_sortable` of minus infinity."""
_EPSILON = tl.constexpr(torch.finfo(torch.float32).eps)
"""The epsilon of the sequential head's norms."""


@triton.jit
def _sortable(bits):
    """The bits of a float32 as an integer with the same order: a warp finds the largest integer in one instruction.
    Applied twice, it gives the original bits."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["real"])
def find_candidates(
    logits, best, noisy, ids, ends_at, starts, inverses, keys, tokens, scores, real,
    NODES: tl.constexpr, K: tl.constexpr, N: tl.constexpr, V: tl.constexpr, TILES: tl.constexpr,
    TILE_TILE: tl.constexpr, VT: tl.constexpr, SAMPLES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """One mask of the chain at which the walk ended: its likeliest tokens, by noisy scores if any place SAMPLES. They
    are in the tiles with the best maxima, so only these are read. Of equal scores the first is taken. A place's pending
    token is stored behind its candidates."""
    let_next_begin(AHEAD)
    await_inputs(AHEAD)
    place, depth = tl.program_id(0), tl.program_id(1)
    row = real + (place * NODES + tl.load(ends_at + place)) * K + depth
    at_T = tl.arange(0, TILE_TILE)
    at_N = tl.arange(0, N)
    if SAMPLES:
        best_T = tl.load(noisy + (place * K + depth) * TILES + at_T, mask=at_T < TILES, other=float("-inf"))
        best_T = best_T.to(tl.float32)
    else:
        best_T = tl.load(best + row * TILES + at_T, mask=at_T < TILES, other=float("-inf"))
    order_T = _sortable(best_T.to(tl.int32, bitcast=True))
    tile_N = tl.full((N,), TILES, tl.int32)
    for number in range(N):
        top = tl.max(order_T, axis=0)
        tile = tl.min(tl.where(order_T == top, at_T, TILES), axis=0)
        tile = tl.where(top > _NONE, tile, TILES)  # a small vocabulary has fewer tiles
        tile_N = tl.where(at_N == number, tile, tile_N)
        order_T = tl.where(at_T == tile, _NONE, order_T)
    token_NV = tile_N[:, None] * VT + tl.arange(0, VT)[None, :]
    logit_NV = tl.load(logits + row.to(tl.int64) * V + token_NV, mask=token_NV < V, other=float("-inf"))
    if SAMPLES:
        inverse = tl.load(inverses + place)
        if inverse > 0:
            key = key_at(keys, place, tl.load(starts + place) + 1 + depth)
            score_NV = (logit_NV - best_logit(best, row, TILES, TILE_TILE)) * inverse
            logit_NV = (score_NV.to(tl.float64) + gumbel(token_NV, key)).to(tl.float32)
    order_NV = _sortable(logit_NV.to(tl.int32, bitcast=True))
    own = place * (K * N + 1)
    for number in range(N):
        top = tl.max(order_NV)
        token = tl.min(tl.where(order_NV == top, token_NV, V - 1))
        tl.store(tokens + own + depth * N + number, token)
        tl.store(scores + (place * K + depth) * N + number, _sortable(top).to(tl.float32, bitcast=True))
        order_NV = tl.where(token_NV == token, _NONE, order_NV)
    if depth == 0:
        tl.store(tokens + own + K * N, tl.load(ids + place * NODES))


@triton.jit
def _product(
    table, row_M, is_row_M, weight, out_N, OUTPUTS: tl.constexpr, C: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Rows of a table times the transpose of an OUTPUTS x C matrix. UNIT: each row is normed, by a scale at the end."""
    sum_MN = tl.zeros((BM, BN), tl.float32)
    square_MK = tl.zeros((BM, BK), tl.float32)
    at_MK = row_M.to(tl.int64)[:, None] * C + tl.arange(0, BK)[None, :]
    at_KN = out_N[None, :] * C + tl.arange(0, BK)[:, None]
    for k in range(0, C, BK):
        is_in_K = k + tl.arange(0, BK) < C
        x_MK = tl.load(table + at_MK + k, mask=is_row_M[:, None] & is_in_K[None, :], other=0.0)
        weight_KN = tl.load(weight + at_KN + k, mask=(out_N < OUTPUTS)[None, :] & is_in_K[:, None], other=0.0)
        sum_MN = tl.dot(x_MK, weight_KN, sum_MN, input_precision="ieee")
        if UNIT:
            square_MK += x_MK.to(tl.float32) * x_MK.to(tl.float32)
    if UNIT:
        sum_MN *= (1 / tl.sqrt(tl.sum(square_MK, axis=1) / C + _EPSILON))[:, None]
    return sum_MN


@triton.jit
def _store_product(to, sum_MN, row_M, is_row_M, out_N, OUTPUTS: tl.constexpr):
    held_MN = is_row_M[:, None] & (out_N < OUTPUTS)[None, :]
    tl.store(to + row_M[:, None] * OUTPUTS + out_N[None, :], sum_MN.to(to.dtype.element_ty), mask=held_MN)


@triton.jit(do_not_specialize=["real"])
def project_inputs(
    tokens, ends_at, hidden, head, embedding, write, before_weight, output, bias, moves, before, read, real,
    B: tl.constexpr, NODES: tl.constexpr, K: tl.constexpr, N: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """A tile of one of three products. The first tiles of rows are tokens: the first S outputs are `moves`, the next
    2 S are `before`. The last tiles of rows are masks, for `read`."""
    let_next_begin(AHEAD)
    TOKENS: tl.constexpr = B * (K * N + 1)
    TOKEN_TILES: tl.constexpr = (TOKENS + BM - 1) // BM
    MOVE_TILES: tl.constexpr = (S + BN - 1) // BN
    WIDE_TILES: tl.constexpr = (2 * S + BN - 1) // BN
    column, tile = tl.program_id(0), tl.program_id(1)
    if tile < TOKEN_TILES:
        row_M = tile * BM + tl.arange(0, BM)
        is_row_M = row_M < TOKENS
        if column < MOVE_TILES:
            out_N = column * BN + tl.arange(0, BN)
            fetch_rows(write, column * BN, BN, S, C, AHEAD)
            await_inputs(AHEAD)
            token_M = tl.load(tokens + row_M, mask=is_row_M, other=0)
            sum_MN = _product(head, token_M, is_row_M, write, out_N, S, C, BM, BN, BK, False)
            _store_product(moves, sum_MN, row_M, is_row_M, out_N, S)
        else:
            first = (column - MOVE_TILES) * BN
            out_N = first + tl.arange(0, BN)
            fetch_rows(before_weight, first, BN, 2 * S, C, AHEAD)
            await_inputs(AHEAD)
            token_M = tl.load(tokens + row_M, mask=is_row_M, other=0)
            sum_MN = _product(embedding, token_M, is_row_M, before_weight, out_N, 2 * S, C, BM, BN, BK, True)
            _store_product(before, sum_MN, row_M, is_row_M, out_N, 2 * S)
    elif column < WIDE_TILES:
        row_M = (tile - TOKEN_TILES) * BM + tl.arange(0, BM)
        is_row_M = row_M < B * K
        out_N = column * BN + tl.arange(0, BN)
        fetch_rows(output, column * BN, BN, 2 * S, C, AHEAD)
        await_inputs(AHEAD)
        node_M = row_M // K * NODES + tl.load(ends_at + row_M // K, mask=is_row_M, other=0)
        sum_MN = _product(
            hidden, real + node_M * K + row_M % K, is_row_M, output, out_N, 2 * S, C, BM, BN, BK, True
        )  # fmt: skip
        sum_MN += tl.load(bias + out_N, mask=out_N < 2 * S, other=0.0).to(tl.float32)[None, :]
        _store_product(read, sum_MN, row_M, is_row_M, out_N, 2 * S)


@triton.jit
def _load_rows(matrix, row_R, is_row_R, at_K, S: tl.constexpr):
    """Some rows of a matrix S wide."""
    held_RK = is_row_R[:, None] & (at_K < S)[None, :]
    return tl.load(matrix + row_R[:, None] * S + at_K[None, :], mask=held_RK, other=0.0)


@triton.jit
def _load_half(inputs, row, at, SECOND: tl.constexpr, S: tl.constexpr):
    """One half of the sequential head's inputs: the gate's, or (SECOND) the candidate state's."""
    return tl.load(inputs + row * (2 * S) + SECOND * S + at, mask=at < S, other=0.0).to(tl.float32)


@triton.jit
def _update_state(old, gate, fresh):
    """The next state: old + sigmoid(gate) * (tanh(fresh) - old)."""
    return old + (2 / (1 + tl.exp(-2 * fresh)) - 1 - old) / (1 + tl.exp(-gate))


@triton.jit
def _load_state(state, source, before, pending, read, mask, at, S: tl.constexpr, FIRST: tl.constexpr):
    """The state of the parent node. The pending token's (FIRST) follows from that token and the first mask alone."""
    if FIRST:
        gate = _load_half(before, pending, at, False, S) + _load_half(read, mask, at, False, S)
        fresh = _load_half(before, pending, at, True, S) + _load_half(read, mask, at, True, S)
        value = _update_state(0.0, gate, fresh)
    else:
        value = tl.load(state + source * S + at, mask=at < S, other=0.0)
    return value


@triton.jit(do_not_specialize=["depth"])
def grow_depth(
    tokens, scores, moves, before, read, carry, inverses, sources, ranks, nodes, state, new_state, ids, depth,
    NODES: tl.constexpr, X: tl.constexpr, X_BEFORE: tl.constexpr, RANKS: tl.constexpr, K: tl.constexpr,
    N: tl.constexpr, S: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, HELD: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr, MOVED: tl.constexpr, SAMPLES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """A tile of the state of one node of one place; the first tile's program also stores the node's token. The FIRST
    depth holds the pending token's children; states of the LAST depth are never read.

    The next depth may begin once this one has awaited its inputs, not before. So it may load what was written before
    this depth ahead of its own wait. After the wait only the state is left to be loaded and multiplied; the first HELD
    tiles of the weights are in registers by then. J counts the inputs of a tile of the state in pairs: the gate's, and
    the candidate state's."""
    number, place = tl.program_id(1), tl.program_id(2)
    at_S, at_J = tl.program_id(0) * BS + tl.arange(0, BS), tl.arange(0, 2 * BS)
    at_N, at_K = tl.arange(0, N), tl.arange(0, BK)
    of_J = tl.program_id(0) * BS + at_J // 2
    is_in_J, is_in_N = of_J < S, at_N < N
    of_J += at_J % 2 * S
    first = place * (K * N + 1)
    pending, of_N = first + K * N, first + (depth - 1) * N + at_N
    source = place * X_BEFORE + tl.load(sources + number)
    own_rank, node = tl.load(ranks + number), tl.load(nodes + number)
    inverse = tl.load(inverses + place)
    carry_tiles = ()
    move_tiles = ()
    if MOVED and not LAST:
        for tile in tl.static_range(HELD):
            carry_tiles += (_load_rows(carry, of_J, is_in_J, tile * BK + at_K, S),)
    if FIRST:
        await_inputs(AHEAD)  # candidates and their projections were written by the kernel right before
    score_N = tl.load(scores + (place * K + depth - 1) * N + at_N)
    token_N = tl.load(tokens + of_N)
    if MOVED:
        for tile in tl.static_range(HELD):
            move_tiles += (_load_rows(moves, of_N, is_in_N, tile * BK + at_K, S),)
        if not LAST:
            at_NJ = of_N[:, None] * (2 * S) + of_J[None, :]
            before_NJ = tl.load(before + at_NJ, mask=is_in_J[None, :], other=0.0).to(tl.float32)
            read_J = tl.load(read + (place * K + depth) * (2 * S) + of_J, mask=is_in_J, other=0.0).to(tl.float32)
    if not FIRST:
        await_inputs(AHEAD)
    let_next_begin(AHEAD)
    if MOVED:
        # All tiles are loaded before any is used: each product begins with a barrier.
        old_S = _load_state(state, source, before, pending, read, place * K, at_S, S, FIRST)
        state_tiles = ()
        for tile in tl.static_range(HELD):
            at_tile_K = tile * BK + at_K
            state_tiles += (_load_state(state, source, before, pending, read, place * K, at_tile_K, S, FIRST),)
        move_NK = tl.zeros((N, BK), tl.float32)
        carry_JK = tl.zeros((2 * BS, BK), tl.float32)
        for tile in tl.static_range(HELD):
            move_NK += move_tiles[tile] * state_tiles[tile][None, :]
            if not LAST:
                carry_JK += carry_tiles[tile] * state_tiles[tile][None, :]
        for k in range(HELD * BK, S, BK):
            state_K = _load_state(state, source, before, pending, read, place * K, k + at_K, S, FIRST)
            move_NK += _load_rows(moves, of_N, is_in_N, k + at_K, S) * state_K[None, :]
            if not LAST:
                carry_JK += _load_rows(carry, of_J, is_in_J, k + at_K, S) * state_K[None, :]
        more_N = tl.sum(move_NK, axis=1)
        if SAMPLES:
            more_N *= tl.where(inverse > 0, inverse, 1.0)
        score_N += more_N
    chosen = tl.full((), 0, tl.int32)
    for rank in range(RANKS):
        at_best = tl.argmax(score_N, axis=0)
        chosen = tl.where(rank == own_rank, at_best, chosen)
        score_N = tl.where(at_N == at_best, float("-inf"), score_N)
    is_chosen_N = at_N == chosen
    if MOVED and not LAST:
        input_J = tl.sum(carry_JK, axis=1) + read_J
        input_J += tl.sum(tl.where(is_chosen_N[:, None], before_NJ, 0.0), axis=0)
        gate_S, fresh_S = tl.split(tl.reshape(input_J, (BS, 2)))
        tl.store(new_state + (place * X + number) * S + at_S, _update_state(old_S, gate_S, fresh_S), mask=at_S < S)
    if tl.program_id(0) == 0:
        tl.store(ids + place * NODES + node, tl.sum(tl.where(is_chosen_N, token_N, 0), axis=0))
