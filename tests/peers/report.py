"""What a run of the suites found: tables to read, JSON to keep."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outcomes import WRONG, Ended, Verdict, count


@dataclass(frozen=True)
class SuiteReport:
    """How one suite ended."""

    name: str
    package: str
    tests: tuple[Ended, ...] = ()
    not_run: str = ""
    """Why it could not be run at all."""
    has_crashed: bool = False
    """It was there, but pytest or our server did not start."""
    unused: tuple[str, ...] = ()
    """Patterns of the list that no test matches."""

    @property
    def is_wrong(self) -> bool:
        """It has crashed, a test failed without a stated reason, or one passed though stated to fail."""
        return self.has_crashed or any(test.verdict in WRONG for test in self.tests)

    def as_json(self) -> dict[str, Any]:
        counts = count(self.tests)
        return {
            "suite": self.name,
            "package": self.package,
            "not_run": self.not_run or None,
            "counts": {verdict.value: counts[verdict] for verdict in Verdict},
            "tests": [{"test": each.test, "verdict": each.verdict, "reason": each.reason} for each in self.tests],
            "unused_patterns": list(self.unused),
        }


def exit_status(reports: Iterable[SuiteReport]) -> int:
    """0, or 1 where a list and the server disagree. A suite that cannot be had is not a failure."""
    return int(any(report.is_wrong for report in reports))


def show(reports: list[SuiteReport], console: Console) -> None:
    """Print the counts, why tests failed or did not apply, and what is wrong."""
    table = Table(title="Peers' own tests against our server")
    for title in ("suite", "from"):
        table.add_column(title)
    for verdict in Verdict:
        table.add_column(verdict.value, justify="right")
    for report in reports:
        counts = count(report.tests)
        cells = [str(counts[verdict] or "") for verdict in Verdict] if not report.not_run else ["not run"]
        table.add_row(report.name, report.package, *cells)
    console.print(table)
    for report in reports:
        if report.not_run:
            console.print(f"{report.name} was not run: {escape(report.not_run)}", soft_wrap=True)
        _show_reasons(report, console)


def _show_reasons(report: SuiteReport, console: Console) -> None:
    for verdict in (Verdict.FAILED, Verdict.NOT_APPLICABLE):
        reasons: Counter[str] = Counter()
        for test in report.tests:
            if test.verdict is verdict:
                reasons[test.reason] += test.count
        if reasons:
            console.print(f"\n[bold]{report.name}: {verdict.value}[/bold]")
        for reason, number in reasons.most_common():
            console.print(f"  {number:4d}  {escape(reason)}", soft_wrap=True, highlight=False)
    for verdict in WRONG:
        for test in report.tests:
            if test.verdict is verdict:
                line = f"{report.name}: {verdict.value}: {test.test}: {test.reason}"
                console.print(f"[red]{escape(line)}[/red]", soft_wrap=True, highlight=False)
    for pattern in report.unused:
        console.print(f"{report.name}: no test matches {escape(pattern)}: is it still needed?", soft_wrap=True)
