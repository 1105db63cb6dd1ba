"""Everything that a page shows of a bench, computed once from its report. `bench.json` holds it together with the
records; the HTML page and the playground show it and compute nothing."""

from dataclasses import dataclass
from typing import Any

from stridelm.bench.charts import Chart, Table, charts
from stridelm.bench.figures import Figures
from stridelm.bench.measures import measure
from stridelm.bench.question_figures import QuestionFigures, question_figures
from stridelm.bench.records import Report
from stridelm.bench.scenarios import BUDGET, FIRST_TOKENS, PATIENT, PROMPT
from stridelm.bench.wording import COLUMNS, NOTHING, flat, is_alarming, number, share, suites_of, text_verdict


@dataclass(frozen=True, slots=True)
class Row:
    """A subject on a suite, in words: a cell for each of the columns."""

    suite: str
    subject: str
    cells: tuple[str, ...]
    tone: str
    """How to show the verdict on its text: `good`, or `alarm` if its speed must not be taken at face value."""


@dataclass(frozen=True, slots=True)
class PageFigures:
    summary: str
    broken_promises: str
    """A sentence that names exact decoders whose text differs, which is a bug. Empty if there are none."""
    facts: tuple[Table, ...]
    """What was run, as tables of two columns."""
    columns: Table
    """The columns of the main table: heading and meaning."""
    rows: tuple[Row, ...]
    """The main table."""
    charts: tuple[Chart, ...]
    scenarios: tuple[Table, ...]
    """The figures of the suites `agent` and `voice`."""
    subjects: tuple[Figures, ...]
    """The main table as numbers, per suite and subject."""
    questions: tuple[QuestionFigures, ...]


def page_figures(report: Report) -> PageFigures:
    """Pure: the same report always gives the same figures."""
    figures = measure(report)
    headings = tuple((column.heading.replace("\n", ""), column.meaning) for column in COLUMNS)
    return PageFigures(
        summary=_summary(report, figures),
        broken_promises=_broken_promises(report, figures),
        facts=_facts(report),
        columns=Table("The columns", ("column", "what it says"), headings),
        rows=tuple(
            Row(
                each.suite,
                each.subject,
                tuple(column.cell(each) for column in COLUMNS),
                "alarm" if is_alarming(each) else "good",
            )
            for each in figures
        ),
        charts=tuple(charts(report, figures)),
        scenarios=tuple(
            table for table in (_agent(report.extra.get("agent")), _voice(report.extra.get("voice"))) if table.rows
        ),
        subjects=tuple(figures),
        questions=tuple(question_figures(report)),
    )


def _summary(report: Report, figures: list[Figures]) -> str:
    asked = {(record.suite, record.question) for record in report.records}
    rounds = {record.round for record in report.records}
    return (
        f"{len(report.subjects)} subjects, {len(suites_of(figures))} suites, {len(asked)} questions, "
        f"{len(rounds)} rounds, {len(report.records)} answers. Speed-ups are over {report.baseline}."
    )


def _broken_promises(report: Report, figures: list[Figures]) -> str:
    broken = [
        f"{each.subject} on {each.suite} ({text_verdict(each)})"
        for each in figures
        if each.differs and each.identical is not None and report.subjects.get(each.subject, {}).get("exact")
    ]
    return f"Promised the text of plain decoding, and did not keep it: {'; '.join(broken)}." if broken else ""


def _facts(report: Report) -> tuple[Table, ...]:
    circumstances = {name: value for name, value in report.circumstances.items() if name != "command"}
    subjects = {
        name: "; ".join(f"{key} {value}" for key, value in flat(what).items()) for name, what in report.subjects.items()
    }
    return (
        Table("Machine, versions and time", ("what", "value"), tuple(flat(circumstances).items())),
        Table("Settings of the run", ("setting", "value"), tuple(flat(report.settings).items())),
        Table("Subjects", ("subject", "what it is"), tuple(subjects.items())),
    )


def _agent(figures: dict[str, dict[str, Any]] | None) -> Table:
    rows = tuple(
        (
            name,
            str(each["calls"]),
            str(each["parsed"]),
            str(each["right"]),
            number(each["seconds"]),
            NOTHING if each["speed_up"] is None else f"{each['speed_up']:.2f}x",
            number(each["reasoning_tokens"], ".0f"),
        )
        for name, each in (figures or {}).items()
    )
    return Table(
        "An agent: ten calls, each of which needs the results of those before, and the time of the whole chain",
        ("subject", "calls", "parsed", "right", "whole chain s", "speed-up", f"tokens to think in {BUDGET:.0f} s"),
        rows,
    )


def _voice(figures: dict[str, dict[str, Any]] | None) -> Table:
    rows = tuple(
        (name, str(each["replies"]), number(each["first_words"], ".3f"), share(each["prompt"]), share(each["patient"]))
        for name, each in (figures or {}).items()
    )
    return Table(
        f"A voice: the time until {FIRST_TOKENS} tokens are there, about two words",
        ("subject", "replies", "first words s", f"within {PROMPT * 1e3:.0f} ms", f"within {PATIENT * 1e3:.0f} ms"),
        rows,
    )
