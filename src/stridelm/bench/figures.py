"""What a bench found, in figures: one `Figures` per suite and subject. `measures` fills them from records; the table,
the plots, the page and the comparison read them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its 95 % interval."""

    median: float
    low: float
    high: float


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
    """Tokens per second."""
    speed_up: Spread | None
    """Over the baseline on the same question in the same round."""
    gap_p50: float
    gap_p95: float
    gap_p99: float
    """Between one piece of text and the next."""
    tokens_per_forward: float | None
    rows_per_forward: float | None
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
    repetition: float
    loops: int
    """Answers that end by saying one thing again and again."""
    right: float | None
    """The share of answers that a checker found right."""
    differs: bool
    """Whether any answer's text is another than plain decoding's."""
