"""Our conversions in vLLM itself, on this CPU: `make test-vllm`, which builds vLLM's environment first.

The commands are those that `stridelm export --to vllm` prints, and that docs/engines.md shows. Servers start in a
minute, so the tests of one path share one.
"""

import json
import os
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.engines import two_pass
from bench.engines.vllm_server import VENV, Server, export, messages_of, plain, serving
from bench.measured import KINDS, MATHS
from stridelm.backends.common.processor import processor_entry
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.export.hf_folder import load_base, write_plain
from stridelm.export.vllm_folder import write_full, write_gated, write_ungated
from stridelm.models.adapter import MASK_EMBEDDING, save_adapter
from stridelm.models.builtin import builtin_adapter, builtin_folder, builtin_ungated
from stridelm.settings import LoadSettings
from stridelm.train.students.passes import ChainPass
from stridelm.train.students.student import read_texts
from tiny import load_tiny, plain_network, random_adapter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (VENV / "bin" / "vllm").exists(), reason="vLLM's environment is not here: make vllm"),
]

ENGINES = Path(__file__).parent.parent.parent / "docs" / "engines.md"
COUNT = 50
MAX_TOKENS = 64
NEAR = 1e-3
"""A gap between the two best logits at which two ways to add up the same numbers may choose otherwise."""
POINTS = 0.03


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of them maths, half of all kinds."""
    maths, kinds = (file.read_text().splitlines() for file in (MATHS, KINDS))
    file = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    half = COUNT // 2
    file.write_text("\n".join([*maths[:half], *kinds[:: len(kinds) // half][:half]]) + "\n")
    return file


@pytest.fixture(scope="module")
def base() -> Iterator[Checkpoint]:
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)  # no tiny model: what it is asked takes minutes on one
    yield load_checkpoint("smollm2", LoadSettings(device="cpu"), trainable=True)
    torch.set_num_threads(threads)


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
def logits_after(base: Checkpoint, messages: list[dict[str, Any]], answer: list[int]) -> torch.Tensor:
    prompt = base.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    network = plain_network(str(builtin_folder()))
    return network(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0, -1]


def gap(base: Checkpoint, messages: list[dict[str, Any]], answer: list[int], tokens: set[int]) -> float:
    """Between the two best tokens after this beginning of an answer, which must be these."""
    best = logits_after(base, messages, answer).topk(2)
    assert set(best.indices.tolist()) == tokens
    first, second = best.values.tolist()
    return first - second


def test_the_text_is_vllms_own_and_acceptance_is_our_engines(
    served: tuple[str, Server],
    plain_answers: list[list[int]],
    questions: Path,
    base: Checkpoint,
) -> None:
    path, server = served
    asked = messages_of(questions, COUNT)
    before = server.drafts()
    answers = server.ask_all(asked, at_once=4, max_tokens=MAX_TOKENS)
    drafts = server.drafts().since(before)
    near_ties = 0
    for messages, expected, answer in zip(asked, plain_answers, answers, strict=True):
        if answer == expected:
            continue
        same = next((at for at, (a, b) in enumerate(zip(answer, expected, strict=False)) if a != b), None)
        assert same is not None, "one answer is the beginning of the other"
        assert gap(base, messages, expected[:same], {expected[same], answer[same]}) < NEAR, (messages, same)
        near_ties += 1
    assert near_ties <= 3

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
        "tokens": MAX_TOKENS,
        "near_ties": near_ties,
        "drafts": k,
        "tokens_per_step": drafts.tokens_per_step,
        "ours_tokens_per_step": 1 + sum(ours),
        "rates": drafts.rates,
        "ours": ours,
    }
    print(json.dumps(figures))
    keep(figures)
    assert drafts.rates == pytest.approx(ours, abs=POINTS)
    assert drafts.tokens_per_step > 2


def keep(figures: dict[str, Any]) -> None:
    """For the docs, where `make test-vllm` wants them: by path."""
    if file := os.environ.get("STRIDELM_VLLM_FIGURES"):
        known = json.loads(Path(file).read_text()) if Path(file).exists() else {}
        machine = {"processor": processor_entry("model name"), "date": datetime.now(UTC).date().isoformat()}
        Path(file).write_text(json.dumps(known | {figures["path"]: figures | machine}, indent=2) + "\n")


def test_sampling_has_the_models_own_distribution(served: tuple[str, Server], base: Checkpoint) -> None:
    """Of the second token, the first that may come by way of a draft: often enough to see a wrong temperature."""
    path, server = served
    if path == "ungated":
        pytest.skip("vLLM 0.32's own sampling of drafts is broken on a CPU: docs/engines.md")
    messages, temperature, count = [{"role": "user", "content": "Name a colour."}], 0.6, 400
    pairs = [
        tuple(choice["token_ids"])
        for choice in server.choices(messages, max_tokens=2, temperature=temperature, seed=1, n=count)
    ]
    ((first, _),) = Counter(pair[0] for pair in pairs).most_common(1)
    seen = Counter(pair[1] for pair in pairs if pair[0] == first)
    logits = logits_after(base, messages, [first])
    distances: dict[float, float] = {}
    for wanted in (temperature, 1.0, 0.3):
        expected = (logits / wanted).softmax(dim=-1)
        share = torch.zeros_like(expected)
        for token, times in seen.items():
            share[token] = times / seen.total()
        distances[wanted] = float((share - expected).abs().sum() / 2)
    print(json.dumps({"second tokens": seen.total(), "distance by temperature": distances}))
    assert seen.total() > 100 and distances[temperature] < 0.16
    assert distances[temperature] == min(distances.values())


def test_sampling_among_one_token_is_greedy_and_seeds_hold(served: tuple[str, Server]) -> None:
    path, server = served
    if path == "ungated":
        pytest.skip("vLLM 0.32's own sampling of drafts is broken on a CPU: docs/engines.md")
    for messages in messages_of(KINDS, 3):
        greedy = server.ask(messages, max_tokens=32)
        assert server.ask(messages, max_tokens=32, temperature=0.9, top_k=1) == greedy
        first = server.ask(messages, max_tokens=32, temperature=0.9, seed=3)
        assert server.ask(messages, max_tokens=32, temperature=0.9, seed=3) == first


# Drafts, one by one: a mistake in them cannot hide behind verification

ASKED = [[1, 40, 7, 250, 9, 3], [5, 6, 7, 8] * 8]
WIDE: dict[str, Any] = {"hidden_size": 128, "head_dim": 32}
"""vLLM has no attention for smaller heads."""


def drafts_in_vllm(model: Path, drafter: Path, drafts: int) -> dict[str, Any]:
    script = Path(__file__).parent / "vllm_drafts.py"
    done = subprocess.run(
        [str(VENV / "bin" / "python"), str(script), str(model), str(drafter), str(drafts)],
        input=json.dumps(ASKED), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["drafted"] == found["plain"]
    return found


def assert_drafted(found: dict[str, Any], expected: list[list[list[int]]]) -> None:
    """`expected`: of each prompt, the drafts behind each token of its answer. Both texts are in one batch, and told
    apart by their places, which do not overlap."""
    compared = 0
    for prompt, answer, drafts in zip(ASKED, found["plain"], expected, strict=True):
        first, end = len(prompt), len(prompt) + len(answer)
        for place, token, proposed in found["drafts"]:
            if first <= place < end and token == answer[place - first]:
                assert proposed == drafts[place - first]
                compared += 1
    assert compared > 8


@pytest.mark.parametrize(
    ("family", "sequential_size"), [("llama", 8), ("llama", 0), ("mistral", 8), ("qwen2", 8), ("qwen3", 8)]
)
def test_gated_drafts_are_our_own(
    family: str, sequential_size: int, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Every family that the plugin takes, with an adapter that changes a lot."""
    folder = tiny_folder(family, **WIDE)
    adapter = random_adapter(load_tiny(folder), sequential_size=sequential_size)
    save_adapter(tmp_path / "adapter", adapter)
    write_gated(load_base(str(folder)), adapter, tmp_path / "vllm")
    found = drafts_in_vllm(tmp_path / "vllm" / "model", tmp_path / "vllm" / "drafter", 4)
    assert found["proposers"] == ["GatedProposer"]
    target = load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True)
    drafter = two_pass.Drafter(target, tmp_path / "adapter", 4)
    assert_drafted(found, [own_drafts(drafter, *each) for each in zip(ASKED, found["plain"], strict=True)])


