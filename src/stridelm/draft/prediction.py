"""Predicted text: the request says what most of the answer will be, so follow it, and find the place again where the
answer differs. Costs no forward."""

import numpy as np

from stridelm.draft.match import SHORTEST_MATCH, longest_matches

LONGEST_MATCH = 16
"""Tokens of the text that are compared to find the place again."""
_FIRST = 0.5
"""How likely an answer is to begin with the prediction's first token. Of 64 greedy answers of the built-in model to
requests for an edit 31 did; the others began with a sentence or a code fence of their own."""
_FIRST_RUN = 8
"""What an answer's beginning counts for: of the 31 that took the first token, all took the next seven."""


class Follower:
    """Where one answer stands in its prediction. Depends on the tokens alone, not on the steps that they came in."""

    def __init__(self, prediction: tuple[int, ...], prompt: list[int]) -> None:
        self._tokens = np.array(prediction, dtype=np.int64)
        self._prediction = prediction
        self._read = len(prompt)
        """Tokens of the text that were followed so far."""
        self._next = 0
        """The place that the last token which stood leads to."""
        self._run = _FIRST_RUN
        """Tokens that have stood in a row, and one for the place; 0 where it is lost."""
        self._stood = self._lost = 0
        """Tokens that have stood in all, and how often the place was lost."""
        self._is_at_start = True
        ending = prompt[-LONGEST_MATCH:]
        if len(ending) == LONGEST_MATCH:  # a prompt may hold the answer's beginning; its other tokens match by chance
            ends, length = longest_matches(self._tokens[:-1], ending)
            if length == LONGEST_MATCH:
                self._next, self._run, self._is_at_start = int(ends[0]) + 1, length, False

    def follow(self, text: list[int]) -> None:
        """Read the tokens that have come since."""
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
        """The place behind the longest match; of several, the nearest ahead of where the place was lost, for edits keep
        the order of what they leave. Shorter matches are chance: they gained nothing, even near that place. Longer ones
        may be, too, where texts repeat themselves: all count one until a token stands."""
        ends, length = longest_matches(self._tokens[:-1], ending)
        if length < SHORTEST_MATCH:
            self._run = 0
            return
        ahead = ends[ends >= self._next]
        self._next = int(ahead[0] if len(ahead) else ends[-1]) + 1
        self._run = 1

    def propose(self, longest: int) -> tuple[list[int], list[float]]:
        """The tokens that follow, no more than have stood in a row, and how likely each is to stand if those before it
        do."""
        tokens = self._prediction[self._next : self._next + min(self._run, longest)]
        typical = (_FIRST_RUN + self._stood) / (1 + self._lost)
        scores = [chance(min(self._run + ahead, typical)) for ahead in range(len(tokens))]
        if self._is_at_start and tokens:
            scores[0] = _FIRST
        return list(tokens), scores


def chance(run: float) -> float:
    """How likely the next token is to stand when this many have."""
    return run / (run + 1)
