"""Triton kernels that verify the drafts of a step without the host.

    accept_drafts   walk the tree from its root, draw at each node, follow the child that holds the draw
    compact_cache   move the keys and values of the accepted rows together

A place holds one text. Its rows are the nodes of a tree, the pending token first, and a chain of masks off each node.
The rows of a step are the nodes of all places, then the masks.

Shape letters: N nodes, T tiles of the vocabulary, E tokens that end a text.
"""

# Triton's language only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from stridelm.backends.gpu.dependent_launch import await_inputs, let_next_begin


@triton.jit
def accept_drafts(
    ids, parents, logits, best, best_tokens, exponentials, noisy, noisy_tokens, starts, begins, rooms, ends,
    ends_at, kept, results, counts,
    NODES: tl.constexpr, NODE_TILE: tl.constexpr, DRAWS: tl.constexpr, V: tl.constexpr,
    TILES: tl.constexpr, TILE_TILE: tl.constexpr, ENDS: tl.constexpr, SAMPLES: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """One place: the emitted tokens, the new length of its text, and the row at which the walk ended. `rooms` counts
    the tokens that may still be written; a place with none left stays as it is. If any place SAMPLES, a draw is the
    best of the noisy scores. `results`, for the host: the number of tokens, the tokens, their confidences (as float
    bits), and the drafts."""
    let_next_begin(AHEAD)
    await_inputs(AHEAD)
    place = tl.program_id(0)
    room = tl.load(rooms + place)
    at_T = tl.arange(0, TILE_TILE)
    at_N = tl.arange(0, NODE_TILE)
    end_E = tl.load(ends + tl.arange(0, ENDS))
    parent_N = tl.load(parents + at_N, mask=at_N < NODES, other=-2)
    id_N = tl.load(ids + place * NODES + at_N, mask=at_N < NODES, other=-1)
    node = place * 0
    token = place * 0
    count = place * 0
    goes_on = room > 0
    own = results + place * (2 * DRAWS + NODES)
    tl.store(own + 2 * DRAWS + at_N, id_N, mask=(at_N > 0) & (at_N < NODES))
    for draw in range(DRAWS):
        if goes_on:
            row = place * NODES + node
            best_T = tl.load(best + row * TILES + at_T, mask=at_T < TILES, other=float("-inf"))
            part_T = tl.load(exponentials + row * TILES + at_T, mask=at_T < TILES, other=0.0)
            top, tile = tl.max(best_T, axis=0, return_indices=True)
            sure = 1 / tl.sum(part_T * tl.exp(best_T - top), axis=0)
            if SAMPLES:
                drawn = row * TILES
                noisy_T = tl.load(noisy + drawn + at_T, mask=at_T < TILES, other=float("-inf"))
                token = tl.load(noisy_tokens + drawn + tl.argmax(noisy_T, axis=0))
                sure *= tl.exp(tl.load(logits + row.to(tl.int64) * V + token) - top)
            else:
                token = tl.load(best_tokens + row * TILES + tile)
            token = tl.minimum(token, V - 1)  # logits that are not finite have no best token
            tl.store(own + 1 + draw, token)
            tl.store(own + 1 + DRAWS + draw, sure.to(tl.int32, bitcast=True))
            tl.store(kept + place * DRAWS + draw, node)
            tl.store(ends_at + place, node)
            count += 1
            child = tl.max(tl.where((parent_N == node) & (id_N == token), at_N, -1), axis=0)
            is_end = (tl.max((end_E == token).to(tl.int32), axis=0) > 0) | (count == room)
            room = tl.where(is_end, 0, room)
            goes_on = (room > 0) & (child >= 0)
            node = tl.where(child >= 0, child, node)
    tl.store(counts + place, count)
    tl.store(begins + place, tl.load(starts + place))
    tl.store(own, count)
    if count > 0:
        # Also for an answer that has ended: its rows keep running, behind the kept tokens, until the host notices.
        tl.store(starts + place, tl.load(starts + place) + count)
        tl.store(ids + place * NODES, token)
        tl.store(rooms + place, tl.where(room > 0, room - count, 0))


@triton.jit
def compact_cache(
    memory, kept, counts, begins, tables, stride,
    DRAWS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, PAGES: tl.constexpr, PAGE: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """One layer's keys or values of one place. Rows move towards the start, in order, so none is overwritten early."""
    let_next_begin(AHEAD)
    await_inputs(AHEAD)
    part, place = tl.program_id(0), tl.program_id(1)
    count, start = tl.load(counts + place), tl.load(begins + place)
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
