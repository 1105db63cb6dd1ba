"""The script that runs peers' suites: what it makes of how tests end. The suites themselves are run by hand."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from outcomes import Record, Statement, Statements, Verdict, count, judge, read_records, read_statements
from report import SuiteReport, exit_status, show
from shims.matching import matches
from shims.stand_ins import stand_in
from sources import NoSource, obtain
from suites import HERE, SUITES, Suite, whole_files

STATED = Statements(
    not_applicable=(Statement("no images", ("a.py::test_image*", "images/*")),),
    fails=(Statement("a bug", ("a.py::test_bug[*",)),),
)
SUITE = Suite(name="one", package="one==1", root="inner", scope=("tests",))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("a.py::test[x-*", True), ("*", True), ("a.py::test", False), ("a.py::test[[]x*", False), ("*[x-1]", True)],
)
def test_patterns_know_one_wildcard_and_take_brackets_as_they_are(pattern: str, expected: bool) -> None:
    assert matches("a.py::test[x-1]", pattern) is expected


@pytest.mark.parametrize(
    ("test", "outcome", "verdict", "reason"),
    [
        ("a.py::test_text", "passed", Verdict.PASSED, ""),
        ("a.py::test_text", "failed", Verdict.UNEXPLAINED, "raised"),
        ("a.py::test_text", "skipped", Verdict.NOT_APPLICABLE, "the suite skips it: raised"),
        ("a.py::test_bug[1]", "failed", Verdict.FAILED, "a bug"),
        ("a.py::test_bug[1]", "passed", Verdict.REFUTED, "a bug"),
        ("a.py::test_image_png", "left out", Verdict.NOT_APPLICABLE, "no images"),
    ],
)
def test_an_end_is_judged_by_what_is_stated(test: str, outcome: str, verdict: Verdict, reason: str) -> None:
    ended = judge(Record(test, outcome, "raised"), STATED)
    assert (ended.verdict, ended.reason) == (verdict, reason)


@pytest.mark.parametrize(("outcome", "test", "status"), [("failed", "x", 1), ("passed", "a.py::test_bug[1]", 1)])
def test_only_disagreement_with_the_list_fails_the_run(outcome: str, test: str, status: int) -> None:
    fine = [judge(Record("x", "passed"), STATED), judge(Record("a.py::test_bug[1]", "failed"), STATED)]
    assert exit_status([SuiteReport("one", "one==1", tuple(fine)), SuiteReport("two", "two==1", not_run="away")]) == 0
    assert exit_status([SuiteReport("two", "two==1", not_run="no server", has_crashed=True)]) == 1
    wrong = (*fine, judge(Record(test, outcome), STATED))
    assert exit_status([SuiteReport("one", "one==1", wrong)]) == status


def test_unused_patterns_are_named() -> None:
    assert STATED.unused(["a.py::test_bug[1]", "images/b.py"]) == ["a.py::test_image*"]


def test_a_file_left_out_whole_stands_for_its_tests(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/test_b.py").write_text("import gone\ndef test_1(): ...\nclass T:\n async def test_2(s): ...\n")
    (record,) = whole_files(STATED, ["images/test_b.py", "test_a.py"], tmp_path)
    assert count([judge(record, STATED)]) == {Verdict.NOT_APPLICABLE: 2}


def test_the_report_tells_reasons_and_what_is_wrong() -> None:
    tests = tuple(judge(Record(test, "failed", "raised"), STATED) for test in ("x[red]", "a.py::test_bug[1]"))
    reports = [SuiteReport("one", "one==1", tests, unused=("y*",)), SuiteReport("two", "two==1", not_run="away")]
    console = Console(record=True, width=200, file=StringIO())
    show(reports, console)
    text = console.export_text()
    for expected in ("two was not run: away", "   1  a bug", "failed, without reason: x[red]: raised", "y*"):
        assert expected in text
    assert reports[0].as_json()["counts"]["failed, with reason"] == 1


def test_a_suite_comes_from_a_given_folder_or_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NoSource, match="has no inner/tests"):
        obtain(SUITE, tmp_path, tmp_path)
    (tmp_path / "inner/tests").mkdir(parents=True)
    (tmp_path / "inner/tests/test_a.py").touch()
    root = obtain(SUITE, tmp_path, tmp_path)
    assert SUITE.files(root) == ["tests/test_a.py"]
    with pytest.raises(NoSource, match="--source transformers=FOLDER"):
        obtain(SUITES["transformers"], None, tmp_path)


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_has_its_list_and_its_shim(name: str) -> None:
    statements = SUITES[name].statements
    assert all(each.reason and each.tests for each in (*statements.not_applicable, *statements.fails))
    assert (HERE / "shims" / f"{name}_shim.py").exists()


def test_a_list_with_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text("[[fail]]\nreason = 'x'\ntests = []\n")
    with pytest.raises(ValueError, match="unknown entries fail; known"):
        read_statements(tmp_path / "list.toml")


def test_the_recorder_writes_down_every_end(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text(
        "import pytest\n"
        "def test_fine(): pass\n"
        "def test_wrong(): assert 1 == 2\n"
        "def test_skipped(): pytest.skip('no need')\n"
        "def test_left_out(): raise SystemExit\n"
        "@pytest.fixture\n"
        "def broken():\n"
        "    yield\n"
        "    raise OSError('late')\n"
        "def test_torn_down(broken): pass\n"
    )
    (tmp_path / "test_unreadable.py").write_text("import a_package_that_is_away\n")
    environment = {
        "PYTHONPATH": str(HERE / "shims"),
        "PEERS_RECORD": str(tmp_path / "record.jsonl"),
        "PEERS_LEFT_OUT": json.dumps(["*left_out"]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "recorder", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    ends = {record.test: (record.outcome, record.message) for record in read_records(tmp_path / "record.jsonl")}
    assert ends == {
        "test_ends.py::test_fine": ("passed", ""),
        "test_ends.py::test_wrong": ("failed", "assert 1 == 2"),
        "test_ends.py::test_skipped": ("skipped", "no need"),
        "test_ends.py::test_left_out": ("left out", ""),
        "test_ends.py::test_torn_down": ("failed", "OSError: late"),
        "test_unreadable.py": ("failed", "ModuleNotFoundError: No module named 'a_package_that_is_away'"),
    }


def test_a_stand_in_has_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    stand_in("a_peer_of_ours")
    from a_peer_of_ours.deep.inside import Engine  # pyright: ignore[reportMissingImports]

    assert Engine(1).run().anything
    for name in [name for name in sys.modules if name.startswith("a_peer_of_ours")]:
        del sys.modules[name]
