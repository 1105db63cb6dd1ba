"""Run peers' own test suites against our server, and compare how each test ends with what is stated in classified/.

Nothing of the peers is kept here: the suites are fetched when they are run. Ours are the shims, which put our server in
place of the peer's, and the lists of what fails or does not apply, with reasons.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outcomes import judge, read_records
from report import SuiteReport, exit_status, show
from served import serve_command
from sources import NoSource, obtain
from suites import HERE, SUITES, Suite, whole_files

_TEST_SECONDS = 120
"""The longest that one test may take."""


def main(
    suites: Annotated[list[str] | None, typer.Argument(help=f"Which: {', '.join(SUITES)}. Default: all.")] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="SUITE=FOLDER: take a suite from a checkout instead of PyPI. May be repeated."),
    ] = None,
    python: Annotated[
        Path, typer.Option(help="An interpreter with tests/peers/requirements.txt, which runs the suites.")
    ] = Path(sys.executable),
    match: Annotated[str, typer.Option("-k", help="Run only tests that match, as in pytest -k.")] = "",
    log: Annotated[Path | None, typer.Option(help="Append the servers' logs to this file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write what was found to this file.")] = None,
) -> None:
    """Run the test suites of openai-python, llama.cpp, vLLM and transformers against our server.

    Each test passes, fails for a stated reason, or does not apply for a stated reason: tests/peers/classified/ has
    the reasons. The exit status is 1 if a test fails without one, or passes although one says that it fails.
    """
    folders = _read_sources(source or [])
    unknown = set(suites or ()) | set(folders)
    if unknown - set(SUITES):
        raise typer.BadParameter(f"no such suite: {', '.join(sorted(unknown - set(SUITES)))}; {', '.join(SUITES)}")
    console = Console()
    reports = []
    for name in suites or SUITES:
        with console.status(f"{name}: running"), tempfile.TemporaryDirectory(prefix="peers-") as scratch:
            log_file = log.absolute() if log else Path(scratch) / "server.log"
            reports.append(run_suite(SUITES[name], folders.get(name), python, Path(scratch), log_file, match))
    show(reports, console)
    if json_file:
        json_file.write_text(json.dumps([report.as_json() for report in reports], indent=1) + "\n")
    raise typer.Exit(exit_status(reports))


def run_suite(suite: Suite, given: Path | None, python: Path, scratch: Path, log: Path, match: str = "") -> SuiteReport:
    """Fetch a suite, run it and judge its tests."""
    try:
        root = obtain(suite, given, scratch)
    except NoSource as error:
        return SuiteReport(suite.name, suite.package, not_run=str(error))
    statements = suite.statements
    files = suite.files(root)
    left_out = whole_files(statements, files, root)
    chosen = [file for file in files if file not in {record.test for record in left_out}]
    record = scratch / "record.jsonl"
    command = [str(python.absolute()), "-m", "pytest", "-p", "recorder", "-p", f"{suite.name}_shim", "-q", "--tb=short"]
    command += ["--continue-on-collection-errors"]
    command += ["--timeout", str(_TEST_SECONDS), *suite.options, *(["-k", match] if match else []), *chosen]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE / "shims"), str(root)]),
        "PEERS_RECORD": str(record),
        "PEERS_LOG": str(log),
        "PEERS_LEFT_OUT": json.dumps(statements.left_out),
        **serve_command(suite.model, scratch),
    }
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if not record.exists():
        said = (ended.stderr or ended.stdout).strip().splitlines() or ["it said nothing"]
        return SuiteReport(suite.name, suite.package, not_run=f"pytest failed: {said[-1]}", has_crashed=True)
    tests = [judge(each, statements) for each in (*left_out, *read_records(record))]
    unused = () if match else statements.unused(test.test for test in tests)
    return SuiteReport(suite.name, suite.package, tuple(tests), unused=tuple(unused))


def _read_sources(values: list[str]) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for value in values:
        name, equals, folder = value.partition("=")
        if not equals or not Path(folder).is_dir():
            raise typer.BadParameter(f"--source takes SUITE=FOLDER with a folder that exists, not {value!r}")
        folders[name] = Path(folder).absolute()
    return folders


if __name__ == "__main__":
    typer.run(main)
