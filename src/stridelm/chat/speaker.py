"""Whoever answers in a chat, and what it tells of an answer."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stridelm.chat.conversation import Conversation

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Report:
    """What an answer cost; None where nobody tells."""

    seconds: float
    """From the question to the last piece of the answer."""
    first: float | None
    """From the question to its first piece."""
    tokens: int | None = None
    forwards: int | None = None
    strides: tuple[int, ...] = ()
    """The tokens of each forward pass, in order, if that is known."""
    histogram: Mapping[int, int] = field(default_factory=dict)
    """Tokens of a forward pass -> how many passes brought so many."""
    decoder: str | None = None
    exact: bool | None = None
    exact_to: str | None = None
    path: str | None = None
    """What ran: the backend, and whose steps."""
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
    """Several answers as one: what some of them do not tell is not told."""
    reports = list(reports)
    told = [report for report in reports if report.tokens is not None and report.forwards is not None]
    histogram: Counter[int] = Counter()
    for report in reports:
        histogram.update(report.histogram)
    return Report(
        seconds=sum(report.seconds for report in reports),
        first=None,
        tokens=_sum([report.tokens for report in reports]),
        forwards=sum(report.forwards or 0 for report in told) if len(told) == len(reports) else None,
        histogram=histogram,
        path=_common([report.path for report in reports]),
    )


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _common(paths: list[str | None]) -> str | None:
    """Several ones are all named, as long as every answer has one."""
    named = [path for path in dict.fromkeys(paths) if path is not None]
    return "; ".join(named) if None not in paths and named else None


class Reply(Protocol):
    """An answer in the making: iterate for its pieces, one a forward pass where these are told apart."""

    def __iter__(self) -> "Reply": ...

    def __next__(self) -> str: ...

    def report(self) -> Report:
        """Also of an answer that was broken off."""
        ...

    def close(self) -> None: ...


class Speaker(Protocol):
    """A model, here or behind a URL. What goes wrong is an InputError; the chat goes on after it."""

    description: str

    def ask(self, messages: Messages) -> Reply: ...

    def shorten(self, conversation: Conversation) -> int:
        """Drop the oldest turns that leave no room for an answer; says how many."""
        ...

    def decode_by(self, decoder: str) -> None: ...

    @property
    def decoder(self) -> str | None:
        """By which the next answer is decoded; None if the server chooses."""
        ...
