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
_FIRST_TRIAL, _LATER_TRIAL, _FIRST_HOLD = 12, 6, 40
"""Steps of a text's first trial and of later ones; steps for which plain decoding holds when it has won."""
_CLEARLY_SLOWER, _WORTH_IT = (0.75, 0.9), 1.0
"""A trial ends at once when it goes so badly, in its first steps and later; it is lost if it gains less than that."""
_PLAIN_STEPS, _FEW, _STALE = 24, 4, 96
"""Plain steps that are remembered; how many are enough to judge by; after so many others, one is taken anew."""
_JUMP = 0.002
"""Seconds."""
_PROBE = 40
"""A drafter that does not pay is asked again after so many steps."""


class DepthRates:
    """How often the first choice of a mask stood, if all before it did; by depth of the mask.

    A depth that was seen seldom follows the others: an easy text is easy at every depth.
    """

    def __init__(self, depths: int, priors: list[float] | None = None) -> None:
        self._priors = priors or [_PRIOR] * depths
        self._stood = [0.0] * depths
        self._seen = [0.0] * depths

    def copy(self) -> "DepthRates":
        """For a new text: the same rates, as priors."""
        return DepthRates(len(self._seen), self.values())

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
        self._around = 0.0
        self.overhead = 0.0
        """Seconds that drafting and planning take per step."""

    @property
    def rate(self) -> float:
        return self._tokens / self._seconds

    def planned(self, seconds: float) -> None:
        self._around = seconds

    def stepped(self, tokens: int, forward_seconds: float, commit_seconds: float) -> None:
        if not tokens:
            return
        self.overhead += (self._around + commit_seconds - self.overhead) / _STEPS
        keep = 1 - 1 / _STEPS
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + forward_seconds + self.overhead


class Use:
    """Whether asking a drafter pays: the tokens it brings against the seconds it takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tokens = 1.0
        self._since = 0
        self._was_asked = False

    def is_due(self, rate: float) -> bool:
        self._since += 1
        self._was_asked = self.tokens >= rate * self.seconds or self._since >= _PROBE
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


class Around:
    """What steps take beyond what the cost curve says of their forward: plain ones, and those with drafts or masks. The
    difference is a price of drafting that no curve knows."""

    def __init__(self) -> None:
        self._plain: float | None = None
        self._planned: float | None = None

    def took(self, is_plain: bool, seconds: float) -> None:
        if is_plain:
            self._plain = _nearer(self._plain, seconds)
        else:
            self._planned = _nearer(self._planned, seconds)

    @property
    def difference(self) -> float:
        if self._plain is None or self._planned is None:
            return 0.0
        return max(0.0, self._planned - self._plain)


def _nearer(known: float | None, seen: float) -> float:
    """A running estimate, which a step that was held up by others hardly moves."""
    return seen if known is None else known + 0.1 * max(-_JUMP, min(_JUMP, seen - known))


class PlainClock:
    """How long a token takes one at a time, over all texts, by the clock."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_PLAIN_STEPS)

    def took(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def is_known(self) -> bool:
        return len(self._seconds) >= _FEW

    @property
    def pace(self) -> float:
        """Tokens per second."""
        return 1 / statistics.median(self._seconds)


class Referee:
    """Whether several tokens at a time pay on one text, by the clock: plans are made from a cost curve, and what drafts
    cost beside the forward is not in it. If they do not, the text is written plainly for a while, twice as long each
    time; then a few steps show whether it has become easier."""

    def __init__(self, plain: PlainClock) -> None:
        self._plain = plain
        self._planned: list[tuple[int, float]] = []
        """Tokens and seconds of the steps of the trial at hand."""
        self._length = _FIRST_TRIAL
        self._holds = _FIRST_HOLD
        self._left = 0
        self._since_plain = 0

    def takes_one(self) -> bool:
        """Asked before every step: whether to take one token in it, without drafts and plans."""
        self._since_plain += 1
        if self._left > 0:
            self._left -= 1
            return True
        return not self._plain.is_known or self._since_plain > _STALE

    def stepped(self, took_one: bool, tokens: int, seconds: float) -> None:
        if took_one:
            self._since_plain = 0
            self._plain.took(seconds)
            return
        self._planned.append((tokens, seconds))
        steps = len(self._planned)
        if steps < 2 or not self._plain.is_known:
            return
        gain = _pace_of(self._planned) / self._plain.pace
        if steps < self._length and gain > _CLEARLY_SLOWER[steps >= _FEW]:
            return
        if gain < _WORTH_IT:
            self._left, self._holds = self._holds, 2 * self._holds
            self._length = _LATER_TRIAL
        else:
            self._holds, self._length = _FIRST_HOLD, _FIRST_TRIAL
        self._planned = []


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
