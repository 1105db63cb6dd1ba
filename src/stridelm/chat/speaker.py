"""The interface of models that answer in a chat, and their reports on answers."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stridelm.chat.conversation import Conversation

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Report:
    """What an answer cost; fields that are not known are None."""

    seconds: float
    """From the question to the last piece of the answer."""
    first: float | None
    """From the question to its first piece."""
    tokens: int | None = None
    forwards: int | None = None
    strides: tuple[int, ...] = ()
    """The tokens of each forward pass, in order, if that is known."""
    histogram: Mapping[int, int] = field(default_factory=dict)
    """Number of tokens -> number of forward passes that added that many."""
    decoder: str | None = None
    exact: bool | None = None
    exact_to: str | None = None
    path: str | None = None
    """What ran: the backend, and whether it ran steps by itself."""
    backend: str | None = None
    own_forwards: int | None = None
    """Forwards that the backend ran by itself."""
    prompt_tokens: int | None = None
    finish_reason: str | None = None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.tokens is not None and self.seconds else None

    @property
    def tokens_per_forward(self) -> float | None:
        return self.tokens / self.forwards if self.tokens is not None and self.forwards else None


def total(reports: Iterable[Report]) -> Report:
    """The report on several answers together. Figures that any of them lacks are None."""
    reports = list(reports)
    known = [report for report in reports if report.tokens is not None and report.forwards is not None]
    histogram: Counter[int] = Counter()
    for report in reports:
        histogram.update(report.histogram)
    return Report(
        seconds=sum(report.seconds for report in reports),
        first=None,
        tokens=_sum([report.tokens for report in reports]),
        forwards=sum(report.forwards or 0 for report in known) if len(known) == len(reports) else None,
        histogram=histogram,
        path=_common([report.path for report in reports]),
    )


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _common(paths: list[str | None]) -> str | None:
    """All different paths, joined; None if any answer has none."""
    named = [path for path in dict.fromkeys(paths) if path is not None]
    return "; ".join(named) if None not in paths and named else None


class Reply(Protocol):
    """An answer that is being written. Iterate over its pieces: one per forward pass, if these can be told apart."""

    def __iter__(self) -> "Reply": ...

    def __next__(self) -> str: ...

    def report(self) -> Report:
        """The figures so far; also for an answer that was interrupted."""
        ...

    def close(self) -> None: ...


class Speaker(Protocol):
    """A model, local or behind a URL. Failures are raised as InputError; the chat continues after one."""

    description: str

    def ask(self, messages: Messages) -> Reply: ...

    def shorten(self, conversation: Conversation) -> int:
        """Drop the oldest turns until there is room for an answer; returns how many."""
        ...

    def decode_by(self, decoder: str) -> None: ...

    @property
    def decoder(self) -> str | None:
        """The decoder of the next answer; None if the server chooses."""
        ...
