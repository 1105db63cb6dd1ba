"""A trace of forward passes, for display: what each ran for an answer, and the result."""

from typing import Any

from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.types import Block, RowKind, Stride

ALTERNATIVES = 8
"""Number of likeliest tokens reported for each emitted one, by steps that report them."""
Forward = dict[str, Any]
"""What one forward pass ran, in the format of replies."""


def traced(stride: Stride, choice: int, vocabulary: Vocabulary) -> Forward:
    """One forward pass. Rows are numbered in order; a parent of -1 is the text before them. A step that a GPU ran
    by itself reports neither the probabilities of its drafts nor alternatives to the emitted tokens."""
    assert stride.trace is not None
    block, kept = stride.trace.block, set(stride.trace.kept)
    drafts = range(block.pending, block.pending + len(block.tree))
    return {
        "choice": choice,
        "is_own": stride.is_own,
        "rows": [_row(block, row, vocabulary) for row in range(len(block))],
        "accepted": [row for row in drafts if row in kept],
        "rejected": [row for row in drafts if row not in kept],
        "emitted": _emitted(stride, vocabulary),
    }


def _row(block: Block, row: int, vocabulary: Vocabulary) -> dict[str, Any]:
    node = row - block.pending
    is_mask = block.kinds[row] is RowKind.MASK
    is_draft = node >= 0 and not is_mask
    return {
        "kind": "mask" if is_mask else "draft" if is_draft else "pending",
        "parent": block.parents[row],
        "token": None if is_mask else block.tokens[row],
        "text": None if is_mask else vocabulary.text(block.tokens[row]),
        "probability": block.tree.scores[node] if is_draft and block.tree.scores else None,
        "drafter": block.tree.sources[node] if is_draft else None,
    }


def _emitted(stride: Stride, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    alternatives = stride.alternatives or ((),) * len(stride.tokens)
    columns = zip(stride.tokens, stride.sources, stride.confidence, alternatives, strict=True)
    return [
        {
            "token": token,
            "text": vocabulary.text(token),
            "source": source,
            "probability": probability,
            "alternatives": [
                {"token": other, "text": vocabulary.text(other), "probability": its} for other, its in others
            ],
        }
        for token, source, probability, others in columns
    ]
