"""Which steps a backend can run by itself, what they obey and how long they take; from these, how many drafts pay."""

from collections.abc import Callable
from functools import lru_cache

from stridelm.contracts import Forward
from stridelm.decode.chain_length import ChainLength
from stridelm.engine.step_kind import StepKind
from stridelm.stepper import Stepper

Key = tuple[int, int, frozenset[int]]
"""Identifies a stepper: drafts, places, tokens that end a text."""
_TILE = 7
"""Number of drafts that, with their masks, fill one tile of rows."""
_DRAFTS = (2, 4, _TILE, 12)
"""Numbers of drafts that are tried."""
_MAX_ROWS = 256
"""Maximum number of rows of a step with drafts. On an H200 with the built-in model, drafts made 16 users (144 rows)
1.28 times as fast, and 32 users (288 rows) no faster: by then rows cost time, and the host has more to read."""


class StepShapes:
    """The properties and times of a forward's steppers. Steppers that cannot be made or timed are left out, and the
    failure is reported."""

    def __init__(self, forward: Forward, *, note: Callable[[Exception], None], free: Callable[[Key], None]) -> None:
        """`note`: called with every failure; `free`: frees all places of a stepper before it is timed."""
        self.forward, self._note, self._free = forward, note, free
        self._kinds: dict[tuple[int, frozenset[int]], StepKind | None] = {}
        self._seconds: dict[Key, float | None] = {}
        self._lengths: dict[Key, ChainLength] = {}
        """Keyed by maximum number of drafts, number of places and tokens that end a text."""

    def stepper(self, key: Key) -> Stepper:
        stepper = self.forward.stepper(*key)
        assert stepper is not None
        return stepper

    def kind(self, drafts: int, ends: frozenset[int]) -> StepKind | None:
        """What steps with `drafts` drafts obey and need; None if the backend runs none by itself."""
        key = (drafts, ends)
        if key not in self._kinds:
            self._kinds[key] = None
            try:
                if (stepper := self.forward.stepper(drafts, 1, ends)) is not None:
                    self._kinds[key] = StepKind.of(stepper)
            except Exception as error:
                self._note(error)
        return self._kinds[key]

    def length(self, drafts: int, places: int, ends: frozenset[int]) -> ChainLength:
        """The object that chooses the number of drafts, up to `drafts`, for `places` texts."""
        key = (drafts, places, ends)
        if key not in self._lengths:
            counts = [count for count in sorted({*_DRAFTS, drafts}) if 0 < count <= drafts]
            fitting = [count for count in counts if self._fits(count, places, ends)]
            timed = {count: self.seconds((count, places, ends)) for count in (0, *fitting)} if fitting else {}
            seconds = {count: each for count, each in timed.items() if each is not None}
            self._lengths[key] = ChainLength(seconds if 0 in seconds else {0: 1.0})
        return self._lengths[key]

    def _fits(self, drafts: int, places: int, ends: frozenset[int]) -> bool:
        """Whether a step is not too large, and obeys the same fields as one without drafts, which sequences are checked
        against."""
        kind, plain = self.kind(drafts, ends), self.kind(0, ends)
        if kind is None or plain is None:
            return False
        return kind.rows * places <= _MAX_ROWS and (kind.params, kind.fields) == (plain.params, plain.fields)

    def seconds(self, key: Key) -> float | None:
        """Seconds per step, measured once while the stepper is idle: timing runs real steps, which overwrite its
        places. None if measuring fails."""
        if key not in self._seconds:
            self._seconds[key] = None
            try:
                self._free(key)
                self._seconds[key] = self.stepper(key).seconds
            except Exception as error:
                self._note(error)
        return self._seconds[key]


@lru_cache
def longest(drafts: int) -> int:
    """Maximum number of drafts that are tried if `drafts` are allowed: all of them, if they fit into a tile."""
    return drafts if drafts <= _TILE else max(count for count in _DRAFTS if count <= drafts)
