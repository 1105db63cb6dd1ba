"""What a step of a backend's own emitted, in the words of the engine: what was run and what stands."""

from functools import lru_cache

from stridelm.contracts import Emitted
from stridelm.decode.commit import ending, finite
from stridelm.layout import make_block
from stridelm.types import MASKS, NO_DRAFT, ROOT, Block, Commit, DraftTree, Sequence


def commit_of(sequence: Sequence, emitted: Emitted) -> Commit:
    count = len(emitted.tokens)
    assert count, "a text that goes on got nothing"
    kept, sources = _accepted(count)
    return Commit(kept, emitted.tokens, sources, finite(emitted.confidence), ending(sequence, emitted.tokens))


def block_of(sequence: Sequence, emitted: Emitted, drafts: int) -> Block:
    """What was run: for a traced sequence with its tokens, else only its shape, to count rows and drafts by. A
    step that holds no drafts yet has masks off its pending row."""
    if not sequence.is_traced:
        return _shape(drafts, bool(emitted.drafts))
    # How likely the backend held its drafts it does not say.
    chain = DraftTree.chain(emitted.drafts, MASKS)
    tree = DraftTree(chain.tokens, chain.parents, chain.sources)
    return _run(sequence.cached, sequence.tokens[-1], tree, drafts)


@lru_cache
def _shape(drafts: int, has_drafts: bool) -> Block:
    return _run(0, 0, DraftTree.chain([0] * drafts, MASKS) if has_drafts else NO_DRAFT, drafts)


def _run(start: int, pending: int, tree: DraftTree, masks: int) -> Block:
    return make_block(start, [pending], tree, anchors=range(ROOT, len(tree)) if masks else (), masks=masks)


@lru_cache
def _accepted(count: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The rows that stand if `count` tokens are emitted, and who proposed these."""
    return tuple(range(count)), (*(MASKS,) * (count - 1), "model")
