"""Triton kernels: the next step's drafts from the masks that hang off the row where the walk ended.

    candidates   each mask's likeliest tokens
    grown        one depth of the tree: its nodes' tokens, and the sequential head's states once it has read them

What the sequential head takes from a mask's output and from a token is known for all candidates before the first is
chosen (`read`, `before`), and so is what a candidate's score gains per unit of state (`moves`). What is left to do one
depth after the other is one product with the state: it says both which candidate is best, and what the head carries on.

Shape letters: B places, K masks, N candidates, X nodes of a depth, S state of the sequential head, T tiles of the
vocabulary, C model width.
"""

# What a kernel is written in only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from stridelm.model.gpu.ahead import await_inputs, let_next_begin
from stridelm.model.gpu.sample import gumbel, key_at, top_of


@triton.jit(do_not_specialize=["real"])
def candidates(
    logits, best, noisy, hidden, ids, ends_at, starts, inverses, keys, tokens, scores, outputs, real,
    NODES: tl.constexpr, K: tl.constexpr, N: tl.constexpr, V: tl.constexpr, TILES: tl.constexpr,
    TILE_TILE: tl.constexpr, VT: tl.constexpr, C: tl.constexpr, BC: tl.constexpr, SAMPLES: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """One mask of the chain that matters: its likeliest tokens, by noisy scores where some place SAMPLES, and what the
    output head read of it. They lie in the tiles with the best maxima, so only these are read. Behind a place's
    candidates its pending token is noted."""
    let_next_begin(AHEAD)
    await_inputs(AHEAD)
    place, depth = tl.program_id(0), tl.program_id(1)
    row = real + (place * NODES + tl.load(ends_at + place)) * K + depth
    at_T = tl.arange(0, TILE_TILE)
    at_N = tl.arange(0, N)
    if SAMPLES:
        best_T = tl.load(noisy + (place * K + depth) * TILES + at_T, mask=at_T < TILES, other=float("-inf"))
    else:
        best_T = tl.load(best + row * TILES + at_T, mask=at_T < TILES, other=float("-inf"))
    tile_N = tl.full((N,), TILES, tl.int32)
    for number in range(N):
        top, tile = tl.max(best_T, axis=0, return_indices=True)
        tile = tl.where(top > float("-inf"), tile, TILES)  # a small vocabulary has fewer tiles
        tile_N = tl.where(at_N == number, tile, tile_N)
        best_T = tl.where(at_T == tile, float("-inf"), best_T)
    token_NV = tile_N[:, None] * VT + tl.arange(0, VT)[None, :]
    logit_NV = tl.load(logits + row.to(tl.int64) * V + token_NV, mask=token_NV < V, other=float("-inf"))
    if SAMPLES:
        inverse = tl.load(inverses + place)
        if inverse > 0:
            key = key_at(keys, place, tl.load(starts + place) + 1 + depth)
            score_NV = (logit_NV - top_of(best, row, TILES, TILE_TILE)) * inverse
            logit_NV = (score_NV.to(tl.float64) + gumbel(token_NV, key)).to(tl.float32)
    to = place * (K * N + 1) + depth * N
    for number in range(N):
        best_N, at_best_N = tl.max(logit_NV, axis=1, return_indices=True)
        top, winner = tl.max(best_N, axis=0, return_indices=True)
        token = tl.sum(tl.where(at_N == winner, tile_N * VT + at_best_N, 0), axis=0)
        token = tl.minimum(token, V - 1)
        tl.store(tokens + to + number, token)
        tl.store(scores + (place * K + depth) * N + number, top)
        logit_NV = tl.where(token_NV == token, float("-inf"), logit_NV)
    if depth == 0:
        tl.store(tokens + place * (K * N + 1) + K * N, tl.load(ids + place * NODES))
    at_C = tl.arange(0, BC)
    value = tl.load(hidden + row * C + at_C, mask=at_C < C, other=0.0)
    tl.store(outputs + (place * K + depth) * C + at_C, value, mask=at_C < C)


@triton.jit(do_not_specialize=["depth"])
def grown(
    tokens, scores, moves, before, read, carry, inverses, sources, ranks, nodes, state, new_state, ids, depth,
    NODES: tl.constexpr, X: tl.constexpr, X_BEFORE: tl.constexpr, RANKS: tl.constexpr, K: tl.constexpr,
    N: tl.constexpr, S: tl.constexpr, BX: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr, MOVED: tl.constexpr, SAMPLES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """A tile of the state of one place's nodes of a depth; the first tile's program notes their tokens, too.

    `depth` 0 is the pending token itself (FIRST): it is known. The last depth's nodes (LAST) are read by nobody."""
    let_next_begin(AHEAD)
    await_inputs(AHEAD)
    place = tl.program_id(1)
    at_S = tl.program_id(0) * BS + tl.arange(0, BS)
    at_X, at_N = tl.arange(0, BX), tl.arange(0, N)
    is_node_X = at_X < X
    own = place * (K * N + 1)
    gate_XS = tl.zeros((BX, BS), tl.float32)
    fresh_XS = tl.zeros((BX, BS), tl.float32)
    held_XS = is_node_X[:, None] & (at_S < S)[None, :]
    old_XS = tl.zeros((BX, BS), tl.float32)
    if FIRST:
        chosen_X = tl.full((BX,), K * N, tl.int32)
    else:
        of_N = (place * K + depth - 1) * N + at_N
        score_XN = tl.zeros((BX, N), tl.float32) + tl.load(scores + of_N)[None, :]
        if MOVED:
            source_X = place * X_BEFORE + tl.load(sources + at_X, mask=is_node_X, other=0)
            more_XN = tl.zeros((BX, N), tl.float32)
            for k in range(0, S, BK):
                at_K = k + tl.arange(0, BK)
                is_in_XK = is_node_X[:, None] & (at_K < S)[None, :]
                state_XK = tl.load(state + source_X[:, None] * S + at_K[None, :], mask=is_in_XK, other=0.0)
                state_XK = state_XK.to(carry.dtype.element_ty)
                at_KN = (own + (depth - 1) * N + at_N)[None, :] * S + at_K[:, None]
                move_KN = tl.load(moves + at_KN, mask=(at_K < S)[:, None], other=0.0)
                more_XN = tl.dot(state_XK, move_KN, more_XN, input_precision="ieee")
                if not LAST:
                    held_KS = (at_S < S)[None, :] & (at_K < S)[:, None]
                    gate_KS = tl.load(carry + at_S[None, :] * S + at_K[:, None], mask=held_KS, other=0.0)
                    gate_XS = tl.dot(state_XK, gate_KS, gate_XS, input_precision="ieee")
                    fresh_KS = tl.load(carry + (S + at_S)[None, :] * S + at_K[:, None], mask=held_KS, other=0.0)
                    fresh_XS = tl.dot(state_XK, fresh_KS, fresh_XS, input_precision="ieee")
            if SAMPLES:
                inverse = tl.load(inverses + place)
                more_XN *= tl.where(inverse > 0, inverse, 1.0)
            score_XN += more_XN
            if not LAST:
                old_XS = tl.load(state + source_X[:, None] * S + at_S[None, :], mask=held_XS, other=0.0)
        rank_X = tl.load(ranks + at_X, mask=is_node_X, other=0)
        chosen_X = tl.zeros((BX,), tl.int32)
        for rank in range(RANKS):
            at_best_X = tl.argmax(score_XN, axis=1)
            chosen_X = tl.where(rank_X == rank, at_best_X, chosen_X)
            score_XN = tl.where(at_N[None, :] == at_best_X[:, None], float("-inf"), score_XN)
        chosen_X += (depth - 1) * N
        if tl.program_id(0) == 0:
            token_X = tl.load(tokens + own + chosen_X, mask=is_node_X, other=0)
            node_X = tl.load(nodes + at_X, mask=is_node_X, other=0)
            tl.store(ids + place * NODES + node_X, token_X, mask=is_node_X)
    if MOVED:
        if not LAST:
            of_XS = (own + chosen_X)[:, None] * (2 * S) + at_S[None, :]
            of_S = (place * K + depth) * (2 * S) + at_S
            gate_XS += tl.load(before + of_XS, mask=held_XS, other=0.0).to(tl.float32)
            gate_XS += tl.load(read + of_S, mask=at_S < S, other=0.0).to(tl.float32)[None, :]
            fresh_XS += tl.load(before + of_XS + S, mask=held_XS, other=0.0).to(tl.float32)
            fresh_XS += tl.load(read + of_S + S, mask=at_S < S, other=0.0).to(tl.float32)[None, :]
            open_XS = 1 / (1 + tl.exp(-gate_XS))
            fresh_XS = 2 / (1 + tl.exp(-2 * fresh_XS)) - 1
            to_XS = (place * X + at_X)[:, None] * S + at_S[None, :]
            tl.store(new_state + to_XS, old_XS + open_XS * (fresh_XS - old_XS), mask=held_XS)
