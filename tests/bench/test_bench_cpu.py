"""The pure parts of bench/cpu/run.py, and its protocol with a process that only pretends."""

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench.cpu import auto, forward
from bench.cpu import report as cpu_report
from bench.cpu import run as cpu
from bench.cpu.peers import DEFAULT, SUBJECTS, Absent, Answer, Process, command
from bench.cpu.report import Run
from native import skip_without_kernels
from stridelm.params import InputError

BENCH = Path(cpu.__file__).parents[1]
FAKE = """
import sys
sys.path.insert(0, {peers!r})
from line_json import serve

class Fake:
    about = {{"version": "1"}}
    def __init__(self):
        print("libraries talk")
        if {broken}:
            raise ValueError("no model")
    def answer(self, request):
        if request["mode"] == "ngram-mod":
            raise RuntimeError("not today")
        print("a word between")
        ids = [request["ids"][0] + place for place in range(request["tokens"])]
        return {{"ids": ids, "first_tokens": 1, "first_seconds": 0.5, "seconds": 1.5, "forwards": len(ids)}}
    def time_rows(self, request):
        return {{"times": {{str(width): width / 1000 for width in request["rows"]}}}}

serve(Fake)
"""


def fake(tmp_path: Path, *, broken: bool = False) -> list[str]:
    file = tmp_path / "fake.py"
    file.write_text(FAKE.format(peers=str(BENCH / "peers"), broken=broken))
    return [sys.executable, str(file)]


def run(subject: str, prompt: int, number: int, seconds: float, *, category: str = "maths", last: int = 9) -> Run:
    """Ten tokens, the first of them after a second: decoding takes the given seconds."""
    return Run(subject, prompt, category, number, Answer([*range(9), last], 1, 1.0, 1.0 + seconds, 10))


def test_the_default_prompts_have_four_of_every_category() -> None:
    categories = [line.category for line in cpu.read_questions(cpu.PROMPTS / "cpu.jsonl")]
    assert set(categories) >= {"maths", "general", "code", "editing", "summary"}
    assert min(categories.count(each) for each in categories) >= 4


@pytest.mark.parametrize(
    ("line", "reason"), [("{", "not JSON"), ('{"prompt": "a"}', "category"), ('{"category": "x"}', "prompt")]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"category": "maths", "prompt": "2 + 2?"}\n' + line + "\n")
    with pytest.raises(InputError, match=f"line 2.*{reason}"):
        cpu.read_questions(file)


def test_speeds_of_an_answer() -> None:
    answer = Answer(list(range(10)), 1, 1.0, 4.0, 10)
    assert answer.decoding == pytest.approx(3.0) and answer.whole == pytest.approx(2.5)


def test_a_ratio_pairs_the_same_prompt_and_round() -> None:
    runs = [run("a", 0, 0, 1.0), run("b", 0, 0, 2.0), run("a", 0, 1, 3.0), run("b", 0, 1, 9.0), run("a", 1, 0, 5.0)]
    found = cpu_report.ratio(runs, "a", "b")
    assert found is not None and found.pairs == 2 and found.median == pytest.approx(2.5)
    assert found.low == pytest.approx(2.0) and found.high == pytest.approx(3.0)
    assert cpu_report.ratio(runs, "a", "b", "code") is None


def test_the_interval_knows_that_the_rounds_of_a_prompt_are_alike() -> None:
    """A hundred rounds of two prompts still are two prompts."""
    seconds = {("a", 0): 1.0, ("b", 0): 1.0, ("a", 1): 1.0, ("b", 1): 4.0}
    runs = [run(*who, number, each, category="code") for number in range(100) for who, each in seconds.items()]
    found = cpu_report.ratio(runs, "a", "b", "code")
    assert found is not None and found.low == pytest.approx(1.0) and found.high == pytest.approx(4.0)


def test_ratios_have_the_names_that_the_docs_ask_for() -> None:
    names = ("plain int16", "multi int16", "llama.cpp", "transformers")
    runs = [run(name, place, 0, 1.0 + index, category=category)
            for index, name in enumerate(names) for place, category in enumerate(("maths", "general"))]  # fmt: skip
    found = cpu_report.ratios(runs, "int16")
    assert {"plain_vs_llamacpp", "multi_vs_llamacpp_maths", "multi_vs_llamacpp_general", "multi_vs_plain_maths",
            "multi_vs_plain_general", "plain_vs_transformers"} <= set(found)  # fmt: skip
    assert found["plain_vs_llamacpp"].median == pytest.approx(3.0)
    assert "plain_vs_openvino" not in found
    assert cpu_report.headline(["multi int8", "llama.cpp"]) == "int8"


def test_identical_answers_are_counted() -> None:
    runs = [run("plain int8", 0, 0, 1.0), run("multi int8", 0, 0, 1.0), run("plain int8", 1, 0, 1.0),
            run("multi int8", 1, 0, 1.0, last=0), run("plain int8", 2, 0, 1.0)]  # fmt: skip
    assert cpu_report.same_answers(runs) == {"int8": {"compared": 2, "identical": 1}}
    assert cpu_report.agreement(runs, "plain int8") == {"plain int8": 1.0, "multi int8": pytest.approx(0.95)}


