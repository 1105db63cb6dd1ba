"""Triton kernels: what a step's logits decide, without the host.

    settled      walk the tree from its root, draw at each node, follow the child that holds the draw
    gathered     move the keys and values of the accepted rows together
    candidates   the likeliest tokens of the masks that hang off the row where the walk ended
    cell         one step of the sequential head, for all nodes of a depth
    picked       the tokens of the next depth's nodes

A place is one text. Its rows are the pending token, the nodes of a tree, and a chain of masks off each of these.

Shape letters: B places, X nodes of a depth that have children, N candidates, S state of the sequential head, T tiles of
the vocabulary.
"""

# What a kernel is written in only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from stridelm.model.gpu.sample import gumbel, key_at, top_of


@triton.jit
def settled(
    ids, parents, logits, best, best_tokens, exponentials, noisy, noisy_tokens, starts, rooms, ends, ends_at, kept,
    emitted, sureness, counts,
    ROWS: tl.constexpr, NODES: tl.constexpr, NODE_TILE: tl.constexpr, DRAWS: tl.constexpr, V: tl.constexpr,
    TILES: tl.constexpr, TILE_TILE: tl.constexpr, ENDS: tl.constexpr, SAMPLES: tl.constexpr,
):  # fmt: skip
    """One place: what is emitted, where its text stands then, and which row it ended at. `rooms` counts the tokens that
    may still be written; a place without any is left as it is. Where some place SAMPLES, draws are the best of the
    noisy scores."""
    place = tl.program_id(0)
    room = tl.load(rooms + place)
    at_T = tl.arange(0, TILE_TILE)
    at_N = tl.arange(0, NODE_TILE)
    end_E = tl.load(ends + tl.arange(0, ENDS))
    parent_N = tl.load(parents + at_N, mask=at_N < NODES, other=-2)
    id_N = tl.load(ids + place * ROWS + at_N, mask=at_N < NODES, other=-1)
    node = place * 0
    token = place * 0
    count = place * 0
    goes_on = room > 0
    for draw in range(DRAWS):
        if goes_on:
            row = place * ROWS + node
            best_T = tl.load(best + row * TILES + at_T, mask=at_T < TILES, other=float("-inf"))
            part_T = tl.load(exponentials + row * TILES + at_T, mask=at_T < TILES, other=0.0)
            top, tile = tl.max(best_T, axis=0, return_indices=True)
            sure = 1 / tl.sum(part_T * tl.exp(best_T - top), axis=0)
            if SAMPLES:
                drawn = (place * NODES + node) * TILES
                noisy_T = tl.load(noisy + drawn + at_T, mask=at_T < TILES, other=float("-inf"))
                token = tl.load(noisy_tokens + drawn + tl.argmax(noisy_T, axis=0))
                sure *= tl.exp(tl.load(logits + row.to(tl.int64) * V + token) - top)
            else:
                token = tl.load(best_tokens + row * TILES + tile)
            tl.store(emitted + place * DRAWS + draw, token)
            tl.store(sureness + place * DRAWS + draw, sure)
            tl.store(kept + place * DRAWS + draw, node)
            tl.store(ends_at + place, node)
            count += 1
            child = tl.max(tl.where((parent_N == node) & (id_N == token), at_N, -1), axis=0)
            is_end = (tl.max((end_E == token).to(tl.int32), axis=0) > 0) | (count == room)
            room = tl.where(is_end, 0, room)
            goes_on = (room > 0) & (child >= 0)
            node = tl.where(child >= 0, child, node)
    tl.store(counts + place, count)
    if count > 0:
        # An answer that has ended stays where it is: its rows are run on until the host takes notice.
        if room > 0:
            tl.store(starts + place, tl.load(starts + place) + count)
            tl.store(ids + place * ROWS, token)
            tl.store(rooms + place, room - count)
        else:
            tl.store(rooms + place, 0)


