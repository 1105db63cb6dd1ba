"""Every way to convert, family by family: the loss falls, and what comes out writes what plain decoding writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import stridelm
from command_line import Call, assert_refused
from reference import NEAR_TIE, reference
from stridelm import LoadSettings, SamplingParams
from stridelm.model.adapter import load_adapter
from stridelm.model.mask_token import MASK_KEY, MASKS_KEY
from tiny import plain_network
from training import QUESTIONS, metrics, options, write_questions

FAMILIES = ("llama", "qwen3", "mistral", "gemma3", "qwen3_moe")
SHAPE: dict[str, Any] = {
    "device": "cpu", "threads": 1, "held_out": 2, "texts": 8, "length": 64, "steps": 40, "warmup": 1,
    "evaluate_every": 40, "checkpoint_every": 40,
}  # fmt: skip
CHAINS = {"k": 4, "anchors": 8}
ROLLOUTS = {"answer_tokens": 24, "rollout_batch": 8}
MODES: dict[str, dict[str, Any]] = {
    "adapter": {"rank": 8, "sequential_size": 8, "learning_rate": 0.01, **CHAINS},
    "online": {
        "objective": "online",
        "rank": 8,
        "sequential_size": 8,
        "learning_rate": 0.01,
        "random_k": None,
        **CHAINS,
    },
    "no gate": {"gate": "none", "rank": 8, "learning_rate": 0.01, **CHAINS},
    "full": {"mode": "full", "objective": "online", "labels": "soft", "learning_rate": 3e-3, **CHAINS},
    "heads": {"mode": "heads", "heads": 3, "anchors": 8, "learning_rate": 0.01},
    "draft": {"mode": "draft", "layers": 1, "learning_rate": 0.01},
}
DECODERS = {"heads": "heads", "draft": "draft"}


@pytest.fixture
def convert(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A short run; returns its folder."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path)
    answer = "Because the light that comes from the sun is scattered on its way."
    lines = [json.dumps({"question": question, "answer": answer}) for question in QUESTIONS]
    (tmp_path / "answers.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def run(model: Path, out: str = "run", prompts: str = "questions.txt", **settings: Any) -> Path:
        flags = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value is None]
        given = options(**SHAPE | {name: value for name, value in settings.items() if value is not None})
        done = call("train", "--model", model, "--out", out, "--prompts", prompts, *given, *flags)
        assert done.status == 0, done.err
        return tmp_path / out

    return run


def assert_the_loss_falls(run: Path) -> None:
    losses = [entry["loss"] for entry in metrics(run) if "loss" in entry]
    assert losses[-1] < 0.9 * losses[0], losses


def assert_exact(model: stridelm.LanguageModel, network: Any, decoder: str) -> None:
    """Token for token what a naive loop over the network writes, up to a near-tie."""
    for params in (SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=0.9, seed=5)):
        for question in QUESTIONS[:2]:
            result = model.generate(question, params, decoder=decoder)
            assert result.exact
            decisions = reference(network, model.encode(question), params, model.target.eos_ids)
            for token, decision in zip(result.token_ids, decisions, strict=True):
                if decision.margin < NEAR_TIE:
                    break
                assert token == decision.token


def load(mode: str, base: Path, run: Path) -> stridelm.LanguageModel:
    settings = LoadSettings(device="cpu", cache_tokens=4096)
    if mode == "full":
        return stridelm.load(str(run), settings=settings)
    if mode == "heads":
        return stridelm.load(str(base), heads=run, settings=settings)
    if mode == "draft":
        return stridelm.load(str(base), draft_model=run, settings=settings)
    return stridelm.load(str(base), adapter=run, settings=settings)


def plain(mode: str, base: Path, run: Path) -> Any:
    """The model that decoding is exact to, as transformers alone would run it."""
    if mode == "full":
        return plain_network(str(run))
    if mode != "no gate":
        return plain_network(str(base))
    network = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    adapter = load_adapter(run)
    with torch.no_grad():
        for target in adapter.config.targets:
            down, up = (factor.float() for factor in adapter.low_rank(target))
            linear: Any = network.get_submodule(target)
            linear.weight += up @ down
    return network


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_every_family(mode: str, family: str, convert: Callable[..., Path], tiny_folder: Callable[..., Path]) -> None:
    base = tiny_folder(family)
    run = convert(base, **MODES[mode], **ROLLOUTS)
    assert_the_loss_falls(run)
    assert_exact(load(mode, base, run), plain(mode, base, run), DECODERS.get(mode, "self"))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_domain_is_learnt(family: str, convert: Callable[..., Path], tiny_folder: Callable[..., Path]) -> None:
    settings = {"mode": "full", "objective": "sft", "learning_rate": 3e-3, "steps": 60, "checkpoint_every": 60}
    run = convert(tiny_folder(family), prompts="answers.jsonl", **settings)
    first, last = (
        entry["held_out_loss"] for entry in metrics(run) if "held_out_loss" in entry if entry["step"] in (0, 60)
    )
    assert last < first / 4
    model = stridelm.load(str(run), settings=LoadSettings(device="cpu", cache_tokens=1024))
    assert model.gate is None
    assert model.generate("Why is the moon so pale?", SamplingParams(max_tokens=40)).text.startswith("Because the ")


def test_given_answers_are_learnt_by_masks(convert: Callable[..., Path], tiny_folder: Callable[..., Path]) -> None:
    settings = {"objective": "ground-truth", "rank": 16, "learning_rate": 0.02, "steps": 60, "checkpoint_every": 60}
    run = convert(tiny_folder(), prompts="answers.jsonl", **settings, **CHAINS, **ROLLOUTS)
    assert_the_loss_falls(run)
    record = json.loads((run / "train.json").read_text())
    assert record["data"]["objective"] == "ground-truth"
    assert "Trained on the" in (run / "README.md").read_text()


def test_a_model_that_stands_alone(convert: Callable[..., Path], tiny_folder: Callable[..., Path]) -> None:
    """A vocabulary without a free slot grows by the mask token, and transformers reads the folder."""
    base = tiny_folder("qwen3", vocab_size=257)
    run = convert(base, **MODES["full"], **ROLLOUTS)
    config = json.loads((run / "config.json").read_text())
    assert (config[MASK_KEY], config[MASKS_KEY]) == (257, 3)
    assert config["vocab_size"] == 320, "a multiple of 64"
    network: Any = AutoModelForCausalLM.from_pretrained(run)
    assert network.get_input_embeddings().weight is network.get_output_embeddings().weight
    model = load("full", base, run)
    assert model.target.tokenizer.convert_tokens_to_ids("<|stride_mask|>") == 257
    assert model.gate is not None and model.gate.k == 4
    assert_exact(model, plain("full", base, run), "self")
    result = model.generate("x", SamplingParams(max_tokens=4))
    assert result.exact and str(run) in result.exact_to


def test_what_results_are_exact_to_without_a_gate(
    convert: Callable[..., Path], tiny_folder: Callable[..., Path]
) -> None:
    base = tiny_folder()
    run = convert(base, **MODES["no gate"], **ROLLOUTS)
    result = load("no gate", base, run).generate("x", SamplingParams(max_tokens=4))
    assert f"{base} with {run} in float32" in result.exact_to
    with pytest.raises(stridelm.InputError, match="other weights"):
        load("no gate", tiny_folder(seed=1), run)


@pytest.mark.parametrize("mode", ["no gate", "full", "heads", "draft"])
def test_acceptance(mode: str, call: Call, convert: Callable[..., Path], tiny_folder: Callable[..., Path]) -> None:
    """It counts the forwards of a chain that is walked; the engine's answer has as many tokens."""
    base = tiny_folder()
    run = convert(base, **MODES[mode], **ROLLOUTS)
    subject = {"no gate": ["--model", base, "--adapter", run], "full": ["--model", run]}.get(
        mode, ["--model", base, "--heads" if mode == "heads" else "--draft-model", run]
    )
    done = call("acceptance", *subject, "--prompts", "questions.txt", "--max-tokens", 12, "--device", "cpu", "--json")
    assert done.status == 0, done.err
    (told,) = done.objects
    model = load(mode, base, run)
    written = [model.generate(question, SamplingParams(max_tokens=12)) for question in QUESTIONS]
    assert told["tokens"] == sum(len(result.token_ids) for result in written)
    assert told["tokens_per_forward"] >= 1 and len(told["acceptance_by_depth"]) == (8 if mode == "draft" else 3)


