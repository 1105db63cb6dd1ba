"""What `stridelm train` cannot use: a line that says so, exit status 2, and the disk as it was. A loss that is no
number ends in 1."""

import errno
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from command_line import Call, Run, assert_refused
from killed import train_until
from stridelm.params import InputError
from stridelm.train import files, rollouts
from stridelm.train.objective import ChainObjective
from stridelm.train.settings import _BOUNDS, TrainSettings
from tiny import CONTEXT
from training import QUESTIONS, contents, outcome, small_run, write_questions

# Arguments, and what the message must name.
BAD_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "--model nope": ("'nope'", "smollm2"),
    "--model ./nowhere": ("'./nowhere'",),
    "--device gpu9": ("'gpu9'", "cpu"),
    "--dtype int3": ("'int3'", "float32"),
    "--prompts missing.jsonl": ("missing.jsonl: cannot be read (No such file",),
    "--prompts .": (".: cannot be read (Is a directory)",),
    "--out questions.txt": ("questions.txt: exists already",),
    "--out .": (".: exists already", "--resume"),
    "--out questions.txt/run": ("questions.txt: is a file", "questions.txt/run"),
    f"--out {'long' * 100}": ("File name too long",),
    "--rollouts questions.txt": ("questions.txt: is a file",),
    "--rollouts questions.txt/rollouts": ("questions.txt: is a file", "questions.txt/rollouts"),
    "--resume": ("run: there is nothing to resume",),
    "--rank many": ("--rank",),
    "--temprature 1": ("--temprature", "--temperature"),
    "--warmup 20": ("--warmup (20)", "--steps (20)"),
    "--texts 3 --length 20": ("multiple of 8", "3 x 20"),
    "--length 16": ("--length (16)", "the shortest has "),
    "more": ("more",),
}


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS)
def test_bad_arguments(arguments: str, train: Call, tmp_path: Path) -> None:
    before = contents(tmp_path)
    assert_refused(train(*arguments.split()), *BAD_ARGUMENTS[arguments])
    assert contents(tmp_path) == before


def test_out_is_needed(call: Call) -> None:
    assert_refused(call("train", "--prompts", "questions.txt"), "--out", "stridelm train --help")


def test_every_number_has_bounds() -> None:
    numbers = {field.name for field in fields(TrainSettings) if field.type in (int, float, int | None, float | None)}
    assert {name for name, _, _ in _BOUNDS} == numbers


def with_one(name: str, value: Any) -> TrainSettings:
    mode = {"layers": "draft", "heads": "heads", "head_size": "heads"}.get(name, "adapter")
    return replace(TrainSettings(mode=mode, warmup=0, steps=10**8), **{name: value})


@pytest.mark.parametrize(("name", "low", "high"), _BOUNDS)
def test_bounds(name: str, low: float, high: float) -> None:
    for value in (low, high):
        assert getattr(with_one(name, value), name) == value
    for value in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan):
        with pytest.raises(InputError, match=f"--{name.replace('_', '-')} must be between {low} and {high}, not"):
            with_one(name, value)


# A file of prompts, and what the message must say.
BAD_PROMPTS: dict[str, tuple[bytes, str]] = {
    "empty": (b" \n", "bad.jsonl: no prompts"),
    "not UTF-8": (b"One\nTwo \xff\n", "bad.jsonl: cannot be read (line 2 is not text in UTF-8)"),
    "not JSON": (b'{"prompt": "One"}\n\n{"prompt": Two}\n', "bad.jsonl, line 3: not JSON"),
    "no prompt": (b'{"prompt": "One"}\n{"text": "Two"}\n', 'bad.jsonl, line 2: needs "messages"'),
    "over the context": (b"One\n" + b"a" * CONTEXT, "bad.jsonl, line 2: the prompt has "),
    "no room for an answer": (b"One\n" + b"a" * (CONTEXT - 23), "bad.jsonl, line 2: the prompt has 509 tokens"),
    "only one": (b"One\n", "fewer than two prompts"),
}


@pytest.mark.parametrize("case", BAD_PROMPTS)
def test_bad_prompts(case: str, train: Call, tmp_path: Path) -> None:
    content, message = BAD_PROMPTS[case]
    Path("bad.jsonl").write_bytes(content)
    before = contents(tmp_path)
    assert_refused(train("--prompts", "bad.jsonl"), message)
    assert contents(tmp_path) == before


# No room on the disk


