"""Draft models of the target's first layers: made, stored, loaded, and decoded with."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

import stridelm
from assembly import assembled
from command_line import Call, assert_refused
from gguf_models import logits_of as engine_logits
from reference import NEAR_TIE, first_departure, replay
from stridelm.api import LanguageModel
from stridelm.backends.torch import draft_source
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.draft_layers import (
    DRAFT,
    DraftConfig,
    first_layers,
    is_draft,
    load_draft,
    load_layers,
    own_tensors,
    save_draft,
)
from stridelm.backends.torch.gated import attach
from stridelm.backends.torch.linear import PackedLinear, PanelLinear, TransposedLinear
from stridelm.models import builtin
from stridelm.params import InputError, SamplingParams
from stridelm.settings import DecodeSettings, LoadSettings
from tiny import FAMILIES, load_tiny, plain_network, random_adapter

IDS = torch.tensor([[1, 40, 7, 250, 9, 9, 3, 77, 120, 5, 61, 8, 34, 2, 17, 90, 4, 33]])
"""More tokens than the tiny models' sliding windows see."""


@torch.no_grad()
def logits_of(network: Any) -> torch.Tensor:
    """By transformers' own forward and attention."""
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    logits = network(input_ids=IDS, use_cache=False).logits
    network.set_attn_implementation(before)
    return logits


def naive(folder: Path, family: str, count: int) -> PreTrainedModel:
    """The first layers as transformers makes them from the same weights: it leaves those of further layers aside."""
    changes: dict[str, Any] = {"num_hidden_layers": count}
    if getattr(FAMILIES[family], "layer_types", None) is not None:
        changes["layer_types"] = FAMILIES[family].layer_types[:count]
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **changes).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_are_the_network(family: str, trainable: Callable[..., Checkpoint]) -> None:
    network = trainable(family).network
    torch.testing.assert_close(logits_of(first_layers(network, 2)), logits_of(network), rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_layer_is_what_transformers_makes_of_the_same_weights(
    family: str, trainable: Callable[..., Checkpoint], tiny_folder: Callable[..., Path]
) -> None:
    network: Any = trainable(family).network
    draft: Any = first_layers(network, 1)
    logits = logits_of(draft)
    torch.testing.assert_close(logits, logits_of(naive(tiny_folder(family), family, 1)), rtol=0, atol=0)
    assert not torch.allclose(logits, logits_of(network), atol=1e-2)
    for each, layers in ((draft, 1), (network, 2)):
        assert (each.config.num_hidden_layers, len(each.base_model.layers)) == (layers, layers)
        assert len(getattr(each.config, "layer_types", None) or "x" * layers) == layers


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_trained_is_its_own_and_the_large_matrices_are_not(
    family: str, trainable: Callable[..., Checkpoint]
) -> None:
    network = trainable(family).network
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    draft = first_layers(network, 1)
    assert draft.get_input_embeddings() is network.get_input_embeddings()
    assert draft.get_output_embeddings() is network.get_output_embeddings()
    own = own_tensors(draft)
    trained = {name for name, parameter in draft.named_parameters() if parameter.requires_grad}
    assert trained <= own.keys() and any(".layers.0." in name for name in own)
    assert {name for name in before if "norm" in name and ".layers." not in name} <= trained
    assert not [name for name in own if "embed" in name or "lm_head" in name or ".layers.1." in name]
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_half_precision_network_gives_float32_layers(tiny_folder: Callable[..., Path]) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.bfloat16).requires_grad_(False)
    draft = first_layers(network, 1)
    assert {tensor.dtype for tensor in own_tensors(draft).values()} == {torch.float32}
    assert draft.get_input_embeddings().weight.dtype == torch.bfloat16


@pytest.mark.parametrize("count", [0, -1, 3])
def test_a_number_of_layers_that_the_model_has_not_is_refused(count: int, trainable: Callable[..., Checkpoint]) -> None:
    with pytest.raises(InputError, match=f"between 1 and all 2 layers of llama, not {count}"):
        first_layers(trainable().network, count)


# On disk and beside its target


@pytest.fixture(scope="session")
def draft_folder(
    tmp_path_factory: pytest.TempPathFactory, trainable: Callable[..., Checkpoint]
) -> Callable[[str, int], Path]:
    """A draft model of a tiny one, whose layers have gone their own way a little, made once."""
    made: dict[tuple[str, int], Path] = {}

    def get(family: str = "llama", layers: int = 1) -> Path:
        if (family, layers) not in made:
            base, random = trainable(family), torch.Generator().manual_seed(0)
            draft = first_layers(base.network, layers)
            with torch.no_grad():
                for parameter in draft.parameters():
                    if parameter.requires_grad:
                        parameter.add_(0.02 * torch.randn(parameter.shape, generator=random))
            folder = tmp_path_factory.mktemp("draft") / family
            save_draft(folder, DraftConfig(base.name, base.fingerprint, layers), draft)
            made[family, layers] = folder
        return made[family, layers]

    return get