def test_one_measurement_at_a_time(call: Call, tmp_path: Path) -> None:
    refused = call("acceptance", "--prompts", tmp_path, "--heads", tmp_path, "--draft-model", tmp_path)
    assert_refused(refused, "leave the others out")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mode": "fool"}, "there is no --mode 'fool'"),
    ({"objective": "sft"}, "--objective sft does not go with --mode adapter, which takes distill, online"),
    ({"mode": "draft", "objective": "online"}, "--objective online does not go with --mode draft"),
    ({"mode": "full", "rank": 4}, "--rank means nothing with --mode full"),
    ({"mode": "heads", "k": 4}, "--k means nothing with --mode heads"),
    ({"gate": "none", "sequential_size": 4}, "--sequential-size means nothing with"),
    ({"objective": "online", "labels": "text"}, "--labels text does not go with --objective online"),
    ({"mode": "draft", "layers": 3}, "between 1 and all 2 layers"),
    ({"objective": "ground-truth"}, "questions.txt, line 1: has no answer"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_refused(
    settings: dict[str, Any], said: str, call: Call, tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path)
    done = call("train", "--model", tiny_folder(), "--out", "run", "--prompts", "questions.txt", *options(**settings))
    assert_refused(done, said)
    assert [path.name for path in tmp_path.iterdir()] == ["questions.txt"]


def test_given_answers_need_a_file(call: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    run = ("--out", tmp_path / "run", "--mode", "full", "--objective", "sft")
    assert_refused(call("train", "--model", tiny_folder(), *run), "give a file with --prompts")