def test_tables_and_picture(tmp_path: Path) -> None:
    runs = [run(name, place, 0, 2.0) for name in ("plain int16", "llama.cpp") for place in range(2)]
    times = {"int16": {1: [0.010, 0.012], 4: [0.02]}, "llama.cpp": {1: [0.011], 4: [0.03]}}
    console = Console(file=io.StringIO(), width=160)
    console.print(cpu_report.speed_table(cpu_report.figures(runs)))
    console.print(cpu_report.ratio_table({"int16": cpu_report.ratios(runs, "int16")}))
    console.print(cpu_report.rows_table(times, 200))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "4.5 (4.5 to 4.5)" in shown and "plain_vs_llamacpp" in shown and "11.0" in shown
    cpu_report.draw(times, 200, "a machine", tmp_path / "rows.png")
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_processes_take_turns_and_the_absent_are_reported(tmp_path: Path) -> None:
    bench = cpu.Bench(2, 4, [0], Console(file=io.StringIO()))
    names = ["plain int16", "llama.cpp", "llama.cpp ngram-mod"]
    bench.start(names, tmp_path, lambda process, gguf, threads: fake(tmp_path))
    runs = bench.take_turns([cpu.Question("maths", [5, 6]), cpu.Question("general", [7])], 2)
    assert bench.names == names[:2] and "not today" in bench.absent["llama.cpp ngram-mod"]
    assert [each.answer.ids for each in runs if each.subject == "llama.cpp"] == [[5, 6, 7, 8], [7, 8, 9, 10]] * 2
    assert bench.time_rows(rounds=2)["llama.cpp"][16] == [0.016, 0.016]
    bench.close()
    figures = cpu.report(runs, {}, bench)
    assert json.loads(json.dumps(figures))["ratios"]["plain_vs_llamacpp"] == 1.0


def test_a_process_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="ValueError: no model"):
        Process(fake(tmp_path, broken=True))
    with pytest.raises(Absent, match=r"ended without an answer.*out of memory"):
        Process([sys.executable, "-c", "import sys; sys.exit('out of memory')"])
    with pytest.raises(Absent, match="No such file"):
        Process([str(tmp_path / "missing")])


def test_subjects_are_chosen_by_name() -> None:
    assert cpu.choose_subjects(None) == list(DEFAULT) and set(DEFAULT) <= set(SUBJECTS)
    assert cpu.choose_subjects("llama.cpp, transformers") == ["llama.cpp", "transformers"]
    with pytest.raises(InputError, match="no subject 'llama'"):
        cpu.choose_subjects("llama")


def test_labels_keep_apart() -> None:
    assert cpu_report.apart([3.0, 1.0, 1.5], 1.0) == [3.0, 1.0, 2.0]


def test_a_peer_that_does_not_answer_in_time_is_absent() -> None:
    with pytest.raises(Absent, match="ended without an answer"):
        Process([sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.2)


def test_a_peer_that_is_not_set_up_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for peer in ("llama.cpp", "openvino"):
        with pytest.raises(Absent, match="--setup"):
            command(peer, tmp_path / "model.gguf", 2)


def test_forwards_are_timed_tree_by_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One tree twice, two rounds, on the built-in model."""
    skip_without_kernels()
    named = [argument for name in ("before", "now") for argument in ("--tree", f"{name}={BENCH.parent}")]
    file = tmp_path / "forward.json"
    shapes = ("1", "4+3", "4+2x2", "4+2x2-")
    forward.main([*named, "--rounds", "2", "--threads", "1", "--shapes", *shapes, "--json", str(file)])
    shown, figures = capsys.readouterr().out, json.loads(file.read_text())["milliseconds"]
    assert shown.count("| now, int8 |") == 2
    assert set(figures) == {f"{name}, {kind}" for name in ("before", "now") for kind in ("int8", "int16")}
    assert all(tuple(by) == shapes for by in figures.values())
    assert all(0 < entry["tenth"] <= entry["median"] for by in figures.values() for entry in by.values())


def test_shapes_of_forwards_are_read() -> None:
    parsed = [forward.parse(shape) for shape in ("8", "4+3", "4+3x2", "4+3x2-", "1+4-")]
    assert parsed == [(8, 0, 1, False), (4, 3, 1, False), (4, 3, 2, False), (4, 3, 2, True), (1, 4, 1, True)]


def test_auto_over_plain_is_the_mean_of_the_rounds_medians() -> None:
    def timed(speed: float, tokens: int = 20, forwards: int = 20) -> auto.Timed:
        return auto.Timed(tuple(range(tokens)), forwards, speed)

    short = (timed(100.0, 5), timed(1.0, 5))  # too short to be counted
    rounds = [
        [(timed(100.0), timed(100.0 * each, 20, 10)) for each in ratios] + [short] for ratios in ((1, 2, 3), (3, 4, 5))
    ]
    found = auto.figures(rounds)
    assert found["questions"] == 3 and found["plain"] == 100.0 and found["tokens_per_forward"] == 2.0
    assert found["ratio"]["median"] == 3.0 and found["ratio"]["low"] < 2 and found["ratio"]["high"] > 4
    assert found["worst"] == 2.0 and found["tenth"] == pytest.approx(2.2)
    assert "| maths | int8 | 3 | 100 | 300 | 3.00 (" in auto.speed_ups({"int8": {"maths": found}})
