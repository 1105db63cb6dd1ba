"""Running estimates that the planner steers by: acceptance by depth of mask, the pace, what drafters bring."""

import statistics
from collections import deque

_PRIOR = 0.7
_PRIOR_WEIGHT = 6.0
_MOST = 0.98
_HALF_LIFE = 120
"""Observations after which an old one counts half: a text changes its nature within some sentences."""
_STEPS = 32
"""Steps over which the pace is taken."""
_TRIAL, _EVERY = 30, 6
"""Steps of a trial, and every which of them takes one token at a time."""
_HOLDS, _LONGEST = 256, 1024
"""Steps for which its outcome holds; twice as long each time in a row that one token at a time has won."""
_PATIENCE, _LONGEST_REST = 3, 24
"""Plans in a row that do not pay before a text rests, and the most steps that it does."""
_FIRST_CREDIT, _LATER_CREDIT, _MOST_CREDIT, _FIRST_HOLD = 3.0, 1.0, 5.0, 40
"""Tokens that a text's first trial may lose, and later ones; what it may save up; steps for which plain decoding holds
when they are spent."""
_PLAIN_STEPS, _FEW, _STALE = 16, 3, 64
"""Plain steps that the clock remembers; how many it needs; after so many others, one is taken anew."""
_OFF, _DOUBT = 2.0, 4.0
"""How far off the cost curve may be; how many plain steps' time it is taken at its word."""
_PROBE = 40
"""A drafter that does not pay is asked again after so many steps."""
_NEXT_TO_NOTHING = 0.02
"""Tokens that could be written while a drafter thinks, if it is asked at every step."""


class DepthRates:
    """How often the first choice of a mask stood, if all before it did; by depth of the mask.

    A depth that was seen seldom follows the others: an easy text is easy at every depth.
    """

    def __init__(self, depths: int, priors: list[float] | None = None) -> None:
        self._priors = priors or [_PRIOR] * depths
        self._stood = [0.0] * depths
        self._seen = [0.0] * depths

    def for_new_text(self) -> "DepthRates":
        """The same rates, as priors. A new text has the benefit of the doubt: after hard texts nobody would
        look again, and an easy one be missed."""
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
            (stood + _PRIOR_WEIGHT * min(_MOST, ease * prior)) / (seen + _PRIOR_WEIGHT)
            for prior, stood, seen in zip(self._priors, self._stood, self._seen, strict=True)
        ]


class Pace:
    """Tokens per second as decoding goes. Forwards count with what the cost curve says, since the machine's own moods
    would be taken for a difference between blocks; what happens around them counts as measured."""

    def __init__(self, plain_seconds: float) -> None:
        self.plain = 1 / plain_seconds
        self._tokens, self._seconds = 4.0, 4.0 * plain_seconds
        self.overhead = 0.0
        """Seconds that drafting and planning take per step."""

    @property
    def rate(self) -> float:
        return self._tokens / self._seconds

    def stepped(self, tokens: int, forward: float, around: float) -> None:
        """So many seconds of a forward, and around it."""
        if not tokens:
            return
        self.overhead += (around - self.overhead) / _STEPS
        keep = 1 - 1 / _STEPS
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + forward + self.overhead


