"""Chooses the number of drafts for steps that a device runs by itself: the one with the most tokens per second.

Such steps have few shapes, whose times are measured, not modelled, and one shape serves all texts that are written
together. How many tokens each of them would get is estimated as in steps that a backend plans (`next_step.h` of the
native backend): by what is known of the drafts before a text begins, and by how easy the text has been lately.
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate, islice
from operator import mul

from stridelm.decode.fit_prior import EASE_KEPT, EASE_WEIGHT, log_odds, logistic
from stridelm.stepper import StepPrior

_LOOK = 12
"""Steps between two decisions. A change costs up to two steps: the texts leave those in flight, and begin anew without
drafts."""
_BETTER = 1.05
"""Another length must be better by this factor to be worth the change; a length of 0 need not be."""
_PRICE = 0.02
"""Maximum share of time that looks at drafts may lose if they are never accepted."""


class TextOdds:
    """How likely the drafts of one text are accepted, by depth: what is known beforehand, at the text's ease, corrected
    by what was seen at this depth."""

    def __init__(self, prior: StepPrior) -> None:
        self._prior = prior
        self._seen: list[float] = []
        """By depth, how often a draft was looked at (all before it were accepted), fading with every token."""
        self._stood: list[float] = []
        """How often it was accepted."""

    def observe(self, drafts: int, emitted: int) -> None:
        """A step with `drafts` drafts emitted `emitted` tokens, and the text has not ended."""
        keep, new = EASE_KEPT**emitted, [0.0] * (drafts - len(self._seen))
        self._seen = [keep * each for each in self._seen] + new
        self._stood = [keep * each for each in self._stood] + new
        for depth in range(min(drafts, emitted)):
            self._seen[depth] += 1
            self._stood[depth] += depth < emitted - 1

    def tokens(self, drafts: int) -> list[float]:
        """Expected tokens of a step with 0, 1, ... `drafts` drafts, the first of a chain that is not used yet."""
        constant, by_ease, _, by_depth = self._prior.unscored
        ease = _mean(self._prior.ease, sum(self._seen), sum(self._stood))
        first = constant + by_ease * log_odds(ease)
        beyond = [0.0] * (drafts - len(self._seen))
        known = enumerate(zip(self._seen + beyond, self._stood + beyond, strict=True))
        rates = (_mean(logistic(first + by_depth * depth), seen, stood) for depth, (seen, stood) in known)
        return list(accumulate(accumulate(islice(rates, drafts), mul), initial=1.0))


def _mean(expected: float, seen: float, stood: float) -> float:
    return (stood + EASE_WEIGHT * expected) / (seen + EASE_WEIGHT)


class ChainLength:
    """Chooses one length for a number of texts that are written together.

    Without drafts a text is forgotten bit by bit, until the prior would try again. How often that may happen depends on
    what it costs.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """`seconds`: number of drafts -> seconds of a step; must contain 0 drafts."""
        assert 0 in seconds
        self.seconds = seconds
        self.drafts = 0
        self._left = 0
        """Steps until the next decision."""

    def begin_texts(self) -> None:
        """All texts are new: what was chosen for others need not suit them."""
        self._left = 0

    def choose(self, texts: Iterable[TextOdds]) -> int:
        """The number of drafts of the next step. Called before every step."""
        if self._left == 0 and len(self.seconds) > 1:
            self._decide(texts)
        self._left = max(0, self._left - 1)
        return self.drafts

    def _decide(self, texts: Iterable[TextOdds]) -> None:
        most = max(self.seconds)
        tokens = [sum(each) for each in zip(*(text.tokens(most) for text in texts), strict=True)]
        pace = {drafts: tokens[drafts] / seconds for drafts, seconds in self.seconds.items()}
        best = max(pace, key=pace.__getitem__)
        if best == 0 or pace[best] > _BETTER * pace[self.drafts]:
            self.drafts = best
        self._left = _LOOK
        if not self.drafts:
            next_try = max((drafts for drafts in pace if drafts), key=pace.__getitem__)
            lost = _LOOK * (self.seconds[next_try] / self.seconds[0] - 1)
            self._left = max(_LOOK, round(lost / _PRICE))