@torch.no_grad()
def own_drafts(drafter: two_pass.Drafter, prompt: list[int], answer: list[int]) -> list[list[int]]:
    """Behind every token of an answer, each draft in the light of those before it."""
    student, network = drafter.student, drafter.reads
    ids_1T = torch.tensor([[*prompt, *answer]])
    anchors_1A = torch.arange(len(prompt), ids_1T.shape[1])[None]
    texts, hidden_TC = read_texts(network, ids_1T)
    masks_AKC = student.outputs(ChainPass(texts, anchors_1A, student.masks))
    chosen = [drafter.head.best(hidden_TC[anchors_1A[0]])]
    state = None if student.sequential is None else student.sequential.start(len(answer))
    for depth in range(student.masks):
        output_AC = masks_AKC[:, depth]
        if student.sequential is not None and state is not None:
            before_AC = network.get_input_embeddings()(chosen[-1]).float()
            added_AC, state = student.sequential(output_AC.float(), before_AC, state)
            output_AC = output_AC + added_AC
        chosen.append(drafter.head.best(output_AC))
    return torch.stack(chosen, dim=-1).tolist()


@pytest.mark.parametrize("conversion", ["ungated", "full"])
def test_drafts_of_stock_vllm_are_those_of_the_exported_model(
    conversion: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Our plugin is there and keeps out of it. Masks are ordinary tokens, so transformers can tell what is right."""
    folder, out = tiny_folder("llama", **WIDE), tmp_path / "vllm"
    base = load_base(str(folder))
    if conversion == "ungated":
        adapter = random_adapter(load_tiny(folder), sequential_size=0)
        masks = adapter.mask_embedding[:1].expand_as(adapter.mask_embedding)
        adapter = replace(adapter, tensors=adapter.tensors | {MASK_EMBEDDING: masks}, is_gated=False)
        written = write_ungated(base, adapter, out)
    else:
        for name, value in (("mask_token_id", 258), ("trained_masks", 3)):
            setattr(base.network.config, name, value)
        written = write_full(base, [258] * 3, out)
    found = drafts_in_vllm(out / "model", out / written.drafter, 4)
    assert found["proposers"] == ["ChosenProposer"]
    drafter = plain_network(str(out / written.drafter))
    token = drafter.config.mask_token_id
    expected: list[list[list[int]]] = []
    with torch.no_grad():
        for prompt, answer in zip(ASKED, found["plain"], strict=True):
            texts = [[*prompt, *answer[: place + 1], *[token] * 3] for place in range(len(answer))]
            expected.append([drafter(torch.tensor([text])).logits[0, -4:].argmax(dim=-1).tolist() for text in texts])
    assert_drafted(found, expected)


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