@triton.jit
def gathered(
    memory, kept, counts, starts, rooms, tables, stride,
    DRAWS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, PAGES: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One layer's keys or values of one place. Rows move towards the start, in order, so none is lost."""
    part, place = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts + place)
    if tl.load(rooms + place) == 0:
        count = count * 0
    start = tl.load(starts + place) - count
    at = tl.arange(0, TILE)
    own = memory + part.to(tl.int64) * stride
    for draw in range(1, DRAWS):
        if draw < count:
            of, to = start + tl.load(kept + place * DRAWS + draw), start + draw
            if of != to:
                of_page = tl.load(tables + place * PAGES + of // PAGE).to(tl.int64)
                to_page = tl.load(tables + place * PAGES + to // PAGE).to(tl.int64)
                value = tl.load(own + (of_page * PAGE + of % PAGE) * SIZE + at, mask=at < SIZE, other=0.0)
                tl.store(own + (to_page * PAGE + to % PAGE) * SIZE + at, value, mask=at < SIZE)


@triton.jit
def candidates(
    logits, best, noisy, hidden, ends_at, starts, inverses, keys, tokens, scores, outputs,
    ROWS: tl.constexpr, NODES: tl.constexpr, MASKS: tl.constexpr, N: tl.constexpr, V: tl.constexpr,
    TILES: tl.constexpr, TILE_TILE: tl.constexpr, VT: tl.constexpr, C: tl.constexpr, BC: tl.constexpr,
    SAMPLES: tl.constexpr,
):  # fmt: skip
    """One mask of the chain that matters: its likeliest tokens, by noisy scores where some place SAMPLES, and what the
    output head read of it. They lie in the tiles with the best maxima, so only these are read."""
    place, depth = tl.program_id(0), tl.program_id(1)
    row = place * ROWS + NODES + tl.load(ends_at + place) * MASKS + depth
    at_T = tl.arange(0, TILE_TILE)
    at_N = tl.arange(0, N)
    if SAMPLES:
        best_T = tl.load(noisy + (place * MASKS + depth) * TILES + at_T, mask=at_T < TILES, other=float("-inf"))
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
    to = (place * MASKS + depth) * N
    for number in range(N):
        top = tl.max(tl.max(logit_NV, axis=1), axis=0)
        token = tl.min(tl.min(tl.where(logit_NV == top, token_NV, V - 1), axis=1), axis=0)
        tl.store(tokens + to + number, token)
        tl.store(scores + to + number, top)
        logit_NV = tl.where(token_NV == token, float("-inf"), logit_NV)
    at_C = tl.arange(0, BC)
    value = tl.load(hidden + row * C + at_C, mask=at_C < C, other=0.0)
    tl.store(outputs + (place * MASKS + depth) * C + at_C, value, mask=at_C < C)


@triton.jit
def cell(
    ids, embedding, before_weight, carry_weight, read, nodes, sources, state, new_state, count, depth,
    ROWS: tl.constexpr, X: tl.constexpr, X_BEFORE: tl.constexpr, MASKS: tl.constexpr, C: tl.constexpr,
    S: tl.constexpr, BX: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of the state of a tile of nodes: reads each node's token, and the state of the node that it hangs off.
    `read`: what comes of the mask's output, the same for all nodes of a depth. At the first depth there is no state."""
    at_S = tl.program_id(0) * BS + tl.arange(0, BS)
    row_X = tl.program_id(1) * BX + tl.arange(0, BX)
    is_row_X = row_X < count
    place_X, node_X = row_X // X, row_X % X
    held_XS = is_row_X[:, None] & (at_S < S)[None, :]
    token_X = tl.load(ids + place_X * ROWS + tl.load(nodes + node_X), mask=is_row_X, other=0).to(tl.int64)
    gate_XS = tl.zeros((BX, BS), tl.float32)
    fresh_XS = tl.zeros((BX, BS), tl.float32)
    squares_X = tl.zeros((BX,), tl.float32)
    for k in range(0, C, BK):
        at_K = k + tl.arange(0, BK)
        held = (at_S < S)[None, :] & (at_K < C)[:, None]
        is_in_XK = is_row_X[:, None] & (at_K < C)[None, :]
        before_XK = tl.load(embedding + token_X[:, None] * C + at_K[None, :], mask=is_in_XK, other=0.0)
        wide_XK = before_XK.to(tl.float32)
        squares_X += tl.sum(wide_XK * wide_XK, axis=1)
        before_XK = before_XK.to(before_weight.dtype.element_ty)
        weight_KS = tl.load(before_weight + at_S[None, :] * C + at_K[:, None], mask=held, other=0.0)
        gate_XS = tl.dot(before_XK, weight_KS, gate_XS, input_precision="ieee")
        weight_KS = tl.load(before_weight + (S + at_S)[None, :] * C + at_K[:, None], mask=held, other=0.0)
        fresh_XS = tl.dot(before_XK, weight_KS, fresh_XS, input_precision="ieee")
    scale_X = 1 / tl.sqrt(squares_X / C + 1.1920929e-07)
    to_XS = (place_X * MASKS + depth)[:, None] * (2 * S) + at_S[None, :]
    gate_XS = gate_XS * scale_X[:, None] + tl.load(read + to_XS, mask=held_XS, other=0.0).to(tl.float32)
    fresh_XS = fresh_XS * scale_X[:, None] + tl.load(read + to_XS + S, mask=held_XS, other=0.0).to(tl.float32)
    held_state_XS = tl.zeros((BX, BS), tl.float32)
    if X_BEFORE > 0:
        source_X = place_X * X_BEFORE + tl.load(sources + node_X)
        for k in range(0, S, BK):
            at_K = k + tl.arange(0, BK)
            held = (at_S < S)[None, :] & (at_K < S)[:, None]
            is_in_XK = is_row_X[:, None] & (at_K < S)[None, :]
            state_XK = tl.load(state + source_X[:, None] * S + at_K[None, :], mask=is_in_XK, other=0.0)
            state_XK = state_XK.to(carry_weight.dtype.element_ty)
            weight_KS = tl.load(carry_weight + at_S[None, :] * S + at_K[:, None], mask=held, other=0.0)
            gate_XS = tl.dot(state_XK, weight_KS, gate_XS, input_precision="ieee")
            weight_KS = tl.load(carry_weight + (S + at_S)[None, :] * S + at_K[:, None], mask=held, other=0.0)
            fresh_XS = tl.dot(state_XK, weight_KS, fresh_XS, input_precision="ieee")
        held_state_XS = tl.load(state + source_X[:, None] * S + at_S[None, :], mask=held_XS, other=0.0)
    open_XS = 1 / (1 + tl.exp(-gate_XS))
    fresh_XS = 2 / (1 + tl.exp(-2 * fresh_XS)) - 1
    tl.store(
        new_state + row_X[:, None] * S + at_S[None, :],
        held_state_XS + open_XS * (fresh_XS - held_state_XS),
        mask=held_XS,
    )


@triton.jit
def picked(
    tokens, scores, moves, state, inverses, children, ids, depth,
    ROWS: tl.constexpr, X: tl.constexpr, BRANCHES: tl.constexpr, MASKS: tl.constexpr, N: tl.constexpr,
    S: tl.constexpr, BS: tl.constexpr, MOVED: tl.constexpr, SAMPLES: tl.constexpr,
):  # fmt: skip
    """The children of one node of one place: the likeliest candidates, once the sequential head has had its say.
    `moves`: what a candidate's score gains per unit of state."""
    place, node = tl.program_id(0), tl.program_id(1)
    at_N = tl.arange(0, N)
    of_N = (place * MASKS + depth) * N + at_N
    score_N = tl.load(scores + of_N)
    token_N = tl.load(tokens + of_N)
    if MOVED:
        moved_N = tl.zeros((N,), tl.float32)
        for s in range(0, S, BS):
            at_S = s + tl.arange(0, BS)
            state_S = tl.load(state + (place * X + node) * S + at_S, mask=at_S < S, other=0.0)
            move_NS = tl.load(moves + of_N[:, None] * S + at_S[None, :], mask=(at_S < S)[None, :], other=0.0)
            moved_N += tl.sum(move_NS.to(tl.float32) * state_S[None, :], axis=1)
        if SAMPLES:
            inverse = tl.load(inverses + place)
            moved_N *= tl.where(inverse > 0, inverse, 1.0)
        score_N += moved_N
    for branch in range(BRANCHES):
        at = tl.argmax(score_N, axis=0)
        child = tl.load(children + node * BRANCHES + branch)
        token = tl.sum(tl.where(at_N == at, token_N, 0), axis=0)
        if child >= 0:
            tl.store(ids + place * ROWS + child, token)
        score_N = tl.where(at_N == at, float("-inf"), score_N)
