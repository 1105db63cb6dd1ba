"""Running estimates for the planner: acceptance by depth of mask, the pace, what drafters gain."""

import statistics
from collections import deque

_PRIOR = 0.7
_PRIOR_WEIGHT = 6.0
_MAX_RATE = 0.98
_HALF_LIFE = 120
"""Observations after which an old one counts half: a text's character changes within some sentences."""
_STEPS = 32
"""Number of steps that the pace is averaged over."""
_TRIAL, _EVERY = 30, 6
"""Steps per trial; every `_EVERY`-th of them takes one token."""
_HOLDS, _MAX_HOLDS = 256, 1024
"""Steps for which a trial's outcome holds; doubled, up to the maximum, each time in a row that one token at a time
wins."""
_PLAIN_STEPS, _FEW, _STALE = 16, 3, 64
"""Number of plain steps that the clock averages over; minimum that it needs; number of other steps after which it needs
a new one."""
_OFF, _DOUBT = 2.0, 4.0
"""Maximum factor by which the cost curve may be off; the weight of the curve itself, in seconds of plain steps."""
_PROBE = 40
"""Number of steps after which a drafter that does not pay is asked again."""
_NEXT_TO_NOTHING = 0.02
"""A drafter is asked at every step if fewer tokens than this could be written in the time that it takes."""


class DepthRates:
    """How often the first choice of a mask was accepted if all before it were; by depth of the mask.

    A depth with few observations follows the others: an easy text is easy at every depth.
    """

    def __init__(self, depths: int, priors: list[float] | None = None) -> None:
        self._priors = priors or [_PRIOR] * depths
        self._stood = [0.0] * depths
        self._seen = [0.0] * depths

    def for_new_text(self) -> "DepthRates":
        """The same rates as priors, but not below the default prior: otherwise, after hard texts, an easy one would be
        missed."""
        return DepthRates(len(self._seen), [max(_PRIOR, rate) for rate in self.values()])

    def observe(self, depth: int, stood: bool) -> None:
        keep = 0.5 ** (1 / _HALF_LIFE)
        self._stood = [keep * each for each in self._stood]
        self._seen = [keep * each for each in self._seen]
        self._stood[depth] += stood
        self._seen[depth] += 1

    def values(self) -> list[float]:
        expected = sum(prior * seen for prior, seen in zip(self._priors, self._seen, strict=True))
        ease = (sum(self._stood) + _PRIOR_WEIGHT) / (expected + _PRIOR_WEIGHT)
        return [
            (stood + _PRIOR_WEIGHT * min(_MAX_RATE, ease * prior)) / (seen + _PRIOR_WEIGHT)
            for prior, stood, seen in zip(self._priors, self._stood, self._seen, strict=True)
        ]


class Pace:
    """Current tokens per second. Forwards count with the time of the cost curve, since noise of the machine would look
    like a difference between blocks; drafting and planning count as measured."""

    def __init__(self, plain_seconds: float) -> None:
        self.plain = 1 / plain_seconds
        self._tokens, self._seconds = 4.0, 4.0 * plain_seconds
        self.overhead = 0.0
        """Seconds that drafting and planning take per step."""

    @property
    def rate(self) -> float:
        return self._tokens / self._seconds

    def stepped(self, tokens: int, forward: float, around: float) -> None:
        """`forward`: seconds of the forward; `around`: of drafting and planning."""
        if not tokens:
            return
        self.overhead += (around - self.overhead) / _STEPS
        keep = 1 - 1 / _STEPS
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + forward + self.overhead


