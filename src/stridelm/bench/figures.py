"""The figures of a bench: one `Figures` per suite and subject. `measures` computes them from records; the table, the
plots, the page and the comparison read them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its 95 % confidence interval, assuming independent and identically distributed values. With fewer
    than six values even the whole range covers less than that: then `coverage` is smaller."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float] = (0.0, 0.0)
    """The lower and the upper quartile."""
    count: int = 0
    """Number of values."""
    coverage: float = 0.95
    """The confidence level of the interval."""


@dataclass(frozen=True, slots=True)
class SpeedUp(Spread):
    """A speed-up, together with what its texts were like: without that it says little."""

    differs: bool = False
    """Whether any of the texts differs from plain decoding's, or could not be compared with it."""
    loops: bool = False
    """Whether any of the texts ends in a repetition loop."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one subject on one suite. Times are in seconds."""

    suite: str
    subject: str
    answers: int
    first: Spread
    """Time to the first token."""
    latency: Spread
    """Time until the answer was complete."""
    speed: Spread
    """Tokens per second, over the whole answer."""
    speed_up: SpeedUp | None
    """Over the baseline on the same question in the same round, by time per token; None if there is no such pair of
    answers."""
    gap_p50: float
    gap_p95: float
    gap_p99: float
    """Time between one token and the next. The tokens of a stride come together, with gaps of 0 between them; so a
    subject with more than two tokens per stride has a median of 0."""
    tokens_per_forward: float | None
    rows_per_forward: float | None
    """1 for plain decoding. Of the prompt only the last row counts, which writes the first token."""
    acceptance: tuple[float, ...]
    """By depth, from 1: the share of accepted drafts, of those looked at."""
    memory_peak: int | None
    """Bytes."""
    phases: dict[str, float]
    """Shares of the answers' time, by phase."""
    identical: float | None
    """The share of answers that equal plain decoding's; None if none could be compared."""
    departs_at: float | None
    """The position of the first token that differs: the median over answers that differ."""
    agreement: float | None
    log_likelihood: float | None
    """The mean of the answers' means."""
    repetition: float
    loops: int
    """Number of answers that end in a repetition loop."""
    right: float | None
    """The share of answers that a checker found right, of those that have a checker."""
    differs: bool
    """Whether any answer's text differs from plain decoding's, or could not be compared with it."""
    path: str | None = None
    """What ran, if the subject reports it: the backend, and its own steps or the host's."""
    decode_speed: Spread | None = None
    """Tokens per second after the first stride; None if no answer has a second one."""
    decode_speed_up: SpeedUp | None = None
    """The speed-up by `decode_speed`: without the time to read the prompt."""
