"""A pytest plugin for peers' suites: leaves out the tests that do not apply, and writes down how each test ended.

`PEERS_RECORD` names the file to write, a line of JSON a test; `PEERS_LEFT_OUT` holds patterns of test ids, as JSON.
"""

import json
import os
from pathlib import Path

import pytest

from matching import matches

_WORST_FIRST = ("failed", "skipped", "passed")


class Recorder:
    """Collects the outcomes of setup, call and teardown; the worst of them counts."""

    def __init__(self, path: Path, left_out: list[str]) -> None:
        self._path = path
        self._left_out = left_out
        self._ended: dict[str, tuple[str, str]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if any(matches(item.nodeid, pattern) for pattern in self._left_out)]
        for item in left_out:
            self._ended[item.nodeid] = ("left out", "")
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in self._ended]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._ended[report.nodeid] = ("failed", _last_line(report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before, _ = self._ended.get(report.nodeid, ("passed", ""))
        if report.nodeid not in self._ended or _WORST_FIRST.index(report.outcome) < _WORST_FIRST.index(before):
            self._ended[report.nodeid] = (report.outcome, _message(report))

    def pytest_sessionfinish(self) -> None:
        with self._path.open("w") as file:
            for test, (outcome, message) in self._ended.items():
                file.write(json.dumps({"test": test, "outcome": outcome, "message": message}) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    left_out = json.loads(os.environ.get("PEERS_LEFT_OUT", "[]"))
    config.pluginmanager.register(Recorder(Path(os.environ["PEERS_RECORD"]), left_out))


def _message(report: pytest.TestReport) -> str:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return _last_line(report.longreprtext) if report.failed else ""


def _last_line(trace: str) -> str:
    """What was raised: the first of pytest's lines with an E in front, else the last line."""
    lines = trace.strip().splitlines()
    raised = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (raised or lines or [""])[0 if raised else -1][:300]
