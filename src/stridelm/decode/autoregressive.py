"""One token per forward: the plain way, and the ground that every exact decoder stands on."""

import math
from itertools import takewhile

import torch

from stridelm.layout import make_block
from stridelm.sampling import confidence, drawer
from stridelm.types import NO_DRAFT, Block, Commit, DraftTree, FinishReason, InputError, Sequence
from stridelm.verify import walk


class Autoregressive:
    """The pending rows and nothing else."""

    exact = True

    def plan(self, sequences: list[Sequence]) -> list[Block]:
        return [next_block(sequence) for sequence in sequences]

    def commit(self, sequences: list[Sequence], blocks: list[Block], logits: list[torch.Tensor]) -> list[Commit]:
        return [decide(*each) for each in zip(sequences, blocks, logits, strict=True)]

    def observe(self, sequences: list[Sequence], commits: list[Commit]) -> None:
        """Nothing to learn."""

    def release(self, sequence: Sequence) -> None:
        """Nothing to forget."""


def reads_on(sequence: Sequence) -> bool:
    """Whether this step only reads a part of the prompt: more rows are pending than the scheduler lets in."""
    return sequence.cached + sequence.allowance < len(sequence.tokens)


def next_block(sequence: Sequence, tree: DraftTree = NO_DRAFT) -> Block:
    pending = sequence.tokens[sequence.cached : sequence.cached + sequence.allowance]
    if reads_on(sequence):
        return make_block(sequence.cached, pending, reads_logits=False)
    assert sequence.table is not None
    # What the table has no room for is not drafted: fewer drafts are slower, never wrong.
    return make_block(
        sequence.cached, pending, tree.pruned(sequence.room - 1, sequence.table.capacity - len(sequence.tokens))
    )


def decide(sequence: Sequence, block: Block, logits_WV: torch.Tensor) -> Commit:
    """Walk the block's tree with the sequence's own draws. Wanted row 0 is the last pending, row i + 1 is node i."""
    pending = tuple(range(block.pending))
    if not block.wanted:
        return Commit(kept=pending)
    draw = drawer(logits_WV, sequence)
    path, emitted = walk(block.tree, lambda node, before: draw(node + 1, before), sequence.tokens)
    tokens = tuple(_until_end(emitted, sequence.eos_ids))
    finish_reason: FinishReason | None = None
    if tokens[-1] in sequence.eos_ids:
        finish_reason = "stop"
    elif len(tokens) == sequence.room:
        finish_reason = "length"
    accepted = path[: len(tokens)]
    probabilities = confidence(logits_WV[[0, *(node + 1 for node in accepted)]], tokens)
    if any(math.isnan(probability) for probability in probabilities):
        raise InputError("the model's logits are not finite: its weights are damaged, or it needs --dtype float32")
    return Commit(
        kept=(*pending, *(block.pending + node for node in accepted)),
        tokens=tokens,
        sources=tuple(block.tree.source if index < len(accepted) else "model" for index in range(len(tokens))),
        confidence=probabilities,
        finish_reason=finish_reason,
    )


def _until_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """The tokens up to the first that ends the text, that one included."""
    before_end = list(takewhile(lambda token: token not in eos_ids, tokens))
    return tokens[: len(before_end) + 1]
