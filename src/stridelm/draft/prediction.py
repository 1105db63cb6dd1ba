"""Predicted text: the request contains most of the expected answer, so follow it, and find the position again after the
answer differs. Costs no forward."""

import numpy as np

from stridelm.draft.match import SHORTEST_MATCH, longest_matches

LONGEST_MATCH = 16
"""Maximum number of tokens that are compared to find the position again."""
_FIRST = 0.5
"""The probability that an answer begins with the prediction's first token. Of 64 greedy answers of the built-in model
to requests for an edit 31 did; the others began with a sentence or a code fence of their own."""
_FIRST_RUN = 8
"""The run length that an answer's beginning counts as: of the 31 that took the first token, all took the next seven."""


class Follower:
    """The position of one answer in its prediction. Depends on the tokens alone, not on how they were split into
    steps."""

    def __init__(self, prediction: tuple[int, ...], prompt: list[int]) -> None:
        self._tokens = np.array(prediction, dtype=np.int64)
        self._prediction = prediction
        self._read = len(prompt)
        """Number of tokens of the text that were followed so far."""
        self._next = 0
        """The position after the last matching token."""
        self._run = _FIRST_RUN
        """Number of matching tokens in a row, plus one for the position itself; 0 if the position is lost."""
        self._stood = self._lost = 0
        """Number of matching tokens in all, and how often the position was lost."""
        self._is_at_start = True
        ending = prompt[-LONGEST_MATCH:]
        if len(ending) == LONGEST_MATCH:  # a prompt may end with the answer's beginning; shorter matches are chance
            ends, length = longest_matches(self._tokens[:-1], ending)
            if length == LONGEST_MATCH:
                self._next, self._run, self._is_at_start = int(ends[0]) + 1, length, False

    def follow(self, text: list[int]) -> None:
        """Read the new tokens."""
        for length in range(self._read + 1, len(text) + 1):
            if self._run and self._prediction[self._next : self._next + 1] == (text[length - 1],):
                self._next += 1
                self._run += 1
                self._stood += 1
            else:
                self._lost += self._run > 0
                self._find(text[max(0, length - LONGEST_MATCH) : length])
            self._is_at_start = False
        self._read = len(text)

    def _find(self, ending: list[int]) -> None:
        """The position after the longest match; of several, the nearest one after where the position was lost, since
        edits keep the order of what they leave. Matches below SHORTEST_MATCH are chance: they gained nothing, even near
        that position. Longer ones may be, too, in repetitive texts: the run counts as 1 until a token matches."""
        ends, length = longest_matches(self._tokens[:-1], ending)
        if length < SHORTEST_MATCH:
            self._run = 0
            return
        ahead = ends[ends >= self._next]
        self._next = int(ahead[0] if len(ahead) else ends[-1]) + 1
        self._run = 1

    def propose(self, longest: int) -> tuple[list[int], list[float]]:
        """The tokens that follow, at most as many as have matched in a row, and for each the probability that it
        matches if those before it do."""
        tokens = self._prediction[self._next : self._next + min(self._run, longest)]
        typical = (_FIRST_RUN + self._stood) / (1 + self._lost)
        scores = [chance(min(self._run + ahead, typical)) for ahead in range(len(tokens))]
        if self._is_at_start and tokens:
            scores[0] = _FIRST
        return list(tokens), scores


def chance(run: float) -> float:
    """The probability that the next token matches after this many have."""
    return run / (run + 1)
