"""Look-up: the text has been here before, so propose what followed then. Costs no forward."""

from dataclasses import dataclass

import numpy as np

from stridelm.types import NO_DRAFT, Block, Commit, DraftTree, Output, Sequence

SHORTEST_MATCH = 2


@dataclass(slots=True)
class _Text:
    """A sequence's tokens with room for all that it may become: to make an array of a list takes many times longer than
    to search it."""

    array: np.ndarray
    length: int = 0

    def follow(self, tokens: list[int]) -> np.ndarray:
        """All of the tokens, of which only those that came since are copied: a text only grows."""
        self.array[self.length : len(tokens)] = tokens[self.length :]
        self.length = len(tokens)
        return self.array[: self.length]


class NgramDrafter:
    """Finds the latest earlier place, in prompt or answer, that shares the longest ending with the text."""

    name = "ngram"
    layers = ()
    reads_whole_texts = False
    is_optional = True

    def __init__(self, k: int) -> None:
        self.k = k
        self._texts: dict[Sequence, _Text] = {}

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        return [self._propose(self._text(sequence)) for sequence in sequences]

    def _text(self, sequence: Sequence) -> np.ndarray:
        if sequence not in self._texts:
            self._texts[sequence] = _Text(np.empty(len(sequence.tokens) + sequence.room, dtype=np.int64))
        return self._texts[sequence].follow(sequence.tokens)

    def _propose(self, tokens: np.ndarray) -> DraftTree:
        place, length = longest_match(tokens, longest=max(self.k, SHORTEST_MATCH))
        if length < SHORTEST_MATCH:
            return NO_DRAFT
        # A longer match has earned a longer draft: short ones are often chance, and every row costs.
        draft = tokens[place : place + min(self.k, length)].tolist()
        # If a draft stands, the match has become longer by one for the next.
        return DraftTree.chain(draft, self.name, [chance(length + ahead) for ahead in range(len(draft))])

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """The text itself is all there is to know."""

    def release(self, sequence: Sequence) -> None:
        self._texts.pop(sequence, None)


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


def chance(length: int) -> float:
    """How likely the token after a match of this length is to come again.

    Measured on 3,630 looked-at nodes of the built-in model's greedy answers: .50 at a length of 2, .64 at 3, .64 at 4,
    .73 at 5, .86 at 6, .93 at 8, .95 at 16 and more.
    """
    return 1 - 1 / length
