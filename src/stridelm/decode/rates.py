"""Running estimates that the planner steers by: acceptance by depth of mask, the pace, what drafters bring."""

_PRIOR = 0.7
_PRIOR_WEIGHT = 6.0
_MOST = 0.98
_HALF_LIFE = 120
"""Observations after which an old one counts half: a text changes its nature within some sentences."""
_STEPS = 32
"""Steps over which the pace is taken."""
_TRIAL, _REST, _LONGEST_REST = 24, 128, 1024
"""Steps over which several tokens at a time are judged, and for which they rest if they do not pay; twice as long each
time in a row."""
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
    """Whether several tokens at a time pay at all, drafting and planning included. If not, decoding rests, plain:
    a batch that uses the machine up, or a text that nobody can foretell, is never slower than without us."""

    def __init__(self) -> None:
        self._length = _REST
        self._left = 0
        self._begin()

    def _begin(self) -> None:
        self._steps = self._tokens = self._plain_tokens = 0
        self._seconds = self._plain_seconds = 0.0

    def rests(self) -> bool:
        """Asked once a step."""
        self._left = max(0, self._left - 1)
        return self._left > 0

    def stepped(self, tokens: int, seconds: float, plain_tokens: int, plain_seconds: float) -> None:
        """What a step brought and took, and what a plain one would have."""
        self._steps += 1
        self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds
        self._plain_tokens, self._plain_seconds = self._plain_tokens + plain_tokens, self._plain_seconds + plain_seconds
        if self._steps < _TRIAL:
            return
        pays = self._tokens * self._plain_seconds >= self._plain_tokens * self._seconds
        self._left = 0 if pays else self._length + 1
        self._length = _REST if pays else min(2 * self._length, _LONGEST_REST)
        self._begin()
