"""Figures of each question: by subject, over all rounds."""

import statistics
from collections import defaultdict
from dataclasses import dataclass

from stridelm.bench.records import Record, Report


@dataclass(frozen=True, slots=True)
class QuestionFigures:
    suite: str
    question: str
    subject: str
    answers: int
    tokens: float
    """The median of the answers' lengths."""
    speed: float | None
    """Tokens per second, over all answers together."""
    tokens_per_forward: float | None
    right: float | None
    """The share of answers that a checker found right, of those that have a checker."""
    differing: int
    """Number of answers whose text differs from plain decoding's."""
    looping: int
    text: str
    """The verdict on the text, in words."""
    shown_round: int | None
    """The first round whose text differs or loops, which is shown; None if there is none."""


def question_figures(report: Report) -> list[QuestionFigures]:
    """Suites in the order of the records, their questions by name, subjects in the order of the records."""
    suites = list(dict.fromkeys(record.suite for record in report.records))
    groups: dict[tuple[int, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in report.records:
        groups[suites.index(record.suite), record.question][record.subject].append(record)
    return [
        _figures(own)
        for _, by_subject in sorted(groups.items(), key=lambda item: item[0])
        for own in by_subject.values()
    ]


def _figures(own: list[Record]) -> QuestionFigures:
    answers = [record.answer for record in own]
    tokens, forwards = sum(answer.count for answer in answers), sum(answer.forwards or 0 for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    judged = [record.quality.right for record in own if record.quality.right is not None]
    return QuestionFigures(
        suite=own[0].suite,
        question=own[0].question,
        subject=own[0].subject,
        answers=len(own),
        tokens=statistics.median(answer.count for answer in answers),
        speed=tokens / seconds if seconds else None,
        tokens_per_forward=tokens / forwards if forwards else None,
        right=sum(judged) / len(judged) if judged else None,
        differing=sum(_differs(record) for record in own),
        looping=sum(record.quality.loops for record in own),
        text=_verdict(own),
        shown_round=next((record.round for record in own if _differs(record) or record.quality.loops), None),
    )


def _verdict(own: list[Record]) -> str:
    """The verdict over all rounds of a question; with the number of rounds if it does not hold for all."""
    parts: list[str] = []
    if differing := [record for record in own if _differs(record)]:
        at = [record.quality.departs_at for record in differing if record.quality.departs_at is not None]
        where = f" at token {min(at)}" if at else ""
        parts.append(f"differs{where}{_of_all(len(differing), len(own))}")
    elif all(record.quality.identical is None for record in own):
        parts.append("not compared")
    else:
        parts.append("same")
    if looping := sum(record.quality.loops for record in own):
        parts.append(f"loops{_of_all(looping, len(own))}")
    return ", ".join(parts)


def _of_all(count: int, whole: int) -> str:
    return "" if count == whole else f" ({count} of {whole} rounds)"


def _differs(record: Record) -> bool:
    return record.quality.identical is False
