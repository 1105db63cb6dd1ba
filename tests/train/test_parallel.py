"""Several processes train as one: the losses of a run by two of them are those of a run by one."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import Call, assert_refused
from killed import NEVER, train_until
from stridelm.models.store import read_weights
from stridelm.train.parallel import Team
from training import SETTINGS, metrics, options, write_answers

TWO_MACHINES = Path(__file__).parent.parent.parent / "docs" / "two-machines.yaml"
SHAPE = {name: value for name, value in SETTINGS.items() if name not in ("rank", "sequential_size")}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "an adapter": ("llama", {"rank": 2, "sequential_size": 4}),
    "an adapter without a gate": ("gemma3", {"rank": 2, "gate": "none", "objective": "online"}),
    "a whole model": ("llama", {"mode": "full", "learning_rate": 1e-3, "objective": "online"}),
    "a whole model with one matrix at both ends": ("qwen3", {"mode": "full", "learning_rate": 1e-3}),
    "heads": ("llama", {"mode": "heads", "heads": 2}),
    "a draft model": ("llama", {"mode": "draft", "layers": 1}),
    "a domain model": ("llama", {"mode": "full", "objective": "sft", "learning_rate": 1e-3}),
}
OFTEN = ("an adapter",)
"""What the suite runs every time: each takes half a minute. The others are for `make test-slow`; of those that share
their weights out, one is in the suite that is killed and resumed by two processes."""
MEANINGLESS = {
    "heads": ("k",),
    "a draft model": ("k", "anchors"),
    "a domain model": ("k", "anchors", "answer_tokens", "rollout_batch"),
}


def run(name: str, tiny_folder: Callable[..., Path]) -> list[str]:
    family, settings = RUNS[name]
    shape = SHAPE | {"texts": 4, "steps": 10}
    shape = {each: value for each, value in shape.items() if each not in MEANINGLESS.get(name, ())}
    base = ["--model", str(tiny_folder(family)), "--out", "run", "--prompts", "answers.jsonl"]
    return [*base, *options(**shape | settings)]


def launch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "--module", "stridelm", "train", *arguments]
    # They talk on this machine alone, whatever its host name resolves to.
    local = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, cwd=folder, env=local, capture_output=True, text=True, timeout=300, check=False)


def losses(folder: Path) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in metrics(folder) if "loss" in entry}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "one", tmp_path / "two"
    for folder in made:
        folder.mkdir()
        write_answers(folder)
    return made


@pytest.mark.parametrize(
    "name", [each if each in OFTEN else pytest.param(each, marks=pytest.mark.slow) for each in RUNS]
)
def test_two_processes_train_as_one(name: str, folders: tuple[Path, Path], tiny_folder: Callable[..., Path]) -> None:
    arguments = run(name, tiny_folder)
    one, two = folders
    assert train_until(NEVER, one, arguments) == 0
    done = launch(two, *arguments)
    assert done.returncode == 0, done.stderr
    expected = losses(one / "run")
    assert expected.keys() == {5, 10} and expected[5] != expected[10]
    assert losses(two / "run") == pytest.approx(expected, abs=1e-4)
    assert done.stdout.count("try it:") == 1, "one of the processes speaks"
    processes = [json.loads((folder / "run/train.json").read_text())["machine"]["processes"] for folder in folders]
    assert processes == [1, 2]
    left = [{path.name for path in (folder / "run").iterdir()} for folder in folders]
    assert left[0] == left[1]
    assert_same_tensors(folders)


def assert_same_tensors(folders: tuple[Path, Path]) -> None:
    stored = [sorted(read_weights(sorted((folder / "run").glob("*.safetensors")))) for folder in folders]
    assert stored[0] == stored[1], "the same tensors; one that is tied is stored once"


def test_two_processes_go_on_where_one_was_killed(folders: tuple[Path, Path], tiny_folder: Callable[..., Path]) -> None:
    """Weights and moments of a checkpoint are whole, whoever wrote it and whoever reads it."""
    arguments = run("a whole model with one matrix at both ends", tiny_folder)
    one, two = folders
    assert train_until(NEVER, one, arguments) == 0
    assert train_until("open run/.checkpoint-000010.safetensors.writing", two, arguments) == -9
    done = launch(two, *arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert losses(two / "run") == pytest.approx(losses(one / "run"), abs=1e-4)
    assert_same_tensors(folders)


@pytest.mark.slow
def test_two_machines_train_as_one(folders: tuple[Path, Path], tiny_folder: Callable[..., Path]) -> None:
    """Two launchers of accelerate that meet at an address, as on two machines, with the file of docs/scale.md."""
    arguments = run("a whole model", tiny_folder)
    one, two = folders
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here = ["--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", port]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(TWO_MACHINES), *here]
    local = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    logs = [two.parent / f"machine-{rank}.log" for rank in (0, 1)]
    started: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + 300
    try:
        for rank, log in enumerate(logs):
            command = [*launcher, "--machine_rank", str(rank), "--module", "stridelm", "train", *arguments]
            with log.open("wb") as into:
                started.append(subprocess.Popen(command, cwd=two, env=local, stdout=into, stderr=subprocess.STDOUT))
        # Until both have ended, or one has failed: the other would wait for it.
        while None in (codes := [each.poll() for each in started]) and not any(codes) and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        for each in started:
            each.terminate()  # a launcher that is asked to end ends its workers, which are in sessions of their own
        for each in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(timeout=40)
            each.kill()
            each.wait()
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace") for log in logs)
    assert train_until(NEVER, one, arguments) == 0
    assert json.loads((two / "run/train.json").read_text())["machine"]["processes"] == 2
    assert losses(two / "run") == pytest.approx(losses(one / "run"), abs=1e-4)


def test_the_shares_of_a_batch_are_the_batch() -> None:
    batch = np.arange(24).reshape(6, 4)
    parts = [Team(rank, 3).share(batch) for rank in range(3)]
    assert np.array_equal(np.concatenate(parts), batch)


def test_a_batch_that_cannot_be_shared(
    call: Call, tiny_folder: Callable[..., Path], monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("stridelm.train.parallel.ALONE", Team(0, 3))
    monkeypatch.chdir(tmp_path)
    write_answers(tmp_path)
    refused = call("train", *run("an adapter", tiny_folder))
    assert_refused(refused, "--texts (4) must be a multiple of the number of processes (3)")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl"]


def test_a_device_for_all(call: Call, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = call("train", *run("an adapter", tiny_folder), "--device", "cuda:1")
    assert_refused(refused, "--device cuda:1 names one device for 2 processes")