class Use:
    """Whether asking a drafter pays: the tokens it brings against the seconds it takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tokens = 1.0
        self._since = 0
        self._was_asked = False

    def is_due(self, rate: float, is_resting: bool) -> bool:
        """At rest only those are asked that take next to no time."""
        self._since += 1
        is_quick = 0 < rate * self.seconds < _NEXT_TO_NOTHING
        earns = self.tokens >= rate * self.seconds or self._since >= _PROBE
        self._was_asked = is_quick or (earns and not is_resting)
        return self._was_asked

    def asked(self, seconds: float) -> None:
        self._since = 0
        self.seconds += 0.2 * (seconds - self.seconds) if self.seconds else seconds

    def brought(self, tokens: int) -> None:
        """Per sequence and step in which it was asked."""
        if self._was_asked:
            self.tokens += 0.1 * (tokens - self.tokens)


class Rest:
    """How long one text goes without drafts and plans: twice as long each time that nothing has paid again."""

    def __init__(self) -> None:
        self._in_vain = 0
        self._left = 0

    def goes_on(self) -> bool:
        """Asked before every step."""
        self._left -= 1
        return self._left >= 0

    def planned(self, pays: bool) -> None:
        """A plan was made; whether it was to do anything but take one token."""
        self._in_vain = 0 if pays else self._in_vain + 1
        self._left = min(2**self._in_vain, _LONGEST_REST) if self._in_vain >= _PATIENCE else 0


class Clock:
    """How steps of a sequence alone fare against the cost curve, by the clock. Whoever else uses the machine slows the
    many rows of a block more than the one of a plain step, which waits for memory:

        seconds = those of a plain step + scale x (what the curve says of the block - what it says of a plain step)
    """

    def __init__(self, plain: float) -> None:
        """`plain`: what the curve says of a plain step."""
        self._least, self._most = plain / _OFF, plain * _OFF
        self._plain: deque[float] = deque(maxlen=_PLAIN_STEPS)
        self.plain = plain
        """Seconds of a plain step from the end of its plan."""
        self._since_plain = 0
        self._over = self._said = _DOUBT * plain
        self.scale = 1.0

    @property
    def wants_plain(self) -> bool:
        """Whether a plain step should be taken to set it by."""
        return len(self._plain) < _FEW or self._since_plain > _STALE

    def took_plain(self, seconds: float) -> None:
        self._since_plain = 0
        self._plain.append(seconds)
        self.plain = min(max(self._least, statistics.median(self._plain)), self._most)

    def took(self, beyond: float, seconds: float) -> None:
        """A step with more rows, so many seconds beyond a plain one by the curve."""
        self._since_plain += 1
        # One that was held up by others counts no more than two.
        over = min(seconds, 2 * self.seconds(beyond)) - self.plain
        keep = 1 - 1 / _STEPS
        self._over, self._said = keep * self._over + over, keep * self._said + beyond
        self.scale = min(max(1 / _OFF, self._over / self._said), _OFF)

    def seconds(self, beyond: float) -> float:
        return self.plain + self.scale * beyond


class Referee:
    """Whether several tokens at a time pay on one text: a balance of the tokens that planned steps made over those that
    plain ones would have made in the same time. Where it falls too low, the text is written plainly for a while, twice
    as long each time; then there is a little credit to show that the text has become easier.

    By the cost curve, which the clock has set right over all texts: in the few steps of a trial the machine's moods are
    larger than the gain.
    """

    def __init__(self) -> None:
        self._balance = _FIRST_CREDIT
        self._holds = _FIRST_HOLD
        self._left = 0

    def takes_one(self) -> bool:
        """Asked before every step: whether to take one token in it, without drafts and plans."""
        self._left -= 1
        return self._left >= 0

    def stepped(self, tokens: int, plain: float) -> None:
        """A planned step made so many tokens; plain ones would have made so many meanwhile."""
        self._balance = min(self._balance + tokens - plain, _MOST_CREDIT)
        if self._balance > _FIRST_CREDIT:
            self._holds = _FIRST_HOLD
        elif self._balance < 0:
            self._left, self._holds = self._holds, 2 * self._holds
            self._balance = _LATER_CREDIT


class Trial:
    """Whether several tokens at a time pay in a batch of some size, by the clock. If not, decoding is plain for a
    while: a batch that uses the machine up, or texts that nobody can foretell, are never slower than without us.

    The cost curve will not do here: it was measured on one sequence, and what batches cost beside the forward is not in
    it. The two kinds of steps take turns, so that the machine's moods hit both.
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
        """Asked before every step: whether to take one token at a time in it."""
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
        self._holds = min(2 * self._holds, _LONGEST) if self._one_wins else _HOLDS
        self._number = 0
        self._seen = {False: [], True: []}


def _pace_of(steps: list[tuple[int, float]]) -> float:
    """Tokens per second. A step that was held up by others counts no more than two."""
    most = 2 * statistics.median(seconds for _, seconds in steps)
    return sum(tokens for tokens, _ in steps) / sum(min(seconds, most) for _, seconds in steps)
