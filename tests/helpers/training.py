"""A small conversion of a tiny model: how it is asked for, and what it leaves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from command_line import Call, Run
from killed import NEVER, train_until

QUESTIONS = [f"Why is the {what} so {how}?" for what in ("sky", "sea", "old town") for how in ("blue", "wide", "calm")]
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "answer_tokens": 16,
    "held_out": 2,
    "rollout_batch": 4,
    "k": 3,
    "rank": 2,
    "sequential_size": 4,
    "texts": 2,
    "length": 64,
    "anchors": 4,
    "steps": 20,
    "warmup": 2,
    "evaluate_every": 10,
    "checkpoint_every": 5,
}
_TIMINGS = ("steps_per_second", "tokens_per_second")


def options(**settings: object) -> list[str]:
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def write_questions(folder: Path) -> None:
    (folder / "questions.txt").write_text("".join(f"{question}\n" for question in QUESTIONS))


def write_answers(folder: Path) -> None:
    """The same questions, each with an answer."""
    answer = "Because the light that comes from the sun is scattered on its way."
    lines = (json.dumps({"question": question, "answer": answer}) for question in QUESTIONS)
    (folder / "answers.jsonl").write_text("".join(f"{line}\n" for line in lines))


def small_run(model: Path) -> list[str]:
    """Arguments of a run in a folder that holds the questions."""
    return ["--model", str(model), "--out", "run", *options(**SETTINGS), "--prompts", "questions.txt"]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Callable[..., Path]) -> Path:
    """The folder of a small run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write_questions(folder)
    assert train_until(NEVER, folder, small_run(tiny_folder())) == 0
    return folder / "run"


@pytest.fixture
def train(call: Call, tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`stridelm train` with a tiny model in an empty folder; what is given comes later and so prevails."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path)

    def run(*arguments: str | Path, with_questions: bool = True) -> Run:
        usual = small_run(tiny_folder())
        return call("train", *(usual if with_questions else usual[:-2]), *arguments)

    return run


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Not the files' bytes: safetensors writes its header in any order."""
    (shard,) = folder.glob("adapter-*.safetensors")
    return load_file(shard)


def outcome(folder: Path) -> dict[str, Any]:
    """What a run has come to: all but timings, the parts that rollouts lie in and how often it was resumed."""
    record = json.loads((folder / "train.json").read_text())
    record.pop("resumed", None)
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "adapter": json.loads((folder / "adapter.json").read_text()),
        "tensors": {name: tensor.view(torch.int16).tolist() for name, tensor in _tensors(folder).items()},
        "metrics": [{name: entry[name] for name in entry if name not in _TIMINGS} for entry in metrics(folder)],
        "card": (folder / "README.md").read_text(),
        "record": record,
    }
