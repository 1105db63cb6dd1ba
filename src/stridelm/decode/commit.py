"""What all policies share: making the next block of a sequence, and deciding which tokens of a block are committed."""

import math
from collections.abc import Sequence as Items

from stridelm.arrays import pick_rows
from stridelm.layout import make_block
from stridelm.params import InputError
from stridelm.sampling import Drawer, confidence, drawer, likeliest
from stridelm.types import NO_DRAFT, ROOT, Block, Commit, DraftTree, FinishReason, Output, Sequence
from stridelm.verify import grammatical, proposals, walk


def reads_on(sequence: Sequence) -> bool:
    """Whether this step only reads a part of the prompt: more rows are pending than the scheduler allows."""
    return sequence.cached + sequence.allowance < len(sequence.tokens)


def lawful(sequence: Sequence, tree: DraftTree) -> DraftTree:
    """The part of a tree that the sequence's grammar allows: other tokens are never drawn, so they are not worth a
    row."""
    grammar = sequence.grammar
    if grammar is None:
        return tree
    written = sequence.output
    return grammatical(tree, lambda tokens: grammar.accepts(written, tokens))


def next_block(
    sequence: Sequence,
    tree: DraftTree = NO_DRAFT,
    *,
    anchors: Items[int] = (),
    masks: int = 0,
    defers_masks: bool = False,
    layers: tuple[int, ...] = (),
) -> Block:
    """The pending rows, the tree, and `masks` masks off each anchor, as far as there is room for them."""
    pending = sequence.tokens[sequence.cached : sequence.cached + sequence.allowance]
    if reads_on(sequence):
        return make_block(sequence.cached, pending, reads_logits=False, layers=layers)
    assert sequence.table is not None
    # Drafts that the table has no room for are dropped: fewer drafts are slower, never wrong.
    free = sequence.table.capacity - len(sequence.tokens)
    tree = tree.pruned(sequence.room - 1, free)
    useful = _useful_anchors(sequence, tree, anchors, masks)[: (free - len(tree)) // masks] if masks else []
    return make_block(
        sequence.cached, pending, tree, anchors=useful, masks=masks, defers_masks=defers_masks, layers=layers
    )


def _useful_anchors(sequence: Sequence, tree: DraftTree, anchors: Items[int], masks: int) -> list[int]:
    """The anchors whose masks are useful: there is room for a draft after the token that the anchor itself gives, and
    the chain stays within the context."""
    deepest = min(sequence.room - 3, sequence.context_length - len(sequence.tokens) - masks)
    depths = {ROOT: 0} | dict(enumerate(tree.depths))
    return [anchor for anchor in anchors if anchor in depths and depths[anchor] <= deepest]


def decide_all(
    sequences: list[Sequence],
    blocks: list[Block],
    outputs: list[Output],
    tolerance: float = 0.0,
    drawer: Drawer = drawer,
) -> list[Commit]:
    return [decide(*each, tolerance, drawer) for each in zip(sequences, blocks, outputs, strict=True)]


def decide(sequence: Sequence, block: Block, output: Output, tolerance: float = 0.0, drawer: Drawer = drawer) -> Commit:
    """Walk the block's tree with the sequence's own draws. Wanted row 0 is the last pending, row i + 1 is node i."""
    pending = tuple(range(block.pending))
    if not block.wanted:
        return Commit(kept=pending)
    tree = block.tree
    logits_WV = output.logits_WV[: 1 + len(tree)]  # without the masks, which come last
    draw = drawer(logits_WV, sequence, tolerance)
    accepted, emitted = walk(
        tree,
        lambda node, before: draw(node + 1, before, proposals(tree, node)),
        sequence.tokens,
        sequence.eos_ids,
    )
    tokens = tuple(emitted)
    drawn = [0, *(node + 1 for node in accepted)][: len(tokens)]
    drawn_WV = pick_rows(logits_WV, drawn)
    log_sums_W = None if output.log_sums_W is None else output.log_sums_W[drawn]
    return Commit(
        kept=(*pending, *(block.pending + node for node in accepted)),
        tokens=tokens,
        sources=(*(tree.sources[node] for node in accepted), "model")[: len(tokens)],
        confidence=finite(confidence(drawn_WV, tokens, log_sums_W)),
        finish_reason=ending(sequence, tokens),
        alternatives=likeliest(drawn_WV, max(sequence.alternatives, sequence.optional_alternatives)),
    )


def ending(sequence: Sequence, tokens: Items[int]) -> FinishReason | None:
    """The finish reason if these tokens end the answer, otherwise None. Only the last of them may end the text."""
    if tokens[-1] in sequence.eos_ids:
        return "stop"
    return "length" if len(tokens) == sequence.room else None


def finite(probabilities: tuple[float, ...]) -> tuple[float, ...]:
    if any(math.isnan(probability) for probability in probabilities):
        raise InputError("the model's logits are not finite: its weights are damaged, or it needs --dtype float32")
    return probabilities
