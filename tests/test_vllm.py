"""Our conversions in vLLM itself, on this CPU: `make test-vllm`, which builds vLLM's environment first.

The commands are those that `stridelm export --to vllm` prints, and that docs/engines.md shows. Servers start in a
minute, so the tests of one path share one.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import two_pass
from stridelm.interop.hf_folder import load_base, write_plain
from stridelm.interop.vllm_folder import write_gated
from stridelm.model.adapter import save_adapter
from stridelm.model.builtin import builtin_adapter, builtin_ungated
from stridelm.model.load import Checkpoint, load_checkpoint
from stridelm.settings import LoadSettings
from tiny import load_tiny, random_adapter
from vllm_server import BENCH, VENV, Server, export, messages_of, plain, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (VENV / "bin" / "vllm").exists(), reason="vLLM's environment is not here: make vllm"),
]

ENGINES = Path(__file__).parent.parent / "docs" / "engines.md"
COUNT = 50
MAX_TOKENS = 64
NEAR = 1e-3
"""A gap between the two best logits at which two ways to add up the same numbers may choose otherwise."""
POINTS = 0.03


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of them maths, half of all kinds."""
    maths, kinds = (
        (BENCH / "prompts" / name).read_text().splitlines() for name in ("gsm8k_heldout.jsonl", "kinds.jsonl")
    )
    file = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    half = COUNT // 2
    file.write_text("\n".join([*maths[:half], *kinds[:: len(kinds) // half][:half]]) + "\n")
    return file


@pytest.fixture(scope="module")
def base() -> Checkpoint:
    return load_checkpoint("smollm2", LoadSettings(device="cpu"), trainable=True)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the page shows, made and printed here."""
    folder = tmp_path_factory.mktemp("vllm")
    section = ENGINES.read_text().split("## vLLM\n")[1].split("\n## ")[0]
    shown = re.findall(r"^    (stridelm export .*)\n    (vllm serve .*\n .*)$", section, re.M)
    assert len(shown) == 2
    commands: list[str] = []
    for exported, served in shown:
        *options, name = exported.removeprefix("stridelm export --to vllm ").split()
        commands.append(export(folder / name, *options))
        assert shlex.split(commands[-1].replace(f"{folder}/", "")) == [
            re.sub(r"\s+", " ", each) for each in shlex.split(served)
        ]
    return dict(zip(("gated", "ungated"), commands, strict=True))


@pytest.fixture(scope="module")
def plain_answers(commands: dict[str, str], questions: Path) -> list[list[int]]:
    """What vLLM says one token at a time."""
    with serving(plain(commands["gated"])) as server:
        return server.ask_all(messages_of(questions, COUNT), at_once=4, max_tokens=MAX_TOKENS)


@pytest.fixture(scope="module", params=["gated", "ungated"])
def served(request: pytest.FixtureRequest, commands: dict[str, str]) -> Iterator[tuple[str, Server]]:
    with serving(commands[request.param]) as server:
        yield request.param, server


@torch.no_grad()
def gap(base: Checkpoint, messages: list[dict[str, Any]], answer: list[int]) -> float:
    """Between the two best tokens after this beginning of an answer."""
    prompt = base.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    network: Any = base.network
    logits = network(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0, -1]
    best, second = logits.topk(2).values.tolist()
    return best - second


def test_the_text_is_vllms_own_and_acceptance_is_our_engines(
    served: tuple[str, Server],
    plain_answers: list[list[int]],
    questions: Path,
    base: Checkpoint,
    record_property: Callable[[str, object], None],
) -> None:
    path, server = served
    asked = messages_of(questions, COUNT)
    answers = server.ask_all(asked, at_once=4, max_tokens=MAX_TOKENS)
    near_ties = 0
    for messages, expected, answer in zip(asked, plain_answers, answers, strict=True):
        if answer == expected:
            continue
        same = next((at for at, (a, b) in enumerate(zip(answer, expected, strict=False)) if a != b), None)
        assert same is not None, "one answer is the beginning of the other"
        assert gap(base, messages, expected[:same]) < NEAR, (messages, expected, answer)
        near_ties += 1
    drafts = server.drafts()

    folder = builtin_adapter() if path == "gated" else builtin_ungated()
    assert folder is not None
    k = len(drafts.accepted)
    drafter, tally = two_pass.Drafter(base, folder, k), two_pass.Tally()
    for answer in two_pass.answers_of(base, questions, COUNT, MAX_TOKENS, k):
        if answer.last > answer.first:
            ways = drafter(answer)
            two_pass.walk(answer, ways.get("masks with the sequential head", ways["masks"]), k, tally)
    ours = [count / tally.drafts for count in tally.accepted]
    figures = {
        "path": path,
        "answers": len(answers),
        "near_ties": near_ties,
        "drafts": k,
        "tokens_per_step": drafts.tokens_per_step,
        "ours_tokens_per_step": 1 + sum(ours),
        "rates": drafts.rates,
        "ours": ours,
    }
    print(json.dumps(figures))
    record_property("vllm", figures)
    assert drafts.rates == pytest.approx(ours, abs=POINTS)
    assert drafts.tokens_per_step > 2


def test_sampling_among_one_token_is_greedy_and_seeds_hold(served: tuple[str, Server]) -> None:
    path, server = served
    if path == "ungated":
        pytest.skip("vLLM 0.32's own sampling of drafts is broken on a CPU: docs/engines.md")
    for messages in messages_of(BENCH / "prompts" / "kinds.jsonl", 3):
        greedy = server.ask(messages, max_tokens=32)
        assert server.ask(messages, max_tokens=32, temperature=0.9, top_k=1) == greedy
        first = server.ask(messages, max_tokens=32, temperature=0.9, seed=3)
        assert server.ask(messages, max_tokens=32, temperature=0.9, seed=3) == first


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_drafts_are_our_engines_one_by_one(family: str, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """Every family that the plugin takes, with an adapter that changes a lot. What is compared is the drafts, so a
    mistake cannot hide behind verification."""
    changes: dict[str, Any] = {"hidden_size": 128, "head_dim": 32}  # vLLM has no attention for smaller heads
    if family == "mistral":
        changes["sliding_window"] = None
    folder = tiny_folder(family, **changes)
    adapter = random_adapter(load_tiny(folder), sequential_size=0)
    save_adapter(tmp_path / "adapter", adapter)
    write_gated(load_base(str(folder)), adapter, tmp_path / "vllm")
    asked = [[1, 40, 7, 250, 9, 3], [5, 6, 7, 8] * 6]
    done = subprocess.run(
        [str(VENV / "bin" / "python"), str(Path(__file__).parent / "vllm_drafts.py"), str(tmp_path / "vllm"), "4"],
        input=json.dumps(asked), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    target = load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True)
    drafter = two_pass.Drafter(target, tmp_path / "adapter", 4)
    for prompt, found in zip(asked, json.loads(done.stdout), strict=True):
        plainly = found["plain"]
        assert found["drafted"] == plainly
        first, end = len(prompt), len(prompt) + len(plainly)
        answer = two_pass.Answer(np.array([*prompt, *plainly, *[0] * 8]), first, end)
        expected = drafter(answer)["masks"]
        inside = [each for each in found["drafts"] if each[0] < end]
        assert len(inside) > 3
        for place, token, drafts in inside:
            assert token == plainly[place - first] and drafts == expected[place - first].tolist()


def test_a_drafter_of_another_model_is_refused_in_words(commands: dict[str, str], tmp_path: Path) -> None:
    other = load_base("smollm2")
    with torch.no_grad():
        next(iter(other.network.parameters())).mul_(1.01)
    write_plain(other, tmp_path / "other")
    served = commands["gated"].split()[2]
    with (
        pytest.raises(RuntimeError, match="has other weights"),
        serving(commands["gated"].replace(served, str(tmp_path / "other"), 1)),
    ):
        pass
