"""How many drafts the steps hold that a device runs by itself: as many as make most tokens per second.

Such steps have few shapes, whose times are measured, not modelled. What is estimated is how many tokens a step emits:
one, and one more for every draft that stands together with all before it.
"""

from collections.abc import Mapping

_LOOK = 16
"""Steps between two decisions: texts that change their shape begin without drafts."""
_TRIAL = 10
"""Steps until the first decision on a text. The first two or so tell nothing: they hold no drafts, or are in flight."""
_BETTER = 1.05
"""Another length must promise so much more to be worth that; none at all need not."""
_KEEP = 0.8
"""What an observation counts for at the next decision: half of it after some fifty steps."""
_FROM_OTHERS = 4.0
"""As so many observations count all those of the texts before."""
_PRIOR, _PRIOR_WEIGHT = 0.7, 2.0
"""How often a draft stands if nothing is known, and how many observations that is worth."""
_MOST = 0.98
_PRICE = 0.02
"""The share of the time that trials may lose where drafts never stand."""


class ChainLength:
    """For a number of texts that are written together.

    Without drafts nothing is learnt of them. So they are tried again now and then, and on a new text: the worse they
    would be if none stood, the more seldom.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """Drafts -> seconds of a step; 0 drafts among them."""
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
        """Asked before every step."""
        self._left -= 1
        if self._left < 0:
            if self.drafts:
                self._look()
            else:
                self._try()
        return self.drafts

    def begin_text(self) -> None:
        """The texts are new ones. They have the benefit of the doubt: nobody would look again after a hard text."""
        if self.drafts:
            self._pass(_FROM_OTHERS / max(_FROM_OTHERS, self._recent.seen[0] + self._before.seen[0]))
            self._left = _TRIAL
        else:
            self._try()

    def observe(self, drafts: int, emitted: int) -> None:
        """A text got so many tokens of a step that held so many drafts, and goes on."""
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
        """Begin with drafts, whatever was seen."""
        self._pass(0.0)
        self.drafts = self._first
        self._left = _TRIAL

    def _look(self) -> None:
        is_known = self._recent.seen[0] > 0
        if is_known and _BETTER * self._recent.tokens / self.seconds[self.drafts] < 1 / self.seconds[0]:
            self._before.fade(0.0)  # drafts lost time: whatever was before, the text is another now
        best = max(self.seconds, key=self.pace)
        if best == 0 or self.pace(best) > _BETTER * self.pace(self.drafts):
            self.drafts = best
        self._pass(_KEEP)
        self._left = _LOOK
        if not self.drafts:
            lost = _TRIAL * (self.seconds[self._first] / self.seconds[0] - 1)
            self._left = max(_LOOK, round(lost / _PRICE))

    def _rates(self) -> list[float]:
        """How often a draft stood, if all before it did. A depth that was seen seldom follows the others: an easy text
        is easy at every depth."""
        seen = [sum(each) for each in zip(self._recent.seen, self._before.seen, strict=True)]
        stood = [sum(each) for each in zip(self._recent.stood, self._before.stood, strict=True)]
        ease = (sum(stood) + _PRIOR_WEIGHT) / (_PRIOR * sum(seen) + _PRIOR_WEIGHT)
        expected = _PRIOR_WEIGHT * min(_MOST, ease * _PRIOR)
        return [(own + expected) / (of + _PRIOR_WEIGHT) for own, of in zip(stood, seen, strict=True)]

    def _pass(self, kept: float) -> None:
        """What is recent is so no more, and counts less."""
        self._before.add(self._recent)
        self._before.fade(kept)
        self._recent.fade(0.0)


class _Tally:
    """By depth, how often a draft was looked at, all before it standing, and how often it stood."""

    def __init__(self, depths: int) -> None:
        self.seen = [0.0] * depths
        self.stood = [0.0] * depths

    @property
    def tokens(self) -> float:
        """Of a step, for one text."""
        return 1 + sum(self.stood) / self.seen[0]

    def add(self, other: "_Tally") -> None:
        self.seen = [own + more for own, more in zip(self.seen, other.seen, strict=True)]
        self.stood = [own + more for own, more in zip(self.stood, other.stood, strict=True)]

    def fade(self, kept: float) -> None:
        self.seen = [kept * each for each in self.seen]
        self.stood = [kept * each for each in self.stood]
