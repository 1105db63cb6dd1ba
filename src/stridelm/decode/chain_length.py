"""How many drafts the steps hold that a device runs by itself: as many as make most tokens per second.

Such steps have few shapes, whose times are measured, not modelled. What is estimated is how many tokens a step emits:
one, and one more for every draft that stands together with all before it.
"""

from collections.abc import Mapping

from stridelm.decode.rates import DepthRates

_LOOK = 16
"""Steps between two decisions: texts that change their shape begin without drafts."""
_BETTER = 1.05
"""Another length must promise so much more to be worth that."""


class ChainLength:
    """For a number of texts that are written together. Starts with the longest: what is not run is not learnt of."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """Drafts -> seconds of a step; 0 drafts among them."""
        assert 0 in seconds
        self.seconds = seconds
        self.drafts = max(seconds)
        self.rates = DepthRates(self.drafts)
        self._steps = 0

    def choose(self) -> int:
        self._steps += 1
        if self._steps % _LOOK == 0:
            best = max(self.seconds, key=self.pace)
            if self.pace(best) > _BETTER * self.pace(self.drafts):
                self.drafts = best
        return self.drafts

    def pace(self, drafts: int) -> float:
        """Tokens per second and text."""
        tokens = path = 1.0
        for rate in self.rates.values()[:drafts]:
            path *= rate
            tokens += path
        return tokens / self.seconds[drafts]

    def observe(self, drafts: int, emitted: int) -> None:
        """A text got so many tokens of a step that held so many drafts."""
        for depth in range(min(drafts, emitted)):
            self.rates.observe(depth, depth < emitted - 1)
