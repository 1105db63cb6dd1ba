"""llama.cpp reads what we write: the commands of docs/engines.md are run, and its answers are compared."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import llama_serving
from command_line import Call
from llama_serving import chat, complete, serving
from stridelm.interop.gguf_file import write_gguf
from stridelm.model import builtin
from stridelm.model.full_student import FullStudent, save_full
from stridelm.params import InputError
from test_gguf_file import ENDS, LLAMA_3, SYNTHETIC, network_of, tokenizer_of

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parent.parent / "docs" / "engines.md"
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
    """The commands of a program in the page, as their arguments."""
    lines = re.sub(r"\\\n\s+", "", PAGE.read_text()).splitlines()
    return [shlex.split(line)[1:] for line in lines if re.match(rf"    {program} ", line)]


def test_the_page_shows_both_ways_to_serve_and_how_to_export() -> None:
    plain, drafted = documented("llama-server")
    assert "--spec-type" not in plain and "draft-simple" in drafted
    assert len([each for each in documented("stridelm") if "gguf" in each]) == 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to run the page's commands in; the model is the built-in one's own file, of 4 bits."""
    folder = tmp_path_factory.mktemp("llama")
    (folder / "model.gguf").symlink_to(builtin.ensure_builtin() / builtin.GGUF_NAME)
    return folder


@pytest.fixture
def draft(files: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Exported as the page says."""
    monkeypatch.chdir(files)
    (command,) = (each for each in documented("stridelm") if "gguf" in each and "draft" in each)
    file = files / command[-1]
    if not file.exists():
        assert call(*command).status == 0
    return file


def answers(arguments: list[str], **more: Any) -> Iterator[dict[str, Any]]:
    with serving([*arguments, "--ctx-size", "1024", "--parallel", "1"]) as address:
        yield from (chat(address, question, TOKENS, **more) for question in QUESTIONS)


@pytest.mark.usefixtures("draft")
def test_a_draft_changes_nothing_in_the_text() -> None:
    """The page's two commands, with ten questions: the same tokens, up to near-ties, which are few."""
    plain, drafted = documented("llama-server")
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


def test_a_full_conversion_answers_as_our_engine_does(call: Call, tmp_path: Path) -> None:
    """Through the page's command, from the folder that training writes, mask token included."""
    student = FullStudent(network_of(), tokenizer_of(), masks=2)
    folder, file = tmp_path / "run", tmp_path / "model.gguf"
    folder.mkdir()
    save_full(folder, student, dict(student.network.state_dict()), tokenizer_of(), ENDS, torch.float32)
    (command,) = (each for each in documented("stridelm") if "gguf" in each and "draft" not in each)
    command[command.index("--model") + 1], command[-1] = str(folder), str(file)
    run = call(*command)
    assert (run.status, run.err) == (0, "")
    network = student.network.eval()
    assert network.config.vocab_size > len(SYNTHETIC["tokens"])
    assert_same_answers(file, network)
