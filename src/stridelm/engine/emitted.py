"""Converts what a backend's own step emitted into the engine's types: the `Block` that was run and its `Commit`."""

from functools import lru_cache

from stridelm.decode.commit import ending, finite
from stridelm.layout import make_block
from stridelm.stepper import Emitted, OwnRows
from stridelm.types import MASKS, NO_DRAFT, ROOT, Block, Commit, DraftTree, Sequence


def commit_of(sequence: Sequence, emitted: Emitted) -> Commit:
    count = len(emitted.tokens)
    assert count, "a text that goes on got nothing"
    kept, sources = _accepted(count) if emitted.rows is None else _path(emitted.path, emitted.rows, count)
    confidence, reason = finite(emitted.confidence), ending(sequence, emitted.tokens)
    return Commit(kept, emitted.tokens, sources, confidence, reason, emitted.alternatives)


def block_of(sequence: Sequence, emitted: Emitted, drafts: int) -> Block:
    """The block that was run. For a traced sequence it holds the actual tokens, otherwise only the right numbers of
    rows and drafts. A step that has no drafts yet has masks off its pending row."""
    rows = emitted.rows
    if rows is not None:
        if not sequence.is_traced:
            return _planned_shape(rows)
        return _planned(sequence.cached, sequence.tokens[-1], emitted.drafts, rows, emitted.scores)
    if not sequence.is_traced:
        return _shape(drafts, bool(emitted.drafts))
    # Without scores: the backend does not report how likely its drafts were.
    chain = DraftTree.chain(emitted.drafts, MASKS)
    tree = DraftTree(chain.tokens, chain.parents, chain.sources)
    return _run(sequence.cached, sequence.tokens[-1], tree, drafts)


@lru_cache
def _shape(drafts: int, has_drafts: bool) -> Block:
    return _run(0, 0, DraftTree.chain([0] * drafts, MASKS) if has_drafts else NO_DRAFT, drafts)


def _run(start: int, pending: int, tree: DraftTree, masks: int) -> Block:
    return make_block(start, [pending], tree, anchors=range(ROOT, len(tree)) if masks else (), masks=masks)


@lru_cache(maxsize=4096)
def _planned_shape(rows: OwnRows) -> Block:
    return _planned(0, 0, (0,) * len(rows.parents), rows)


def _planned(start: int, pending: int, drafts: tuple[int, ...], rows: OwnRows, scores: tuple[float, ...] = ()) -> Block:
    tree = DraftTree(drafts, rows.parents, rows.sources, scores)
    return make_block(start, [pending], tree, anchors=rows.anchors, masks=rows.masks)


def _path(path: tuple[int, ...], rows: OwnRows, count: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The rows that are kept, and the source of each token."""
    sources = tuple(rows.sources[node] for node in path)
    return (0, *(node + 1 for node in path))[:count], (*sources, "model")[:count]


@lru_cache
def _accepted(count: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The rows that are kept if `count` tokens are emitted, and the source of each token."""
    return tuple(range(count)), (*(MASKS,) * (count - 1), "model")
