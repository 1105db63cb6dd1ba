"""llama.cpp reads what we write: the commands of docs/engines.md are run, and its answers are compared."""

import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from bench.engines import llama_serving
from bench.engines.llama_serving import chat, complete, serving
from command_line import Call
from gguf_written import ENDS, LLAMA_3, SYNTHETIC, network_of, tokenizer_of
from stridelm.export.gguf_file import write_gguf
from stridelm.params import InputError
from stridelm.train.students.full_student import FullStudent, save_full

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parent.parent.parent / "docs" / "engines.md"
QUESTIONS = (
    "What is 12 times 7?",
    "A box holds 6 eggs. How many eggs are in 4 boxes?",
    "Tom has 15 apples and gives away 6. How many are left? Show every step.",
    "A train goes 60 miles an hour for 3 hours. How far does it go?",
    "What is half of 250?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is the capital of France?",
    "Translate 'good morning' into Spanish.",
    "Write a Python function that adds two numbers.",
)
TOKENS = 40
NEAR_TIE = 0.05
"""In log-probability. llama.cpp adds up a pass over several tokens otherwise than one over one."""
FLOAT32 = ["--cache-type-k", "f32", "--cache-type-v", "f32", "--threads", "1"]


@pytest.fixture(scope="module", autouse=True)
def server_program() -> None:
    try:
        llama_serving.program()
    except InputError as error:
        pytest.skip(f"llama.cpp cannot be had here: {error}")


def documented(program: str) -> list[list[str]]:
    """The commands of a program in the page's section, as their arguments."""
    section = PAGE.read_text().split("## llama.cpp\n")[1].split("\n## ")[0]
    return [shlex.split(line) for line in re.findall(rf"^    {program} (.*)$", section, re.M)]


def answers(arguments: list[str], **more: Any) -> Iterator[dict[str, Any]]:
    with serving([*arguments, "--ctx-size", "1024", "--parallel", "1"]) as address:
        yield from (chat(address, question, TOKENS, **more) for question in QUESTIONS)


def test_a_draft_changes_nothing_in_the_text(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's commands, with ten questions: the same tokens, up to near-ties, which are few."""
    monkeypatch.chdir(tmp_path)
    exports, (plain, drafted) = documented("stridelm export")[:2], documented("llama-server")
    runs = [call("export", *command) for command in exports]
    assert [run.status for run in runs] == [0, 0]
    printed = [shlex.split(run.out.splitlines()[-1].replace("MODEL.gguf", "model.gguf")) for run in runs]
    assert printed == [["llama-server", *plain], ["llama-server", *drafted]]
    expected = list(answers(plain, n_probs=2, post_sampling_probs=False))
    found = list(answers(drafted))
    departures = 0
    for mine, theirs in zip(found, expected, strict=True):
        if mine["tokens"] == theirs["tokens"]:
            assert mine["content"] == theirs["content"]
            continue
        pairs = enumerate(zip(mine["tokens"], theirs["tokens"], strict=False))
        place = next((number for number, (a, b) in pairs if a != b), min(len(mine["tokens"]), len(theirs["tokens"])))
        first, second = (each["logprob"] for each in theirs["completion_probabilities"][place]["top_logprobs"])
        assert first - second < NEAR_TIE, theirs["content"]
        departures += 1
    assert departures <= 2
    counts = [each["timings"] for each in found]
    assert all("draft_n" not in each["timings"] for each in expected)
    assert sum(each["draft_n"] for each in counts) > len(QUESTIONS)
    assert 0.1 < sum(each["draft_n_accepted"] for each in counts) / sum(each["draft_n"] for each in counts) < 1


@torch.inference_mode()
def greedy(network: PreTrainedModel, prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
    """One token at a time, with the gap between the two best at every place."""
    ids, gaps = list(prompt), []
    for _ in range(tokens):
        best = network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)  # type: ignore[operator]
        gaps.append(float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gaps


def assert_same_answers(file: Path, network: PreTrainedModel, *, longest: int = 60) -> None:
    compared = 0
    with serving(["-m", str(file), "--ctx-size", "512", "--parallel", "1", *FLOAT32]) as address:
        for first in range(4):
            prompt = [10 + (first + 7 * place) % 100 for place in range(longest // (first + 1))]
            expected, gaps = greedy(network, prompt, 24)
            found = complete(address, prompt, 24, ignore_eos=False)["tokens"]
            for place, (theirs, mine, gap) in enumerate(zip(expected, found, gaps, strict=False)):
                if gap < 1e-2 or theirs in ENDS:
                    break
                assert mine == theirs, f"prompt {first}, token {place}"
                compared += 1
    assert compared > 30


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", {}), ("llama", {"rope_parameters": LLAMA_3}), ("qwen2", {}), ("qwen3", {"tie_word_embeddings": True})],
    ids=["llama", "llama-3", "qwen2", "qwen3"],
)
def test_tiny_models_answer_as_in_transformers(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    network = network_of(family, **changes)
    write_gguf(tmp_path / "tiny.gguf", network, tokenizer_of(), ENDS, name="tiny")
    assert_same_answers(tmp_path / "tiny.gguf", network)


def test_a_full_conversion_answers_as_our_engine_does(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the page's command, from the folder that training writes, mask token included."""
    monkeypatch.chdir(tmp_path)
    _, _, command = documented("stridelm export")
    student = FullStudent(network_of(), tokenizer_of(), masks=2)
    folder = Path(command[command.index("--model") + 1])
    folder.mkdir(parents=True)
    save_full(folder, student, dict(student.network.state_dict()), tokenizer_of(), ENDS, torch.float32)
    run = call("export", *command)
    assert (run.status, run.err) == (0, "")
    network = student.network.eval()
    assert network.config.vocab_size > len(SYNTHETIC["tokens"])
    assert_same_answers(Path(command[-1]), network)


STUCK = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("reading forever", child.pid, flush=True)
time.sleep(600)
"""


def test_a_server_that_never_gets_ready_is_given_up_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_serving, "program", lambda: [sys.executable, "-c", STUCK])
    with pytest.raises(InputError, match=r"did not get ready in time: reading forever \d+") as caught, serving([], 5.0):
        pass
    child = int(str(caught.value).split()[-1])
    for _ in range(100):  # a signal takes a moment to arrive
        if not is_running(child):
            return
        time.sleep(0.1)
    pytest.fail("what the server had started is still running")


def is_running(pid: int) -> bool:
    """Where nobody asks for an orphan's result, it stays as a zombie, which runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
