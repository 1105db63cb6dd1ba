"""How the tests of a peer's suite ended, beside what is stated about them.

A suite's statements are a TOML file: entries of `not_applicable` and of `fails`, each with a `reason` and the `tests`
that it holds for, as patterns of test ids in which `*` is any text. The first entry that matches counts.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shims.matching import matches


class Verdict(StrEnum):
    """What a test's end means, given what is stated about it."""

    PASSED = "passed"
    FAILED = "failed, with reason"
    NOT_APPLICABLE = "not applicable"
    UNEXPLAINED = "failed, without reason"
    REFUTED = "passed, though stated to fail"


WRONG = (Verdict.UNEXPLAINED, Verdict.REFUTED)
"""These make the run fail: either the server or the list is wrong."""


@dataclass(frozen=True)
class Statement:
    """Why some tests fail or do not apply."""

    reason: str
    tests: tuple[str, ...]

    def covers(self, test: str) -> bool:
        return any(matches(test, pattern) for pattern in self.tests)


@dataclass(frozen=True)
class Statements:
    """All that is stated about a suite."""

    not_applicable: tuple[Statement, ...] = ()
    fails: tuple[Statement, ...] = ()

    @property
    def left_out(self) -> list[str]:
        """The patterns of the tests that need not run."""
        return [pattern for statement in self.not_applicable for pattern in statement.tests]

    def unused(self, tests: Iterable[str]) -> list[str]:
        """Patterns that no test matches: the suite has moved on, or one is mistyped."""
        names = list(tests)
        patterns = [pattern for each in (*self.not_applicable, *self.fails) for pattern in each.tests]
        return [pattern for pattern in patterns if not any(matches(name, pattern) for name in names)]


@dataclass(frozen=True)
class Record:
    """One test as pytest saw it: its outcome is passed, failed, skipped or left out."""

    test: str
    outcome: str
    message: str = ""
    count: int = 1
    """Tests that it stands for: a file that is left out whole stands for all of its own."""


@dataclass(frozen=True)
class Ended:
    """One test, judged."""

    test: str
    verdict: Verdict
    reason: str
    count: int = 1


def read_statements(file: Path) -> Statements:
    """Read a suite's file."""
    content = tomllib.loads(file.read_text())
    unknown = set(content) - {"not_applicable", "fails"}
    if unknown:
        raise ValueError(f"{file}: unknown entries {', '.join(sorted(unknown))}; known: not_applicable, fails")
    kinds = {
        kind: tuple(Statement(entry["reason"], tuple(entry["tests"])) for entry in content.get(kind, ()))
        for kind in ("not_applicable", "fails")
    }
    return Statements(**kinds)


def read_records(file: Path) -> list[Record]:
    """Read what the recorder wrote."""
    return [Record(**json.loads(line)) for line in file.read_text().splitlines()]


def judge(record: Record, statements: Statements) -> Ended:
    """Compare a test's end with what is stated about it."""

    def ended(verdict: Verdict, reason: str) -> Ended:
        return Ended(record.test, verdict, reason, record.count)

    for statement in statements.not_applicable:
        if statement.covers(record.test):
            return ended(Verdict.NOT_APPLICABLE, statement.reason)
    if record.outcome == "skipped":
        return ended(Verdict.NOT_APPLICABLE, f"the suite skips it: {record.message}")
    stated = next((statement.reason for statement in statements.fails if statement.covers(record.test)), None)
    if record.outcome == "passed":
        return ended(Verdict.PASSED if stated is None else Verdict.REFUTED, stated or "")
    return ended(Verdict.UNEXPLAINED, record.message) if stated is None else ended(Verdict.FAILED, stated)


def count(tests: Iterable[Ended]) -> Counter[Verdict]:
    """How many tests got each verdict."""
    counts: Counter[Verdict] = Counter()
    for test in tests:
        counts[test.verdict] += test.count
    return counts
