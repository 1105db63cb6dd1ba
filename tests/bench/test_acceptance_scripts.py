"""bench/training/acceptance.py and failures.py on a tiny model that can count."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.training import acceptance, failures
from bench.training.acceptance_tables import categories_table, forms_table
from counting import Conversion
from stridelm.models.adapter import save_adapter
from stridelm.prompts import PromptLine
from stridelm.train.acceptance import Measure, total
from stridelm.train.answers import greedy_answers
from stridelm.train.students.readers import MaskReader
from stridelm.train.students.student import Student

PROMPTS = {"ABCD": "ones", "BDFH": "twos", "EFGHIJK": "ones", "zx!9 9": "other", "ACEGI": "twos"}
Counting = Callable[..., Conversion]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(f"{json.dumps({'prompt': words, 'category': kind})}\n" for words, kind in PROMPTS.items()))
    return file


@pytest.fixture
def adapter(counting: Counting, tmp_path: Path) -> Path:
    save_adapter(tmp_path / "adapter", counting().adapter)
    return tmp_path / "adapter"


def test_one_run_measures_all_forms(
    counting: Counting, adapter: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "SETS", {"first": questions, "second": questions})
    arguments = ["--model", counting().checkpoint.name, "--adapter", f"mine={adapter}", "--trees", "2", "6"]
    arguments += ["--device", "cpu", "--max-tokens", "20", "--json", str(tmp_path / "forms.json")]
    arguments += ["--chains", str(tmp_path / "chains.json"), "--count", "4"]
    monkeypatch.setattr("sys.argv", ["acceptance.py", *arguments])
    acceptance.main()
    report = json.loads((tmp_path / "forms.json").read_text())
    settings = [(entry["prompts"], entry["temperature"], entry["context"]) for entry in report["measured"]]
    assert settings == [(name, temperature, None) for name in ("first", "second") for temperature in (0.0, 0.7)]
    assert all(list(each["forms"]) == ["chain", "tree of 2 rows", "tree of 6 rows"] for each in report["measured"])
    chains = json.loads((tmp_path / "chains.json").read_text())
    assert chains == {entry["prompts"]: entry["forms"]["chain"] for entry in report["measured"][::2]}
    first = chains["first"]
    assert set(first["categories"]) == {"ones", "twos", "other"} and first["prompts_measured"] == 4
    assert f"| {first['mean_over_categories']:.2f} (" in forms_table(report)
    assert len(categories_table(report["measured"][0]).splitlines()) == 2 + 3 + 1


def test_earlier_turns_come_from_the_same_file(counting: Counting) -> None:
    checkpoint = counting().checkpoint
    lines = [PromptLine(f"line {number}", words) for number, words in enumerate(PROMPTS)]
    answers = greedy_answers(checkpoint, lines, 6, 8, lambda what, done, of: None)
    texts = [answers[number] for number in range(len(lines))]
    lengths = [len(text.tokens) for text in texts]
    for tokens in (1, 20, 10**6):
        for number, line in enumerate(acceptance.with_turns(checkpoint, lines, texts, tokens)):
            assert isinstance(line.prompt, list)
            *turns, last = line.prompt
            assert last == {"role": "user", "content": lines[number].prompt}
            asked = [turn["content"] for turn in turns[::2]]
            others = [(number + step) % len(lines) for step in range(1, len(lines))]
            assert asked == [lines[other].prompt for other in others[: len(asked)]]
            assert [turn["role"] for turn in turns] == ["user", "assistant"] * len(asked)
            reached = texts[number].prompt_length + sum(lengths[other] for other in others[: len(asked)])
            following = others[len(asked) : len(asked) + 1]
            assert all(abs(reached + lengths[other] - tokens) >= abs(reached - tokens) for other in following)


def test_failures_are_those_of_the_walk(
    counting: Counting, adapter: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion = counting()
    arguments = ["--model", conversion.checkpoint.name, "--adapter", str(adapter), "--prompts", str(questions)]
    arguments += ["--device", "cpu", "--max-tokens", "20", "--json", str(tmp_path / "failures.json")]
    monkeypatch.setattr("sys.argv", ["failures.py", *arguments, "--positions", str(tmp_path / "columns.npz")])
    failures.main()
    report = json.loads((tmp_path / "failures.json").read_text())
    checkpoint = conversion.checkpoint
    lines = [PromptLine(words, words) for words in PROMPTS]
    answers = greedy_answers(checkpoint, lines, 20, 8, lambda what, done, of: None)
    reader = MaskReader(checkpoint.network, Student.of(checkpoint.network, conversion.adapter))
    whole = total(tally for _, tally in Measure(reader)(answers.values()))
    depths = report["failures"]["depth"].values()
    assert [each["drafts"] for each in depths] == [count for count in whole.reached if count]
    failed = [seen - taken for seen, taken in zip(whole.reached, whole.accepted, strict=True) if seen]
    assert [each["failures"] for each in depths] == failed and sum(failed) > 0
    for values in report["failures"].values():
        assert sum(each["drafts"] for each in values.values()) == report["drafts"] == sum(whole.reached)
        assert sum(each["failures"] for each in values.values()) == sum(failed)
    assert report["failures"]["rank after the head"]["1"]["failures"] == 0
    by_way = report["tokens_per_forward"]
    for size in failures.SHORTLISTS:
        listed = by_way[f"as drafted, if among the first {size} ids"]
        assert listed == by_way["as drafted"], "the tiny model's whole vocabulary is among them"
    ways: list[dict[str, Any]] = list(report["tokens_per_forward"].values())
    assert ways[0]["forwards"] == whole.forwards >= ways[1]["forwards"] >= ways[2]["forwards"]
    columns = np.load(tmp_path / "columns.npz")
    assert {len(columns[name]) for name in columns} == {sum(whole.reached)}


def test_what_tokens_are(counting: Counting) -> None:
    checkpoint = counting().checkpoint
    tokens = np.array([*checkpoint.tokenizer.encode("ab 12, c"), 256])
    names = [failures.KINDS[kind] for kind in failures.kinds_of(checkpoint, tokens)]
    start, sign, space = "start of a word", "punctuation and other signs", "space or newline"
    assert names == [start, "continuation of a word", space, "number", "number", sign, space, start, "special"]
    far = np.array([1, 2, 1, *range(100, 356), 2, 1])
    assert failures.occurred(far).tolist() == [False, False, True, *[False] * 256, False, False]
