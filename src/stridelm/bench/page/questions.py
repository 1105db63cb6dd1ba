"""The part of the page that shows every question: how each subject answered, and the texts that differ or loop."""

from collections.abc import Sequence
from itertools import groupby

from stridelm.bench.page.parts import element, joined, parted, said, table, texts
from stridelm.bench.question_figures import QuestionFigures
from stridelm.bench.records import Record, Report
from stridelm.bench.wording import number, share

_TITLES = ("subject", "text", "tokens", "tokens/s", "tokens/forward", "right")
_Key = tuple[str, str, str, int]
"""Suite, question, subject and round."""


def questions(report: Report, figures: Sequence[QuestionFigures]) -> str:
    """A table for each suite, collapsed."""
    if not figures:
        return element("p", "None was answered.")
    records = {(each.suite, each.question, each.subject, each.round): each for each in report.records}
    suites = groupby(figures, lambda each: each.suite)
    return joined([_suite(report, records, suite, list(own)) for suite, own in suites])


def _suite(report: Report, records: dict[_Key, Record], suite: str, figures: list[QuestionFigures]) -> str:
    bodies = [_question(report, records, name, list(own)) for name, own in groupby(figures, lambda each: each.question)]
    answers, differ, loop = (
        sum(counts) for counts in zip(*((each.answers, each.differing, each.looping) for each in figures), strict=True)
    )
    heading = f"{suite}: {len(bodies)} questions, {answers} answers, {differ} differ, {loop} loop"
    caption = f"{suite}: over all rounds; texts are shown where they differ from {report.baseline}'s or loop"
    return element("details", element("summary", said(heading)) + table(caption, _TITLES, bodies, class_="wide"))


def _question(report: Report, records: dict[_Key, Record], name: str, figures: list[QuestionFigures]) -> str:
    rows: list[str] = []
    for each in figures:
        rows.append(_row(each))
        if each.shown_round is not None:
            plain = records.get((each.suite, name, report.baseline, each.shown_round))
            shown = records[each.suite, name, each.subject, each.shown_round]
            rows.append(element("td", _texts(report, shown, plain), class_="words", colspan=str(len(_TITLES))))
    first = element("th", said(name), scope="rowgroup", colspan=str(len(_TITLES)))
    return element("tbody", "".join(element("tr", row) for row in (first, *rows)))


def _row(each: QuestionFigures) -> str:
    cells = (
        number(each.tokens, ".0f"),
        number(each.speed, ".1f"),
        number(each.tokens_per_forward),
        share(each.right),
    )
    is_odd = each.shown_round is not None
    verdict = element("td", said(each.text), class_="words verdict alarm" if is_odd else "words verdict")
    return (
        element("th", said(each.subject), scope="row") + verdict + "".join(element("td", said(cell)) for cell in cells)
    )


def _texts(report: Report, shown: Record, plain: Record | None) -> str:
    if plain is None or shown.quality.identical is not False:
        summary, content = "the text", texts([shown.subject], [said(shown.answer.text)])
    else:
        summary = "the two texts; marked is where they part"
        content = texts([report.baseline, shown.subject], parted(plain.answer.text, shown.answer.text))
    return element("details", element("summary", said(f"{summary} (round {shown.round})")) + content)
