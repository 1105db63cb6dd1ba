"""Look-up: the text has been here before, so propose what followed then. Costs no forward."""

import numpy as np

from stridelm.types import NO_DRAFT, Block, Commit, DraftTree, Output, Sequence

SHORTEST_MATCH = 2


class NgramDrafter:
    """Finds the latest earlier place, in prompt or answer, that shares the longest ending with the text."""

    name = "ngram"
    layers = ()

    def __init__(self, k: int) -> None:
        self.k = k

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        return [self._propose(sequence.tokens) for sequence in sequences]

    def _propose(self, tokens: list[int]) -> DraftTree:
        place, length = longest_match(np.asarray(tokens), longest=max(self.k, SHORTEST_MATCH))
        if length < SHORTEST_MATCH:
            return NO_DRAFT
        # A longer match has earned a longer draft: short ones are often chance, and every row costs.
        return DraftTree.chain(tokens[place : place + min(self.k, length)], self.name)

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """The text itself is all there is to know."""

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept."""


def longest_match(tokens: np.ndarray, longest: int) -> tuple[int, int]:
    """The place after the latest of the longest earlier matches of the text's ending, and that match's length.

    Nothing beyond `longest` tokens is looked at.
    """
    ends = matched = np.flatnonzero(tokens[:-1] == tokens[-1])
    length = 0
    while len(ends) and length < longest:
        length += 1
        matched = ends
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[len(tokens) - 1 - length]]
    return (int(matched[-1]) + 1, length) if length else (0, 0)
