"""What a bench found, in figures: one `Figures` per suite and subject. `measures` fills them from records; the table,
the plots, the page and the comparison read them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its 95 % interval: the values between which the true median lies, were all values drawn alike and
    independently of each other. Below six values no two of them lie so far apart: then `coverage` is less."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float] = (0.0, 0.0)
    """The lower and the upper."""
    count: int = 0
    """Of the values."""
    coverage: float = 0.95
    """How sure the interval is."""


@dataclass(frozen=True, slots=True)
class SpeedUp(Spread):
    """Never without a word on the text."""

    differs: bool = False
    """Whether any of the texts is another than plain decoding's, or nobody can say."""
    loops: bool = False
    """Whether any of the texts ends by saying one thing again and again."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, unless it says otherwise."""

    suite: str
    subject: str
    answers: int
    first: Spread
    """Time to the first token."""
    latency: Spread
    """Until the answer was whole."""
    speed: Spread
    """Tokens per second, of the whole answer."""
    speed_up: SpeedUp | None
    """Over the baseline on the same question in the same round, by time per token; None where there are no such two
    answers."""
    gap_p50: float
    gap_p95: float
    gap_p99: float
    """Between one token and the next. The tokens of a stride come together: between them there is none, and a subject
    of more than two tokens a stride has a median of 0."""
    tokens_per_forward: float | None
    rows_per_forward: float | None
    """1 for plain decoding: of the prompt the last row counts, which writes the first token."""
    acceptance: tuple[float, ...]
    """By depth, from 1: the share of drafts that stood, of those looked at."""
    memory_peak: int | None
    """Bytes."""
    phases: dict[str, float]
    """Shares of the answers' time."""
    identical: float | None
    """The share of answers that are plain decoding's; None where nothing could be compared."""
    departs_at: float | None
    """The first token that differs: the median over the answers that do."""
    agreement: float | None
    log_likelihood: float | None
    """The mean of the answers' means."""
    repetition: float
    loops: int
    """Answers that end by saying one thing again and again."""
    right: float | None
    """The share of answers that a checker found right, of those that have one."""
    differs: bool
    """Whether any answer's text is another than plain decoding's, or nobody can say."""
    path: str | None = None
    """What ran, of answers whose subject tells: the backend, and whose steps."""
    decode_speed: Spread | None = None
    """Tokens per second from the first stride on; None where no answer has a second one."""
    decode_speed_up: SpeedUp | None = None
    """The same over the baseline's: reading the prompt is left out."""
