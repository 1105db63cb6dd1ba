"""Compares two reports: what changed for each subject, whether the change is larger than the spread, and in what else
the two runs differed, which may be the cause of a change."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stridelm.bench.figures import Figures, Spread
from stridelm.bench.records import Report
from stridelm.bench.wording import (
    NOTHING,
    flat,
    interval,
    is_alarming,
    multiple,
    number,
    share,
    suites_of,
    text_verdict,
)

WITHIN = "within the spread"
_ONLY_ONE = "only one of them has it"
_EXPECTED_TO_DIFFER = ("command", "time", "date", "commit", "stridelm")
"""Circumstances in which two runs may differ without a warning: they are why one compares, or do not matter."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of a subject on a suite, before and after."""

    what: str
    before: str
    after: str
    verdict: str
    """The change in words, or that it is within the spread."""
    tone: str = ""
    """`better`, `worse`, or empty if it is neither or unknown."""


def compare(
    before: Report, after: Report, figures_before: list[Figures], figures_after: list[Figures]
) -> RenderableType:
    """What changed, per suite and subject, with the warnings first."""
    parts: list[RenderableType] = [Text(f"before: {_name(before)}"), Text(f"after:  {_name(after)}")]
    parts += [Text(f"warning: {line}", style="bold yellow") for line in warnings(before, after)]
    parts += [Text(line, style="yellow") for line in alone(figures_before, figures_after)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("subject", "figure", "before", "after", "change"):
        table.add_column(title, justify="right" if title in ("before", "after") else "left")
    pairs = _pairs(figures_before, figures_after)
    for suite in suites_of([earlier for earlier, _ in pairs]):
        table.add_row(Text(suite, style="bold underline"))
        for earlier, later in pairs:
            if earlier.suite == suite:
                _add_rows(table, later, changes(before, after, earlier, later))
    parts.append(table if pairs else Text("nothing was measured by both"))
    return Group(*parts)


def _add_rows(table: Table, later: Figures, found: list[Change]) -> None:
    colours = {"better": "green", "worse": "red", "": ""}
    for place, change in enumerate(found):
        subject = Text(later.subject if place == 0 else "")
        verdict = Text(change.verdict, style=colours[change.tone])
        if change.what == "speed-up" and is_alarming(later):
            # Next to the number, so that the speed-up is not read without it.
            verdict.append(f"; text {text_verdict(later)}", style="bold yellow")
        table.add_row(subject, Text(change.what), Text(change.before), Text(change.after), verdict)


def changes(before: Report, after: Report, earlier: Figures, later: Figures) -> list[Change]:
    """The changes of one subject on one suite: always its speed and speed-up, other figures only if they changed."""
    won_and_lost = _won_and_lost(before, after, later)
    found = [
        _of_paths(earlier.path, later.path),
        _of_spreads("tokens/s", earlier.speed, later.speed, lambda each: interval(each, ".1f")),
        _of_spreads("speed-up", earlier.speed_up, later.speed_up, multiple),
        _of_numbers("tokens/forward", earlier.tokens_per_forward, later.tokens_per_forward, number),
        _of_numbers("identical", earlier.identical, later.identical, share),
        _of_numbers("right", earlier.right, later.right, share, won_and_lost),
    ]
    return [change for change in found if change is not None]


def _of_paths(before: str | None, after: str | None) -> Change | None:
    """Reports of older versions have no path."""
    if before is None or after is None or before == after:
        return None
    return Change("path", before, after, "another path: its speed is another thing")


def _of_spreads(
    what: str, before: Spread | None, after: Spread | None, form: Callable[[Spread | None], str]
) -> Change | None:
    if before is None and after is None:
        return None
    if before is None or after is None:
        return Change(what, form(before), form(after), _ONLY_ONE)
    by = f"{after.median / before.median - 1:+.0%}" if before.median else "from nothing"
    if before.low <= after.high and after.low <= before.high:
        return Change(what, form(before), form(after), f"{by}, {WITHIN}")
    return Change(what, form(before), form(after), by, "better" if after.median > before.median else "worse")


def _of_numbers(
    what: str, before: float | None, after: float | None, form: Callable[[float | None], str], detail: str = ""
) -> Change | None:
    """The change of a figure without an interval. Only the share of identical texts is called better or worse: it does
    not depend on chance."""
    if before == after and not detail:
        return None
    if before is None or after is None:
        return Change(what, form(before), form(after), _ONLY_ONE)
    by = f"{100 * (after - before):+.0f} points" if form is share else f"{after - before:+.2f}"
    tone = ("better" if after > before else "worse") if what == "identical" else ""
    return Change(what, form(before), form(after), by + detail, tone)


def _won_and_lost(before: Report, after: Report, figures: Figures) -> str:
    """How many questions became right or wrong: there are few of them, so this says more than a share does."""
    right = [_right(report, figures) for report in (before, after)]
    both = right[0].keys() & right[1].keys()
    won = sum(not right[0][name] and right[1][name] for name in both)
    lost = sum(right[0][name] and not right[1][name] for name in both)
    return f" ({won} won and {lost} lost of {len(both)} questions)" if won or lost else ""


def _right(report: Report, figures: Figures) -> dict[str, bool]:
    """Question -> whether most rounds were right."""
    found: dict[str, list[bool]] = {}
    for record in report.records:
        if (record.suite, record.subject) == (figures.suite, figures.subject) and record.quality.right is not None:
            found.setdefault(record.question, []).append(record.quality.right)
    return {name: 2 * sum(rounds) > len(rounds) for name, rounds in found.items()}


def warnings(before: Report, after: Report) -> list[str]:
    """The differences between the two runs."""
    found: list[str] = []
    circumstances = [
        {name: value for name, value in report.circumstances.items() if name not in _EXPECTED_TO_DIFFER}
        for report in (before, after)
    ]
    found += _apart("", *circumstances)
    settings = [
        {name: value for name, value in report.settings.items() if name not in ("suites", "subjects")}
        for report in (before, after)
    ]  # suites and subjects of only one report are listed by `alone`
    found += _apart("setting ", *settings)
    if before.baseline != after.baseline:
        found.append(f"speed-ups are over {before.baseline} before and over {after.baseline} after")
    for name in before.subjects:
        if name in after.subjects:
            found += _apart(f"{name}: ", before.subjects[name], after.subjects[name])
    for suite in dict.fromkeys(record.suite for record in before.records):
        asked = [{each.question for each in report.records if each.suite == suite} for report in (before, after)]
        if asked[1] and asked[0] != asked[1]:
            found.append(f"{suite}: {len(asked[0] ^ asked[1])} questions were put in one of them only")
    return found


def _apart(kind: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    earlier, later = flat(before), flat(after)
    return [
        f"{kind}{name}: {earlier.get(name, NOTHING)} before, {later.get(name, NOTHING)} after"
        for name in dict.fromkeys((*earlier, *later))
        if earlier.get(name) != later.get(name)
    ]


def alone(before: list[Figures], after: list[Figures]) -> list[str]:
    """Suites that only one of the reports has and, for suites in both, subjects that only one has."""
    lines: list[str] = []
    for own, other, when in ((before, after, "before"), (after, before, "after")):
        suites = suites_of(other)
        for suite in suites_of(own):
            there = {each.subject for each in other if each.suite == suite}
            missing = [each.subject for each in own if each.suite == suite and each.subject not in there]
            if suite not in suites:
                lines.append(f"only {when}: suite {suite}")
            elif missing:
                lines.append(f"only {when}: {', '.join(missing)} on {suite}")
    return lines


def _pairs(before: list[Figures], after: list[Figures]) -> list[tuple[Figures, Figures]]:
    later = {(each.suite, each.subject): each for each in after}
    return [(each, later[each.suite, each.subject]) for each in before if (each.suite, each.subject) in later]


def _name(report: Report) -> str:
    parts = [f"{name} {report.circumstances[name]}" for name in ("stridelm", "commit") if name in report.circumstances]
    when = report.circumstances.get("time", report.circumstances.get("date"))
    return ", ".join([*parts, *([str(when)] if when else [])]) or "a report that says nothing of its origin"
