"""Put the faults of faults.toml into copies of the repository, one at a time, and say which test finds each.

Importing torch and transformers takes longer than most tests: it is done once, and every run of pytest is a fork.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_NOT_COPIED = (".git", ".venv*", ".pytest_cache", ".ruff_cache", ".hypothesis", "runs", "bench-report")
_WHOLE_SECONDS = 7200.0
_PYTEST = ("-q", "--tb=line", "--disable-warnings", "-m", "not slow", "-n", "0", "-p", "no:cacheprovider")
_PRELOADED = ("pytest", "hypothesis", "torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")
_WHERE = "import stridelm; print(stridelm.__file__)"
_OUTCOMES = {0: "survived", 1: "caught", 2: "caught", None: "time-out"}
"""By pytest's exit status: 2 if tests could not be imported. Any other says that there are no such tests."""
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of faults.toml, which says what the fields mean."""

    name: str
    breaks: str
    file: str
    line: str
    becomes: str
    caught_by: list[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a fault."""

    outcome: str
    """caught, time-out (which counts as caught), survived, too slow (the tests take too long also without the fault),
    or lost: the line is not there any more."""
    test: str = ""
    """The test that failed."""
    why: str = ""
    """Its error in a line."""
    file: str = ""
    """Where the fault was put."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of pytest ended."""

    status: int | None
    """None: it took too long."""
    failed: dict[str, str]
    """As `Failures` has them."""
    last_line: str = ""


class Lost(Exception):
    """A fault's line, or its tests, are not in the tree."""


def read_faults() -> dict[str, Fault]:
    entries = tomllib.loads((HERE / "faults.toml").read_text())
    return {name: Fault(name=name, **entry) for name, entry in entries.items()}


def place_of(fault: Fault, tree: Path) -> Path:
    """The file that holds the fault's line: the one that is named, or in another state of the repository the one of
    that name, or any other."""
    named = tree / fault.file
    files = [file for file in (tree / "src").rglob(f"*{named.suffix}") if _count(file, fault.line)]
    for found in ([named] if named in files else [], [file for file in files if file.name == named.name], files):
        if len(found) == 1 and _count(found[0], fault.line) == 1:
            return found[0]
    raise Lost(f"the line is in {len(files)} files, or more than once in one: {fault.line}")


def _count(file: Path, line: str) -> int:
    return [each.strip() for each in file.read_text().splitlines()].count(line)


def tests_of(fault: Fault, tree: Path) -> list[str]:
    """The test files to run first, which in another state of the repository may lie in other folders."""
    found = [next(iter((tree / "tests").rglob(Path(test).name)), None) for test in fault.caught_by]
    tests = [str(file.relative_to(tree)) for file in found if file is not None]
    if not tests:
        raise Lost(f"none of these test files is there: {', '.join(fault.caught_by)}")
    return tests


def put(fault: Fault, file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    changed = [each.replace(fault.line, fault.becomes) if each.strip() == fault.line else each for each in lines]
    file.write_text("".join(changed))


class Copies:
    """Copies of a tree, and what runs in them."""

    def __init__(self, tree: Path, scratch: Path) -> None:
        self.tree, self.scratch = tree, scratch
        self.clean = self.make("clean")

    def make(self, name: str) -> Path:
        ignored = shutil.ignore_patterns(*_NOT_COPIED)
        return Path(shutil.copytree(self.tree, self.scratch / name, ignore=ignored, symlinks=True))

    def pytest(self, copy: Path, arguments: list[str], seconds: float) -> Ended:
        log, record = (self.scratch / f"{os.getpid()}.{end}" for end in ("log", "json"))
        record.write_text("{}")
        process = _FORK.Process(target=_run_pytest, args=(copy, [*_PYTEST, *arguments], log, record))
        process.start()
        process.join(seconds)
        if process.is_alive() and process.pid is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
            return Ended(None, {})
        return Ended(process.exitcode, json.loads(record.read_text()), log.read_text().strip().rpartition("\n")[2])


class Failures:
    """A plugin of pytest: the tests that failed, in their order, and files that could not be imported; their errors."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(getattr(crash, "message", report.longrepr))
            self.failed[report.nodeid] = message.partition("\n")[0][:200]
            self.record.write_text(json.dumps(self.failed))

    pytest_collectreport = pytest_runtest_logreport


def preload() -> None:
    """As tests/conftest.py does, which every fork will find done."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in _PRELOADED:
        module: Any = importlib.import_module(name)
        if name == "torch" and not module.cuda.is_available():
            os.environ["TRITON_INTERPRET"] = "1"


def _run_pytest(copy: Path, arguments: list[str], log: Path, record: Path) -> None:
    """In a process of its own, whose processes import stridelm from the copy as well."""
    os.setsid()
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy / "src")}
    sys.path[:1] = [str(copy / "src"), str(copy)]
    import pytest

    import stridelm

    elsewhere = subprocess.run([sys.executable, "-c", _WHERE], capture_output=True, text=True, check=True).stdout
    assert str(stridelm.__file__) == elsewhere.strip() == str(copy / "src" / "stridelm" / "__init__.py"), elsewhere
    sys.exit(pytest.main(arguments, plugins=[Failures(record)]))


