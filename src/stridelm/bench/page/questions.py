"""The part of the page that shows every question: who answered how, and the texts where they differ or loop."""

import statistics
from itertools import groupby

from stridelm.bench.page.parts import element, joined, parted, said, table, texts
from stridelm.bench.records import Record, Report
from stridelm.bench.wording import number, share

_TITLES = ("subject", "text", "tokens", "tokens/s", "tokens/forward", "right")


def questions(report: Report) -> str:
    """A table a suite, folded up."""
    suites = dict.fromkeys(record.suite for record in report.records)
    if not suites:
        return element("p", "None was answered.")
    return joined([_suite(report, suite) for suite in suites])


def _suite(report: Report, suite: str) -> str:
    records = sorted(
        (record for record in report.records if record.suite == suite), key=lambda record: record.question
    )  # which keeps the order of subjects and rounds
    bodies = [_question(report, name, list(group)) for name, group in groupby(records, lambda record: record.question)]
    odd = sum(_differs(record) for record in records), sum(record.quality.loops for record in records)
    heading = f"{suite}: {len(bodies)} questions, {len(records)} answers, {odd[0]} differ, {odd[1]} loop"
    caption = f"{suite}: over all rounds; texts are shown where they differ from {report.baseline}'s or loop"
    return element("details", element("summary", said(heading)) + table(caption, _TITLES, bodies, class_="wide"))


def _question(report: Report, name: str, records: list[Record]) -> str:
    plain = {record.round: record for record in records if record.subject == report.baseline}
    rows: list[str] = []
    for subject in dict.fromkeys(record.subject for record in records):
        own = [record for record in records if record.subject == subject]
        shown = next((record for record in own if _differs(record) or record.quality.loops), None)
        rows.append(_row(subject, own))
        if shown is not None:
            rows.append(element("td", _texts(report, shown, plain.get(shown.round)), class_="words",
                                colspan=str(len(_TITLES))))  # fmt: skip
    first = element("th", said(name), scope="rowgroup", colspan=str(len(_TITLES)))
    return element("tbody", "".join(element("tr", row) for row in (first, *rows)))


def _row(subject: str, own: list[Record]) -> str:
    forwards = sum(record.answer.forwards or 0 for record in own)
    tokens = sum(record.answer.count for record in own)
    judged = [record.quality.right for record in own if record.quality.right is not None]
    seconds = sum(record.answer.seconds for record in own)
    is_odd = any(_differs(record) or record.quality.loops for record in own)
    cells = (
        number(statistics.median(record.answer.count for record in own), ".0f"),
        number(tokens / seconds if seconds else None, ".1f"),
        number(tokens / forwards if forwards else None),
        share(sum(judged) / len(judged) if judged else None),
    )
    verdict = element("td", said(_verdict(own)), class_="words verdict alarm" if is_odd else "words verdict")
    return element("th", said(subject), scope="row") + verdict + "".join(element("td", said(cell)) for cell in cells)


def _verdict(own: list[Record]) -> str:
    """Over all rounds of a question; how many, where it is not all of them."""
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


def _texts(report: Report, shown: Record, plain: Record | None) -> str:
    if plain is None or not _differs(shown):
        summary, content = "the text", texts([shown.subject], [said(shown.answer.text)])
    else:
        summary = "the two texts; marked is where they part"
        content = texts([report.baseline, shown.subject], parted(plain.answer.text, shown.answer.text))
    return element("details", element("summary", said(f"{summary} (round {shown.round})")) + content)