DraftFolder = Callable[..., Path]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stored_draft_says_beside_its_target_what_it_says_alone(
    family: str, draft_folder: DraftFolder, trainable: Callable[..., Checkpoint], tiny: Callable[..., Checkpoint]
) -> None:
    alone = load_layers(draft_folder(family), trainable(family))
    assert not torch.allclose(logits_of(alone), logits_of(first_layers(trainable(family).network, 1)), atol=1e-2)
    target = tiny(family)
    draft = load_draft(draft_folder(family), target)
    ids = IDS[0].tolist()
    torch.testing.assert_close(engine_logits(draft, ids), logits_of(alone)[0], rtol=1e-4, atol=1e-4)
    ours, theirs = draft.network, target.network
    assert ours.get_input_embeddings() is theirs.get_input_embeddings()
    assert ours.get_output_embeddings() is theirs.get_output_embeddings()
    assert (ours.config.num_hidden_layers, ours.config.vocab_size, ours.config.pad_token_id) == (1, 260, 256)
    assert (draft.tokenizer, draft.eos_ids, draft.context_length, draft.vocabulary) == (
        target.tokenizer, target.eos_ids, target.context_length, target.vocabulary,
    )  # fmt: skip
    assert draft.fingerprint != target.fingerprint


def test_what_is_stored_is_bfloat16_without_the_large_matrices(draft_folder: DraftFolder) -> None:
    folder = draft_folder()
    assert is_draft(folder) and json.loads((folder / "draft.json").read_text())["format"] == "stridelm-draft"
    tensors = load_file(folder / "draft-00001-of-00001.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert "model.norm.weight" in tensors and all(260 not in tensor.shape for tensor in tensors.values())


@pytest.mark.parametrize("attach_first", [True, False])
@pytest.mark.parametrize("storage", [PanelLinear, TransposedLinear, PackedLinear, None])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_form_of_target_takes_a_draft_and_an_adapter(
    family: str,
    storage: type | None,
    attach_first: bool,
    draft_folder: DraftFolder,
    tiny_folder: Callable[..., Path],
    trainable: Callable[..., Checkpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The draft model may come before the adapter or, as the built-in one's does, after it."""
    monkeypatch.setattr("stridelm.backends.torch.checkpoint.best_storage", lambda device, dtype: storage)
    target = load_tiny(tiny_folder(family))
    draft = None if attach_first else load_draft(draft_folder(family, 2), target)
    gate = attach(target.network, random_adapter(target))
    draft = draft or load_draft(draft_folder(family, 2), target)
    ids = IDS[0].tolist()
    alone = logits_of(load_layers(draft_folder(family, 2), trainable(family)))[0]
    torch.testing.assert_close(engine_logits(draft, ids), alone, rtol=1e-4, atol=1e-4)
    model = assembled(target, draft, LoadSettings(cache_tokens=1024), gate)
    assert_exact(model, tiny_folder(family), ("draft", "self", "ensemble"), SamplingParams(max_tokens=24))


def assert_exact(model: LanguageModel, folder: Path, decoders: tuple[str, ...], params: SamplingParams) -> int:
    """Returns how many drafts were accepted."""
    accepted = 0
    for text in ("abcabcabcabd abcabc", "The quick brown fox"):
        ids = model.encode(text, raw=True)
        for decoder in decoders:
            result = model.generate(text, params, decoder=decoder, raw=True)
            tokens = list(result.token_ids)
            expected = replay(plain_network(str(folder)), ids, tokens, params, model.target.eos_ids)
            at = first_departure(expected, tokens)
            assert at is None or expected[at].margin < NEAR_TIE, f"{decoder}: another token at {at}"
            accepted += result.stats.accepted
    return accepted


@pytest.mark.parametrize(
    ("layers", "params"), [(1, SamplingParams(temperature=0.9, top_p=0.95, seed=7)), (2, SamplingParams())]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_with_it_is_exact(
    family: str,
    layers: int,
    params: SamplingParams,
    draft_folder: DraftFolder,
    tiny_folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stridelm.draft.draft_model.FLOOR", 0.0)  # it always drafts k: much to accept and to reject
    settings = LoadSettings(device="cpu", cache_tokens=1024)
    model = stridelm.load(str(tiny_folder(family)), draft_model=draft_folder(family, layers), settings=settings)
    accepted = assert_exact(model, tiny_folder(family), ("draft",), replace(params, max_tokens=32))
    assert accepted > (20 if layers == 2 else 0)


# What is wrong with a folder


@pytest.fixture
def copied(draft_folder: DraftFolder, tmp_path: Path) -> Path:
    """A draft model's files, to be damaged."""
    for file in draft_folder().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change_entry(folder: Path, **changes: object) -> None:
    file = folder / DRAFT.file
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensor(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    shard = folder / "draft-00001-of-00001.safetensors"
    tensors = load_file(shard) | ({} if tensor is None else {name: tensor})
    if tensor is None:
        del tensors[name]
    save_file(tensors, shard)


NORM = "model.norm.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another format": (lambda folder: change_entry(folder, format="stridelm-heads"), "stridelm-heads"),
    "a later version": (lambda folder: change_entry(folder, version=9), "version 9"),
    "cut off": (lambda folder: (folder / DRAFT.file).write_text("{"), "copy the draft again"),
    "no fingerprint": (lambda folder: change_entry(folder, fingerprint=None), "other weights"),
    "another base": (lambda folder: change_entry(folder, fingerprint="0" * 64), "train --mode draft"),
    "too many layers": (lambda folder: change_entry(folder, layers=3), "3 layers"),
    "no layers": (lambda folder: change_entry(folder, layers=0), "0 layers"),
    "layers in words": (lambda folder: change_entry(folder, layers="one"), "'one' layers"),
    "other layers": (lambda folder: change_entry(folder, layers=2), "missing or one too many"),
    "no shard": (lambda folder: (folder / "draft-00001-of-00001.safetensors").unlink(), "copy the draft again"),
    "a tensor less": (lambda folder: change_tensor(folder, NORM, None), NORM),
    "a tensor more": (lambda folder: change_tensor(folder, "lm_head.weight", torch.ones(260, 32)), "lm_head.weight"),
    "another shape": (lambda folder: change_tensor(folder, NORM, torch.ones(31)), NORM),
    "not finite": (lambda folder: change_tensor(folder, NORM, torch.full((32,), float("nan"))), "not finite"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_foreign_folders_are_refused(
    damage: str, copied: Path, tiny: Callable[..., Checkpoint], trainable: Callable[..., Checkpoint]
) -> None:
    change, word = DAMAGES[damage]
    change(copied)
    for load, base in ((load_draft, tiny()), (load_layers, trainable())):
        with pytest.raises(InputError, match=str(copied)) as refusal:
            load(copied, base)
        assert word in str(refusal.value)


def test_a_draft_of_another_model_is_refused_on_the_command_line(
    call: Call, draft_folder: DraftFolder, tiny_folder: Callable[..., Path]
) -> None:
    options = ("--draft-model", draft_folder(), "--device", "cpu", "--decoder", "draft", "--max-tokens", 4, "--json")
    (answer,) = call("generate", "--model", tiny_folder(), *map(str, options), "abc").objects
    assert answer["decoder"] == "draft" and answer["exact"]
    run = call("generate", "--model", tiny_folder("llama", seed=1), *map(str, options), "abc")
    assert_refused(run, str(draft_folder()), "other weights", "stridelm train --mode draft")


# The one that comes with the built-in model


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that a target's own draft model was loaded from."""
    folders: list[Path] = []

    def load(folder: Path, target: Checkpoint) -> Checkpoint:
        folders.append(folder)
        return load_draft(folder, target)

    monkeypatch.setattr(draft_source, "load_draft", load)
    return folders


def test_the_built_in_models_draft_is_loaded_when_first_asked_and_only_by_the_decoder_draft(
    draft_folder: DraftFolder, tiny: Callable[..., Checkpoint], loads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "builtin_draft", draft_folder)
    model = assembled(replace(tiny(), name=builtin.NAME), None, LoadSettings(cache_tokens=1024))
    params = SamplingParams(max_tokens=16)
    for decoder in ("auto", "ensemble", "ngram", "autoregressive"):
        plain = model.generate("abcabc", params, decoder=decoder)
    assert loads == []
    drafted = model.generate("abcabc", params, decoder=DecodeSettings("draft", k=2))
    assert drafted.token_ids == plain.token_ids and drafted.stats.drafted > 0
    model.generate("abcabc", params, decoder=DecodeSettings("draft", k=3))
    assert loads == [draft_folder()]
    # Who asked does not change what others use.
    assert [drafter.name for drafter in model._policy(DecodeSettings("ensemble", k=3)).drafters] == ["ngram"]  # type: ignore[attr-defined]


def test_a_draft_that_is_given_takes_the_place_of_the_built_in_models(
    draft_folder: DraftFolder, tiny: Callable[..., Checkpoint], loads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "builtin_draft", draft_folder)
    target = replace(tiny(), name=builtin.NAME)
    model = assembled(target, tiny("llama", 1), LoadSettings(cache_tokens=1024))
    assert model.generate("abcabc", SamplingParams(max_tokens=8), decoder="draft").stats.drafted > 0
    assert loads == []


def test_without_a_draft_model_the_decoder_draft_is_refused(
    tiny: Callable[..., Checkpoint], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "builtin_draft", lambda: None)
    model = assembled(replace(tiny(), name=builtin.NAME), None, LoadSettings(cache_tokens=1024))
    with pytest.raises(InputError, match=r"--draft-model .* or make one with `stridelm train --mode draft`"):
        model.generate("abc", decoder="draft")
    assert_refused(call("generate", "--decoder", "draft", "abc"), "--draft-model", "stridelm train --mode draft")


def test_the_built_in_models_draft_is_there_once_it_has_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "__file__", str(tmp_path / "model" / "builtin.py"))
    folder = tmp_path / "adapters" / "smollm2-draft"
    folder.mkdir(parents=True)
    assert builtin.builtin_draft() is None
    (folder / DRAFT.file).write_text("{}")
    assert builtin.builtin_draft() == folder
