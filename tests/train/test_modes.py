"""Every way to convert, family by family: the loss falls, and what comes out writes what plain decoding writes."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import stridelm
from command_line import Call, assert_refused
from killed import NEVER, train_until
from reference import NEAR_TIE, reference
from stridelm import LoadSettings, SamplingParams
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.backends.torch.draft_layers import load_layers
from stridelm.backends.torch.heads import load_heads
from stridelm.models.adapter import load_adapter
from stridelm.models.mask_token import MASKS_KEY
from stridelm.models.preview import MASK_KEY
from stridelm.models.store import read_weights
from stridelm.train.students.full_student import FullStudent
from tiny import plain_network
from training import QUESTIONS, metrics, options, write_answers, write_questions

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
FAMILIES_OF = {
    "adapter": FAMILIES,
    "full": FAMILIES,
    "online": ("qwen3", "gemma3"),
    "no gate": ("llama", "qwen3_moe"),
    "heads": ("llama", "gemma3"),
    "draft": ("mistral", "qwen3_moe"),
}
"""Whole runs. That every family's passes and losses are right, whatever learns, is test_passes.py's to say."""
DECODERS = {"heads": "heads", "draft": "draft"}


@pytest.fixture
def convert(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A short run; returns its folder."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path)
    write_answers(tmp_path)

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


@pytest.mark.parametrize(("mode", "family"), [(mode, family) for mode in MODES for family in FAMILIES_OF[mode]])
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
    assert (config["mask_token"], config["dtype"]) == ("<|stride_mask|>", "float32")
    assert "lm_head.weight" not in read_weights([run / "model.safetensors"]), "one matrix at both ends"
    network: Any = AutoModelForCausalLM.from_pretrained(run)
    assert network.get_input_embeddings().weight is network.get_output_embeddings().weight
    model = load("full", base, run)
    assert model.target.tokenizer.get_vocab()["<|stride_mask|>"] == 257
    assert model.gate is not None and model.gate.k == 4
    assert_exact(model, plain("full", base, run), "self")
    result = model.generate("x", SamplingParams(max_tokens=4))
    assert result.exact and str(run) in result.exact_to


def test_a_converted_model_learns_on_with_its_mask(
    convert: Callable[..., Path], tiny_folder: Callable[..., Path]
) -> None:
    first = convert(tiny_folder("qwen3", vocab_size=257), **MODES["full"], **ROLLOUTS)
    again = convert(first, out="again", **MODES["full"] | {"k": 3}, **ROLLOUTS)
    config = json.loads((again / "config.json").read_text())
    assert (config[MASK_KEY], config[MASKS_KEY], config["vocab_size"]) == (257, 2, 320)
    checkpoint = load_checkpoint(str(first), LoadSettings(device="cpu"), trainable=True)
    begun = FullStudent(checkpoint.network, checkpoint.tokenizer, 2)
    assert begun.token == ("<|stride_mask|>", 257)
    assert torch.equal(
        begun.mask_rows()[0], read_weights([first / "model.safetensors"])["model.embed_tokens.weight"][257]
    )
    tuned = convert(first, out="tuned", prompts="answers.jsonl", mode="full", objective="sft", learning_rate=1e-4)
    assert MASK_KEY not in json.loads((tuned / "config.json").read_text()), "its masks are not what was trained"


def test_what_results_are_exact_to_without_a_gate(
    convert: Callable[..., Path], tiny_folder: Callable[..., Path]
) -> None:
    base = tiny_folder()
    run = convert(base, **MODES["no gate"], **ROLLOUTS)
    rows_KC = load_adapter(run).mask_embedding
    assert len(rows_KC) == 3 and torch.equal(rows_KC, rows_KC[:1].expand(3, -1)), "one embedding for all depths"
    result = load("no gate", base, run).generate("x", SamplingParams(max_tokens=4))
    assert f"{base} with {run} in float32" in result.exact_to
    with pytest.raises(stridelm.InputError, match="other weights"):
        load("no gate", tiny_folder(seed=1), run)


def walked(model: stridelm.LanguageModel, propose: Callable[[list[int]], list[int]]) -> tuple[int, int]:
    """Tokens and forwards of plain answers, walked by hand: what is proposed behind the newest token is taken as far
    as it is right, and one token more."""
    tokens = forwards = 0
    for question in QUESTIONS:
        prompt = model.encode(question)
        answer = list(model.generate(question, SamplingParams(max_tokens=12), decoder="autoregressive").token_ids)
        written = 1
        forwards += 1
        while written < len(answer):
            drafts = propose([*prompt, *answer[:written]])
            taken = 0
            while (
                taken < len(drafts) and written + taken < len(answer) - 1 and drafts[taken] == answer[written + taken]
            ):
                taken += 1
            written += taken + 1
            forwards += 1
        tokens += len(answer)
    return tokens, forwards


@torch.no_grad()
def proposals(mode: str, base: Path, run: Path) -> Callable[[list[int]], list[int]]:
    """What a conversion proposes behind a text, by plain forwards."""
    network = plain(mode, base, run)
    if mode == "heads":
        _, heads = load_heads(run)

        def by_heads(text: list[int]) -> list[int]:
            hidden = network.model(torch.tensor([text[:-1]]), use_cache=False).last_hidden_state[0, -1:]
            return network.lm_head(heads(hidden)[0]).argmax(dim=-1).tolist()

        return torch.no_grad()(by_heads)
    if mode == "draft":
        checkpoint = load_checkpoint(str(base), LoadSettings(device="cpu"), trainable=True)
        layers = load_layers(run, checkpoint)
        config = copy.deepcopy(layers.config)
        draft: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        draft.load_state_dict(layers.state_dict())

        def by_layers(text: list[int]) -> list[int]:
            written = list(text)
            for _ in range(8):
                written.append(int(draft(torch.tensor([written]), use_cache=False).logits[0, -1].argmax()))
            return written[len(text) :]

        return torch.no_grad()(by_layers)
    mask = json.loads((run / "config.json").read_text())[MASK_KEY]

    def by_masks(text: list[int]) -> list[int]:
        logits = network(torch.tensor([[*text[:-1], mask, mask, mask]]), use_cache=False).logits[0, -3:]
        return logits.argmax(dim=-1).tolist()

    return torch.no_grad()(by_masks)


@pytest.mark.parametrize("mode", ["full", "heads", "draft"])
def test_acceptance(mode: str, call: Call, convert: Callable[..., Path], tiny_folder: Callable[..., Path]) -> None:
    base = tiny_folder()
    run = convert(base, **MODES[mode] | {"steps": 150, "checkpoint_every": 150, "evaluate_every": 150}, **ROLLOUTS)
    subject = {
        "full": ["--model", run],
        "heads": ["--model", base, "--heads", run],
        "draft": ["--model", base, "--draft-model", run],
    }[mode]
    limits = ("--prompts", "questions.txt", "--max-tokens", 12, "--device", "cpu", "--json")
    done = call("acceptance", *subject, *limits)
    assert done.status == 0, done.err
    (told,) = done.objects
    expected = walked(load(mode, base, run), proposals(mode, base, run))
    assert (told["tokens"], told["forwards"]) == expected
    assert told["forwards"] < told["tokens"], "something is accepted, so that a wrong place would show"
    assert_refused(call("acceptance", *subject, *limits, "--no-sequential-head"), "there is none here")


def test_one_measurement_at_a_time(call: Call, tmp_path: Path) -> None:
    refused = call("acceptance", "--prompts", tmp_path, "--heads", tmp_path, "--draft-model", tmp_path)
    assert_refused(refused, "leave the others out")


KILLED = [
    ("full", "config.json", "os.rename run/.writing/config.json"),
    ("heads", "heads.json", "os.rename run/.writing/heads.json"),
    ("draft", "draft.json", "os.rename run/.writing/draft.json"),
    ("full", "config.json", "os.remove run/checkpoint-000040.safetensors"),  # no matter of the mode: once is enough
]


@pytest.mark.parametrize(("mode", "file", "moment"), KILLED)
def test_killed_at_the_end_and_resumed(
    mode: str, file: str, moment: str, tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    """Nothing half: without its JSON file there is no result, with it the run still knows that it is not finished."""
    settings = options(**SHAPE | MODES[mode] | ROLLOUTS | {"checkpoint_every": 20})
    arguments = ["--model", str(tiny_folder()), "--out", "run", "--prompts", "questions.txt", *settings]
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        write_questions(tmp_path / name)
    assert train_until(NEVER, tmp_path / "whole", arguments) == 0
    assert train_until(moment, tmp_path / "killed", arguments) == -9
    assert (tmp_path / "killed/run" / file).exists() == ("remove" in moment)
    assert train_until(NEVER, tmp_path / "killed", [*arguments, "--resume"]) == 0
    weights = [read_weights(sorted((tmp_path / name / "run").glob("*.safetensors"))) for name in ("whole", "killed")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


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
