"""Chooses the number of drafts for steps that a device runs by itself: the one with the most tokens per second.

Such steps have few shapes, whose times are measured, not modelled. Only the number of tokens per step is estimated:
one, plus one for every draft that is accepted together with all before it.
"""

from collections.abc import Mapping

_LOOK = 16
"""Steps between two decisions: after a change of shape, texts start without drafts."""
_TRIAL = 10
"""Steps until the first decision on a text. About the first two say nothing: they have no drafts, or were launched
before."""
_BETTER = 1.05
"""Another length must be better by this factor to be worth the change; a length of 0 need not be."""
_KEEP = 0.8
"""Decay of observations per decision: they count half after about fifty steps."""
_FROM_OTHERS = 4.0
"""Number of observations that all those of earlier texts together count as."""
_PRIOR, _PRIOR_WEIGHT = 0.7, 2.0
"""Prior acceptance rate of a draft, and how many observations it is worth."""
_MAX_RATE = 0.98
_PRICE = 0.02
"""Maximum share of time that trials may lose if drafts are never accepted."""


class ChainLength:
    """Chooses one length for a number of texts that are written together.

    Without drafts nothing is learnt about them. So they are tried again now and then, and for a new text: the more a
    failed trial costs, the less often.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """`seconds`: number of drafts -> seconds of a step; must contain 0 drafts."""
        assert 0 in seconds
        self.seconds = seconds
        self._recent = _Tally(max(seconds))
        """Since the last decision."""
        self._before = _Tally(max(seconds))
        self._first = max((count for count in seconds if count), key=self.pace, default=0)
        """The length that trials begin with: the best one if nothing is known."""
        self.drafts = self._first
        self._left = _TRIAL
        """Steps until the next decision."""

    def choose(self) -> int:
        """The number of drafts of the next step. Called before every step."""
        self._left -= 1
        if self._left < 0:
            if self.drafts:
                self._look()
            else:
                self._try()
        return self.drafts

    def begin_text(self) -> None:
        """New texts start. They get drafts again: otherwise one hard text would turn drafts off for good."""
        if self.drafts:
            self._pass(_FROM_OTHERS / max(_FROM_OTHERS, self._recent.seen[0] + self._before.seen[0]))
            self._left = _TRIAL
        else:
            self._try()

    def observe(self, drafts: int, emitted: int) -> None:
        """A text got `emitted` tokens from a step with `drafts` drafts, and has not ended."""
        for depth in range(min(drafts, emitted)):
            self._recent.seen[depth] += 1
            self._recent.stood[depth] += depth < emitted - 1

    def pace(self, drafts: int) -> float:
        """Tokens per second and text."""
        tokens = path = 1.0
        for rate in self._rates()[:drafts]:
            path *= rate
            tokens += path
        return tokens / self.seconds[drafts]

    def _try(self) -> None:
        """Start with drafts, whatever was observed before."""
        self._pass(0.0)
        self.drafts = self._first
        self._left = _TRIAL

    def _look(self) -> None:
        is_known = self._recent.seen[0] > 0
        if is_known and _BETTER * self._recent.tokens / self.seconds[self.drafts] < 1 / self.seconds[0]:
            self._before.fade(0.0)  # drafts lost time: the text has changed, and older observations mislead
        best = max(self.seconds, key=self.pace)
        if best == 0 or self.pace(best) > _BETTER * self.pace(self.drafts):
            self.drafts = best
        self._pass(_KEEP)
        self._left = _LOOK
        if not self.drafts:
            lost = _TRIAL * (self.seconds[self._first] / self.seconds[0] - 1)
            self._left = max(_LOOK, round(lost / _PRICE))

    def _rates(self) -> list[float]:
        """By depth, how often a draft was accepted if all before it were. A depth with few observations follows the
        others: an easy text is easy at every depth."""
        seen = [sum(each) for each in zip(self._recent.seen, self._before.seen, strict=True)]
        stood = [sum(each) for each in zip(self._recent.stood, self._before.stood, strict=True)]
        ease = (sum(stood) + _PRIOR_WEIGHT) / (_PRIOR * sum(seen) + _PRIOR_WEIGHT)
        expected = _PRIOR_WEIGHT * min(_MAX_RATE, ease * _PRIOR)
        return [(own + expected) / (of + _PRIOR_WEIGHT) for own, of in zip(stood, seen, strict=True)]

    def _pass(self, kept: float) -> None:
        """Merge the recent observations into the earlier ones, and decay them."""
        self._before.add(self._recent)
        self._before.fade(kept)
        self._recent.fade(0.0)


class _Tally:
    """By depth, how often a draft was looked at (all before it were accepted), and how often it was accepted."""

    def __init__(self, depths: int) -> None:
        self.seen = [0.0] * depths
        self.stood = [0.0] * depths

    @property
    def tokens(self) -> float:
        """Mean number of tokens per step and text."""
        return 1 + sum(self.stood) / self.seen[0]

    def add(self, other: "_Tally") -> None:
        self.seen = [own + more for own, more in zip(self.seen, other.seen, strict=True)]
        self.stood = [own + more for own, more in zip(self.stood, other.stood, strict=True)]

    def fade(self, kept: float) -> None:
        self.seen = [kept * each for each in self.seen]
        self.stood = [kept * each for each in self.stood]