class Use:
    """Whether asking a drafter pays: the tokens that it gains against the seconds that it takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tokens = 1.0
        self._since = 0
        self._was_asked = False

    def is_due(self, rate: float) -> bool:
        """Whether to ask the drafter in this step."""
        self._since += 1
        is_quick = 0 < rate * self.seconds < _NEXT_TO_NOTHING
        self._was_asked = is_quick or self.tokens >= rate * self.seconds or self._since >= _PROBE
        return self._was_asked

    def asked(self, seconds: float) -> None:
        self._since = 0
        self.seconds += 0.2 * (seconds - self.seconds) if self.seconds else seconds

    def brought(self, tokens: int) -> None:
        """Record the accepted tokens of one sequence and step, if the drafter was asked."""
        if self._was_asked:
            self.tokens += 0.1 * (tokens - self.tokens)


class Clock:
    """Measured times of a single sequence's steps, compared with the cost curve. Other processes on the machine slow
    down a block of many rows more than a plain step, which is bound by memory:

        seconds = plain step + scale x (the curve's time of the block - the curve's time of a plain step)
    """

    def __init__(self, plain: float) -> None:
        """`plain`: the curve's time of a plain step."""
        self._least, self._most = plain / _OFF, plain * _OFF
        self._plain: deque[float] = deque(maxlen=_PLAIN_STEPS)
        self.plain = plain
        """Seconds of a plain step from the end of its plan."""
        self._since_plain = 0
        self._measured = self._predicted = _DOUBT * plain
        self.scale = 1.0

    @property
    def wants_plain(self) -> bool:
        """Whether a plain step should be taken to measure it."""
        return len(self._plain) < _FEW or self._since_plain > _STALE

    def took_plain(self, seconds: float) -> None:
        self._since_plain = 0
        self._plain.append(seconds)
        self.plain = min(max(self._least, statistics.median(self._plain)), self._most)

    def took(self, beyond: float, seconds: float) -> None:
        """A step with more rows took `seconds`; `beyond`: its time beyond a plain step by the curve."""
        self._since_plain += 1
        # A step that other processes held up counts at most twice its expected time.
        over = min(seconds, 2 * self.seconds(beyond)) - self.plain
        keep = 1 - 1 / _STEPS
        self._measured, self._predicted = keep * self._measured + over, keep * self._predicted + beyond
        self.scale = min(max(1 / _OFF, self._measured / self._predicted), _OFF)

    def seconds(self, beyond: float) -> float:
        return self.plain + self.scale * beyond


class Trial:
    """Whether several tokens at a time pay in a batch of some size, by measured times. If not, decoding is plain for a
    while: a batch that saturates the machine, or texts that cannot be predicted, are never slower than plain decoding.

    The cost curve is not enough here: it was measured on one sequence, and a batch's costs besides the forward are not
    part of it. The two kinds of steps alternate, so that noise of the machine affects both.
    """

    def __init__(self) -> None:
        self._number = 0
        self._left = 0
        self._holds = _HOLDS
        self._one_wins = False
        self._takes_one = False
        self._seen: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
        """Whether one token was taken at a time -> tokens and seconds of such steps."""

    def takes_one(self) -> bool:
        """Called before every step: whether to take one token per sequence in it."""
        if self._left:
            self._left -= 1
            self._takes_one = self._one_wins
        else:
            self._number += 1
            self._takes_one = self._number % _EVERY == 0
        return self._takes_one

    def stepped(self, tokens: int, seconds: float) -> None:
        if self._left:
            return
        self._seen[self._takes_one].append((tokens, seconds))
        if self._number < _TRIAL or len(self._seen[True]) < _TRIAL // _EVERY:
            return
        self._one_wins = _pace_of(self._seen[True]) > _pace_of(self._seen[False])
        self._left = self._holds
        self._holds = min(2 * self._holds, _MAX_HOLDS) if self._one_wins else _HOLDS
        self._number = 0
        self._seen = {False: [], True: []}


def _pace_of(steps: list[tuple[int, float]]) -> float:
    """Tokens per second. A step that other processes held up counts at most as two."""
    most = 2 * statistics.median(seconds for _, seconds in steps)
    return sum(tokens for tokens, _ in steps) / sum(min(seconds, most) for _, seconds in steps)