def test_no_room_at_the_start(train: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, usage = contents(tmp_path), shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=150_000_000))
    assert_refused(train(), f"{tmp_path}: 150 MB are free", "needs about 200 MB", "--out")
    assert contents(tmp_path) == before


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on there is no room for a file of this name."""
    save_file, fsync = files.save_file, os.fsync

    def save(tensors: dict[str, torch.Tensor], file: Path) -> None:
        save_file(tensors, file)
        if name in file.name:
            raise SafetensorError("I/O error: No space left on device (os error 28)")

    def sync(descriptor: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(files, "save_file", save)
    monkeypatch.setattr(os, "fsync", sync)


def last_line(run: Run) -> Run:
    """Without the lines of progress before it."""
    return replace(run, err=run.err.splitlines(keepends=True)[-1])


@pytest.mark.parametrize("name", ["train.json", "manifest.json", "prompts.jsonl", "answers-00000"])
def test_no_room_before_there_is_anything_of_worth(
    name: str, train: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(tmp_path)
    fill_the_disk(monkeypatch, name)
    assert_refused(last_line(train()), f"/{name}", "o space left on device")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["answers-00001", "checkpoint-000010", "README.md", "report.png"])
def test_no_room_later_keeps_what_there_is(
    name: str, train: Call, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "report.png":
        pytest.importorskip("matplotlib")
    monkeypatch.setattr(rollouts, "_PART", 4)
    with monkeypatch.context() as full:
        fill_the_disk(full, name)
        run = train()
    assert_refused(last_line(run), "run/", name, "o space left on device")
    assert not [path for path in contents(tmp_path) if "writing" in path]
    kept = {"answers-00001": "rollouts/answers-00000", "checkpoint-000010": "checkpoint-000005"}
    assert Path(f"run/{kept.get(name, 'checkpoint-000020')}.safetensors").is_file()
    assert train("--resume").status == 0
    assert outcome(Path("run")) == outcome(whole)


# Resume


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Callable[..., Path]) -> Path:
    """The folder of a run that has a checkpoint behind it."""
    folder = tmp_path_factory.mktemp("killed")
    write_questions(folder)
    assert train_until("os.chmod run/.checkpoint-000010.safetensors.writing", folder, small_run(tiny_folder())) == -9
    return folder / "run"


@pytest.fixture
def resume(killed: Path, train: Call) -> Call:
    shutil.copytree(killed, "run")
    return lambda *arguments: train("--resume", *arguments)


OTHER_SETTINGS: dict[str, tuple[str, ...]] = {
    "--rank 3": ("rank (2)",),
    "--steps 30 --seed 1": ("steps (20)", "seed (0)"),
    "--prompts other.txt": ("prompts (questions.txt)", "the prompts"),
    "--rollouts elsewhere": ("rollouts (None)",),
    "--self-prompts 5": ("self_prompts (None)",),
}


@pytest.mark.parametrize("arguments", OTHER_SETTINGS)
def test_resume_with_other_settings(arguments: str, resume: Call, tmp_path: Path) -> None:
    Path("other.txt").write_text("One\nTwo\n")
    before = contents(tmp_path)
    assert_refused(resume(*arguments.split()), "run/train.json: ", *OTHER_SETTINGS[arguments], "--out")
    assert contents(tmp_path) == before


def test_resume_with_another_model(resume: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    before = contents(tmp_path)
    refused = resume("--model", tiny_folder("qwen2"))
    assert_refused(refused, f"model ({tiny_folder()})", "the model's weights")
    assert contents(tmp_path) == before


def test_resume_with_other_prompts_in_the_same_file(resume: Call, tmp_path: Path) -> None:
    Path("questions.txt").write_text("".join(f"{question}\n" for question in [*QUESTIONS[:-1], "Why?"]))
    before = contents(tmp_path)
    assert_refused(resume(), "run/train.json: ", "other settings: the prompts. ")
    assert contents(tmp_path) == before


def test_nothing_to_resume(train: Call, whole: Path, tmp_path: Path) -> None:
    Path("run").mkdir()
    assert_refused(train("--resume"), "run: holds no train.json")
    Path("run").rmdir()
    shutil.copytree(whole, "run")
    before = contents(tmp_path)
    assert_refused(train("--resume"), "run: its run is finished")
    assert_refused(train(), "run: exists already")
    assert contents(tmp_path) == before


def test_resume_of_what_is_damaged(resume: Call) -> None:
    for file in ("run/checkpoint-000005.safetensors", "run/rollouts/answers-00000.safetensors", "run/train.json"):
        with Path(file).open("rb+") as opened:
            opened.truncate(20)
        assert_refused(last_line(resume()), f"{file}: cannot be read")


# Losses that are no numbers


def test_a_loss_that_is_no_number(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, calls = ChainObjective.forward, iter(range(1, 100))
    monkeypatch.setattr(
        ChainObjective, "forward", lambda self, *batch: loss(self, *batch) * (math.nan if next(calls) > 7 else 1)
    )
    assert_failed(train(), "the loss is nan in the steps up to 10")


def test_weights_that_are_no_numbers(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of the last step before a checkpoint: the loss does not show it yet."""
    clip, calls = torch.nn.utils.clip_grad_norm_, iter(range(1, 100))

    def spoil(parameters: list[torch.nn.Parameter], norm: float) -> None:
        clip(parameters, norm)
        if next(calls) == 10:
            assert parameters[0].grad is not None
            parameters[0].grad.fill_(math.inf)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoil)
    assert_failed(train(), "a weight is no number after step 10")


def assert_failed(run: Run, message: str) -> None:
    """Exit status 1, and the last good checkpoint stays."""
    assert (run.status, run.out) == (1, "")
    assert run.err.splitlines()[-1].startswith(f"stridelm: {message}: ")
    assert "--learning-rate" in run.err.splitlines()[-1]
    assert [path.name for path in Path("run").glob("checkpoint-*")] == ["checkpoint-000005.safetensors"]
    assert not Path("run/adapter.json").exists()
