"""`stridelm bench` from the command line to the page, on a tiny model; and the table of docs/performance.md."""

import json
import sys
from pathlib import Path

import pytest

from bench.quick_tables import quick, quick_table
from command_line import Call
from stridelm.bench.records import read_report
from stridelm.cli import app as cli
from tiny import save_tiny

ARGUMENTS = ("--suite", "structured", "--suite", "voice", "--limit", "1", "--max-tokens", "8", "--rounds", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on a tiny model."""
    out = tmp_path_factory.mktemp("bench")
    subjects = ("--subject", "ngram", "--subject", "transformers")
    arguments = ("bench", "--model", str(save_tiny(out / "model")), *ARGUMENTS, *subjects, "--out", str(out / "report"))
    with pytest.MonkeyPatch.context() as patch, (out / "printed").open("w") as printed:
        patch.setattr(sys, "argv", ["stridelm", *arguments])
        patch.setattr(sys, "stdout", printed)
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert not end.value.code
    return out / "report"


def test_a_bench_writes_its_report(folder: Path) -> None:
    report = read_report(folder / "bench.json")
    assert list(report.subjects) == ["autoregressive", "ngram", "transformers"]
    assert {record.suite for record in report.records} == {"structured", "voice"}
    assert all(record.quality.identical for record in report.records)
    assert all(record.answer.count <= 8 for record in report.records)
    assert report.extra["voice"].keys() == report.subjects.keys()
    page = (folder / "index.html").read_text()
    last = (folder.parent / "printed").read_text().splitlines()[-1]
    assert last.startswith(("On this machine ", "Nothing to advise: ")) and last.endswith(".")
    assert "transformers" in page and (folder / "speed-up.png").stat().st_size > 1000


def test_two_reports_are_compared(folder: Path, call: Call) -> None:
    done = call("bench", "--compare", folder / "bench.json", folder / "bench.json")
    assert not done.status, done.err
    assert "within the" in done.out and "warning" not in done.out


def test_an_older_report_gets_its_figures(folder: Path, tmp_path: Path, call: Call) -> None:
    entry = json.loads((folder / "bench.json").read_text())
    assert {row["subject"] for row in entry["figures"]["rows"]} == entry["subjects"].keys()
    (tmp_path / "older.json").write_text(json.dumps({name: entry[name] for name in entry if name != "figures"}))
    done = call("bench", "--page", tmp_path / "older.json", "--out", tmp_path / "report")
    assert not done.status, done.err
    assert json.loads((tmp_path / "report" / "bench.json").read_text()) == entry
    assert (tmp_path / "report" / "index.html").read_text() == (folder / "index.html").read_text()


def test_the_readme_table_has_the_shape_of_a_fresh_report(folder: Path) -> None:
    kept, fresh = quick(), quick_table(read_report(folder / "bench.json"))
    for text in (kept, fresh):
        header, rule, *rows = text.split("\n\n")[0].splitlines()
        assert header.startswith("| suite | one token at a time | `")
        assert len({line.count("|") for line in (header, rule, *rows)}) == 1
        assert all("tokens/s" in row and "x" in row for row in rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--suite", "poems"), "poems"),
        (("--subject", "vllm"), "vllm"),
        (("--rounds", "0"), "--rounds"),
        (("--compare", "nothing.json", "nothing.json"), "nothing.json"),
    ],
)
def test_wrong_arguments_are_told_at_once(arguments: tuple[str, ...], said: str, tmp_path: Path, call: Call) -> None:
    done = call("bench", *arguments, "--out", tmp_path / "report")
    assert done.status == 2
    assert said in done.err
    assert not (tmp_path / "report").exists()