def judge(fault: Fault, copies: Copies, left_out: Collection[str], *, whole: bool, seconds: float) -> Outcome:
    """Put a fault into a copy of its own and look for a test that fails for it."""
    began = time.monotonic()
    try:
        place = place_of(fault, copies.clean).relative_to(copies.clean)
        tests = tests_of(fault, copies.clean)
    except Lost as lost:
        return Outcome("lost", why=str(lost))
    copy = copies.make(fault.name)
    try:
        put(fault, copy / place)
        options = ["-x", *(f"--deselect={test}" for test in left_out)]
        ended = copies.pytest(copy, [*options, *tests], seconds)
        if ended.status == 0 and whole:
            others = [*options, "tests", *(f"--ignore={test}" for test in tests)]
            ended = copies.pytest(copy, others, _WHOLE_SECONDS)
    finally:
        shutil.rmtree(copy)
    outcome = _OUTCOMES.get(ended.status, "lost")
    if outcome == "time-out" and copies.pytest(copies.clean, tests, seconds).status is None:
        outcome = "too slow"
    test, why = next(iter(ended.failed.items()), ("", ended.last_line if ended.status else ""))
    return Outcome(outcome, test, why, str(place), round(time.monotonic() - began, 1))


def try_all(
    faults: list[Fault],
    copies: Copies,
    console: Console,
    save: Callable[[dict[str, Outcome]], None],
    *,
    whole: bool,
    jobs: int,
    seconds: float,
) -> dict[str, Outcome]:
    """What becomes of each fault. A test counts if it fails with a fault and passes without it. `save` is told of the
    outcomes so far."""
    outcomes: dict[str, Outcome] = {}
    left_out: set[str] = set()
    with ProcessPoolExecutor(jobs, mp_context=_FORK) as pool:
        while faults:
            tried = pool.map(partial(judge, copies=copies, left_out=left_out, whole=whole, seconds=seconds), faults)
            with console.status("") as status:
                for number, fault in enumerate(faults):
                    status.update(f"{number} of {len(faults)} faults tried")
                    outcome = outcomes[fault.name] = next(tried)
                    where = outcome.test or outcome.why or fault.breaks
                    console.print(f"{outcome.outcome:<9} {fault.name:<36} {outcome.seconds:5.0f} s  {where}")
                    save(outcomes)
                status.update("running the tests that failed without a fault")
                found = sorted({outcomes[fault.name].test for fault in faults} - {""})
                clean = pool.submit(copies.pytest, copies.clean, found, _WHOLE_SECONDS).result() if found else None
            if clean and clean.status not in (0, 1):
                console.print(f"whether these tests pass without a fault is not known: {clean.last_line}")
            broken = set(clean.failed) if clean else set()
            left_out |= broken
            faults = [fault for fault in faults if outcomes[fault.name].test in broken]
            for test in sorted(broken):
                console.print(f"left out, for it fails without a fault: {test}")
    return outcomes


def main(
    only: Annotated[list[str] | None, typer.Option(help="The name of a fault; may be repeated. Default: all.")] = None,
    tree: Annotated[
        Path, typer.Option(help="Another checkout to try the faults in. Lines are found by what they say.")
    ] = ROOT,
    whole: Annotated[
        bool, typer.Option("--whole", help="Run all other tests on what survives, too: many minutes for each.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Faults that are tried at the same time.")] = 1,
    seconds: Annotated[float, typer.Option(help="A fault whose tests take longer than this counts as found.")] = 600.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the outcomes to this file.")] = None,
    shows: Annotated[bool, typer.Option("--list", help="Show the faults and where they stand; run nothing.")] = False,
) -> None:
    """Test the tests: put faults of one line each into copies of the repository and see which test finds each.

    faults.toml has the faults, and for each the test files that should find it: these are run first. A test counts if
    it fails with the fault, or takes too long, and passes without it. The repository itself is not changed.

    Examples: run.py --list; run.py --only layout-window; run.py --jobs 2 --json now.json; run.py --only NAME --whole

    The exit status is 1 if a fault survives that before.json says was found, or if a fault has lost its line: then
    look for where the line went, and correct faults.toml.
    """
    faults = read_faults()
    if unknown := set(only or ()) - set(faults):
        raise typer.BadParameter(f"no such fault: {', '.join(sorted(unknown))}; --list shows them")
    chosen = [faults[name] for name in only or faults]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if shows:
        for fault in chosen:
            console.print(f"{fault.name}: {fault.breaks}\n  {_found(fault, tree)}")
            console.print(f"  - {fault.line}\n  + {fault.becomes}")
        return
    preload()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        copies = Copies(tree.resolve(), Path(scratch).resolve())
        save = partial(write, json_file, tree)
        outcomes = try_all(chosen, copies, console, save, whole=whole, jobs=jobs, seconds=seconds)
    raise typer.Exit(summarise(outcomes, console))


def _found(fault: Fault, tree: Path) -> str:
    try:
        return str(place_of(fault, tree).relative_to(tree))
    except Lost as lost:
        return f"lost: {lost}"


def write(file: Path | None, tree: Path, outcomes: dict[str, Outcome]) -> None:
    if file is None:
        return
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    found = {"commit": commit, "faults": {name: asdict(outcome) for name, outcome in outcomes.items()}}
    file.write_text(json.dumps(found, indent=1) + "\n")


def summarise(outcomes: dict[str, Outcome], console: Console) -> int:
    """Print the numbers, and what is worse than before; the exit status."""
    counts = Counter(outcome.outcome for outcome in outcomes.values())
    console.print(f"{len(outcomes)} faults: {', '.join(f'{count} {name}' for name, count in counts.most_common())}")
    recorded = HERE / "before.json"
    before = json.loads(recorded.read_text())["faults"] if recorded.is_file() else {}
    is_found = ("caught", "time-out")
    found_before = {name for name, entry in before.items() if entry["outcome"] in is_found}
    worse = [name for name, each in outcomes.items() if each.outcome not in is_found and name in found_before]
    if worse:
        console.print(f"found before, and not now: {', '.join(worse)}")
    return 1 if worse or counts["lost"] else 0


if __name__ == "__main__":
    typer.run(main)
