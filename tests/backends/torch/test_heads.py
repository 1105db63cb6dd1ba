"""Prediction heads: the module, its files, what it reads, what it proposes, and the decoder that uses it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import stridelm
from assembly import assembled
from command_line import Call, assert_refused
from reference import reference
from stepping import step_of
from stridelm import DecodeSettings, InputError, LoadSettings
from stridelm.api import LanguageModel
from stridelm.backends.common.scorer import Scorer
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.heads import HEADS, HeadsConfig, TorchHeads, load_heads, save_heads
from stridelm.backends.torch.llama_layer import has_llama_layers
from stridelm.bench.tune import candidates
from stridelm.decode.planned import Planned
from stridelm.decode.speculative import Speculative
from stridelm.draft.heads import HeadsDrafter
from stridelm.layout import lay_out, make_block
from stridelm.models.adapter import save_adapter
from stridelm.models.builtin import builtin_heads
from stridelm.params import SamplingParams
from stridelm.sampling import perturbed_scores
from stridelm.types import NO_DRAFT, ROOT, DraftTree, Output, Sequence
from tiny import FAMILIES, heads_config, load_tiny, plain_network, random_adapter, random_heads, save_tiny

Folder = Callable[..., Path]
Tiny = Callable[..., Checkpoint]
LAYERS = 2
"""Of a tiny model: the number that stands for its output head."""
TREE = DraftTree.of((5, 6, 7, 8), (ROOT, 0, ROOT, 1), "tree")


def path_to(tree: DraftTree, node: int) -> list[int]:
    return [] if node == ROOT else [*path_to(tree, tree.parents[node]), tree.tokens[node]]


# The module


def test_at_first_a_head_says_what_the_model_says() -> None:
    hidden_XC = torch.randn(5, 32)
    assert torch.equal(TorchHeads(32, 3, 8)(hidden_XC), hidden_XC[:, None].expand(5, 3, 32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_heads_at_once_equal_one_after_the_other(dtype: torch.dtype, tiny: Tiny) -> None:
    heads, hidden_XC = random_heads(tiny(), size=8), torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    outputs_XHC = heads(hidden_XC.to(dtype))
    assert (outputs_XHC.shape, outputs_XHC.dtype, heads.k) == ((5, 3, 32), dtype, 4)
    for number, (up_SC, down_CS) in enumerate(zip(heads.up_HSC, heads.down_HCS, strict=True)):
        inner_XS = hidden_XC @ up_SC.t()
        expected_XC = hidden_XC + (inner_XS * inner_XS.sigmoid()) @ down_CS.t()
        tolerance = 1e-5 if dtype == torch.float32 else 5e-2
        torch.testing.assert_close(outputs_XHC[:, number].float(), expected_XC, rtol=tolerance, atol=tolerance)


# Its files


@pytest.fixture
def folder(tmp_path: Path, tiny: Tiny) -> Path:
    """Random heads of the tiny Llama."""
    heads = random_heads(tiny())
    save_heads(tmp_path / "heads", heads_config(tiny(), heads), heads)
    return tmp_path / "heads"


def test_round_trip(folder: Path, tiny: Tiny) -> None:
    config, loaded = load_heads(folder)
    assert config == HeadsConfig(tiny().name, tiny().fingerprint, width=32, heads=3, size=16)
    for name, tensor in random_heads(tiny()).state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    assert {(each.dtype, each.device.type, each.requires_grad) for each in loaded.parameters()} == {
        (torch.float32, "cpu", False)
    }
    assert {file.suffix for file in folder.iterdir()} == {".safetensors", ".json"}


def edit_config(folder: Path, **changes: object) -> None:
    entry = json.loads((folder / HEADS.file).read_text()) | changes
    (folder / HEADS.file).write_text(json.dumps(entry))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(shard(folder))
    change(tensors)
    save_file(tensors, shard(folder))


def shard(folder: Path) -> Path:
    (file,) = folder.glob("*.safetensors")
    return file


def become_an_adapter(folder: Path) -> None:
    (folder / HEADS.file).rename(folder / "adapter.json")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no heads": (lambda folder: (folder / HEADS.file).unlink(), "no heads.json there.*stridelm train --mode heads"),
    "an adapter": (become_an_adapter, "give it as the adapter"),
    "no JSON": (lambda folder: (folder / HEADS.file).write_text("{"), "cannot be read.*copy the heads again"),
    "another format": (lambda folder: edit_config(folder, format="medusa"), "format medusa"),
    "a later version": (lambda folder: edit_config(folder, version=2), "version 2"),
    "a shard missing": (lambda folder: shard(folder).unlink(), "is missing: copy"),
    "half a shard": (lambda folder: shard(folder).write_bytes(shard(folder).read_bytes()[:500]), "safetensors"),
    "a tensor missing": (lambda folder: edit_tensors(folder, lambda each: each.pop("up_HSC")), "up_HSC"),
    "a tensor too many": (lambda folder: edit_tensors(folder, lambda each: each.update(more=torch.ones(1))), "more"),
    "more heads": (lambda folder: edit_config(folder, heads=4), "shape"),
    "another size": (lambda folder: edit_config(folder, size=8), "shape"),
    "no width": (lambda folder: edit_config(folder, width=None), "width must be a whole number"),
    "no head": (lambda folder: edit_config(folder, heads=0), "heads must be a whole number"),
    "not finite": (lambda folder: edit_tensors(folder, lambda each: each["down_HCS"].fill_(torch.nan)), "not finite"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_foreign_folders_are_refused(damage: str, folder: Path) -> None:
    do, said = DAMAGES[damage]
    do(folder)
    with pytest.raises(InputError, match=said):
        load_heads(folder)


def test_heads_of_another_base_are_refused(folder: Path, tiny_folder: Folder) -> None:
    settings = LoadSettings(device="cpu")
    with pytest.raises(InputError, match=r"holds the heads of .*other weights.*--mode heads --model"):
        stridelm.load(str(tiny_folder(seed=1)), heads=folder, settings=settings)
    assert stridelm.load(str(tiny_folder()), heads=folder, settings=settings).heads is not None


# What they read


def states(network: Any, ids: list[int], layers: tuple[int, ...]) -> Output:
    """A prefix is read first; then its last token and a tree, in one forward."""
    forward = TorchForward(network, 256)
    table = forward.cache.open()
    forward(lay_out([make_block(0, ids[:-1], reads_logits=False, layers=layers)]), [table])
    forward.cache.keep(table, range(len(ids) - 1))
    (output,) = forward(lay_out([make_block(len(ids) - 1, ids[-1:], TREE, layers=layers)]), [table])
    return output


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_hidden_state_is_what_the_output_head_reads(
    family: str, tiny: Tiny, trainable: Tiny, tiny_folder: Folder
) -> None:
    """The same by our own layers, by transformers' layers, and by a plain forward over each branch."""
    ids, plain = list(range(40, 70)), plain_network(str(tiny_folder(family)))
    networks = [tiny(family).network, trainable(family).network]
    assert [has_llama_layers(network) for network in networks] == [
        family in ("llama", "mistral", "qwen2"), False
    ]  # fmt: skip
    for network in networks:
        output = states(network, ids, (0, LAYERS))
        torch.testing.assert_close(Scorer(network)(output.layers_qC[LAYERS]), output.logits_WV, rtol=1e-4, atol=1e-4)
        assert torch.equal(output.logits_WV, states(network, ids, ()).logits_WV), "to be asked changes nothing"
        for node in range(ROOT, len(TREE)):
            text = torch.tensor([ids + path_to(TREE, node)])
            expected = plain(input_ids=text, use_cache=False, output_hidden_states=True).hidden_states[-1][0, -1]
            torch.testing.assert_close(output.layers_qC[LAYERS][node + 1], expected, rtol=1e-4, atol=1e-4)


# What they propose

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=5, max_tokens=24)


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=24), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
@torch.inference_mode()
def test_trees_equal_choices_written_out(
    family: str, params: SamplingParams, tiny: Tiny, tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every step, every node's token and score: the likeliest by the head of its depth, on a plain forward."""
    for name in ("DRAFT_CANDIDATES", "GREEDY_CANDIDATES"):  # as many as there are
        monkeypatch.setattr(f"stridelm.draft.grow.{name}", 1000)
    checkpoint, plain = tiny(family), plain_network(str(tiny_folder(family)))
    heads, cap = random_heads(checkpoint), getattr(checkpoint.network.config, "final_logit_softcapping", None)
    assert (cap is not None) == (family == "gemma2")
    drafter = HeadsDrafter(heads, Scorer(checkpoint.network), layers=LAYERS, k=heads.k, branches=2)
    looked = 0

    def look(sequences: list[Sequence]) -> list[DraftTree]:
        nonlocal looked
        trees = HeadsDrafter.propose(drafter, sequences)
        for sequence, tree in zip(sequences, trees, strict=True):
            if len(sequence.tokens) == sequence.prompt_length:
                assert tree == NO_DRAFT, "the model has given no token yet"
                continue
            before = torch.tensor([sequence.tokens[:-1]])
            hidden = plain(input_ids=before, use_cache=False, output_hidden_states=True).hidden_states[-1][:, -1]
            logits_HV = plain.lm_head(heads(hidden)[0])
            logits_HV = logits_HV if cap is None else cap * torch.tanh(logits_HV / cap)
            for node in range(ROOT, len(tree)):
                children = [child for child, parent in enumerate(tree.parents) if parent == node]
                if children:
                    path = path_to(tree, node)
                    scores_V = perturbed_scores(
                        logits_HV[len(path)], params, sequence.tokens + path, sequence.prompt_length,
                        seed=sequence.seed, choice=sequence.choice,
                    )  # fmt: skip
                    best = scores_V.softmax(dim=-1).topk(2)
                    assert [tree.tokens[child] for child in children] == best.indices.tolist()[: len(children)]
                    assert [tree.scores[child] for child in children] == pytest.approx(
                        best.values.tolist()[: len(children)], rel=1e-2, abs=1e-4
                    )
                    looked += 1
        return trees

    monkeypatch.setattr(drafter, "propose", look)
    run(checkpoint, Speculative(drafter), [list(range(40, 60)), [65, 66]], params)
    assert looked > 20
    assert not drafter._hidden_C, "ended sequences are forgotten"


def run(
    checkpoint: Checkpoint, policy: Speculative, prompts: list[list[int]], params: SamplingParams
) -> list[Sequence]:
    """All prompts at once; the answers must be those of the reference."""
    model = assembled(checkpoint, None, LoadSettings(cache_tokens=2048))
    sequences = [Sequence(list(ids), params, policy, frozenset(), checkpoint.context_length) for ids in prompts]
    for sequence in sequences:
        model.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        step_of(model.engine)
    for ids, sequence in zip(prompts, sequences, strict=True):
        expected = reference(plain_network(checkpoint.name), ids, params, frozenset())
        assert sequence.output == [decision.token for decision in expected]
    return sequences


# Heads that are right, or wrong, by construction: of a model whose next token is the one with the next number

WIDTH = CYCLE = 32
LENGTH = math.sqrt(WIDTH)
"""Of a one-hot embedding behind the norm."""


@pytest.fixture(scope="module")
def cycle(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Layers that do nothing: the last hidden state is the token's one-hot embedding."""
    folder = save_tiny(tmp_path_factory.mktemp("cycle"), hidden_size=WIDTH)
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)
    for layer in network.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    network.model.embed_tokens.weight.copy_(torch.eye(260, WIDTH))
    network.lm_head.weight.copy_(4 * torch.eye(260, WIDTH))
    network.lm_head.weight[:CYCLE] = network.lm_head.weight[:CYCLE].roll(1, dims=0)
    network.save_pretrained(folder)
    return load_tiny(folder)


def counting_heads(heads: int, shift: int = 0, favourite: int = 0) -> TorchHeads:
    """Head i turns the embedding of a token into that of the i-th after it, `shift` more. With a `favourite`, the token
    so much further on seems a little likelier still."""
    module = TorchHeads(WIDTH, heads, WIDTH).requires_grad_(False)
    one_CC = torch.eye(WIDTH)
    for number in range(heads):
        module.up_HSC[number] = one_CC
        places = number + 1 + shift
        wanted_CC = one_CC.roll(places, dims=0)
        if favourite:
            wanted_CC = wanted_CC + 1.02 * one_CC.roll(places + favourite, dims=0)
        silu = LENGTH / (1 + math.exp(-LENGTH))
        module.down_HCS[number] = (wanted_CC - one_CC) * LENGTH / silu
    return module


def speculative(checkpoint: Checkpoint, heads: TorchHeads, branches: int) -> Speculative:
    drafter = HeadsDrafter(heads, Scorer(checkpoint.network), layers=LAYERS, k=heads.k, branches=branches)
    return Speculative(drafter)


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("count", [1, 4])
def test_heads_that_are_right_bring_all_their_drafts(count: int, temperature: float, cycle: Checkpoint) -> None:
    params = SamplingParams(max_tokens=1 + 5 * (count + 1), temperature=temperature, seed=1)
    prompts = [[3, 4, 5], [30], list(range(10, 25))]
    for sequence in run(cycle, speculative(cycle, counting_heads(count), branches=1), prompts, params):
        first = sequence.tokens[sequence.prompt_length - 1] + 1
        assert sequence.output == [token % CYCLE for token in range(first, first + params.max_tokens)]
        stats = sequence.stats
        assert (stats.forwards, stats.drafted, stats.accepted) == (6, 5 * count, 5 * count)


def test_a_branch_brings_what_the_likeliest_token_does_not(cycle: Checkpoint) -> None:
    """The right token is each head's second choice: a chain brings nothing, a tree two tokens a step: the third would
    follow the least likely of four nodes, of which two go on."""
    params, heads = SamplingParams(max_tokens=21), counting_heads(3, favourite=5)
    (chain,) = run(cycle, speculative(cycle, heads, branches=1), [[3, 4, 5]], params)
    (tree,) = run(cycle, speculative(cycle, heads, branches=2), [[3, 4, 5]], params)
    assert (chain.stats.accepted, chain.stats.forwards) == (0, 21)
    assert chain.stats.drafted > 0
    assert tree.output == chain.output
    assert tree.stats.forwards == 1 + math.ceil(20 / 3)


def test_wrong_heads_change_nothing(cycle: Checkpoint) -> None:
    params = SamplingParams(max_tokens=20)
    for branches in (1, 3):
        (sequence,) = run(cycle, speculative(cycle, counting_heads(3, shift=1), branches), [[3, 4, 5]], params)
        assert (sequence.stats.accepted, sequence.stats.forwards) == (0, 20)
        assert sequence.stats.drafted > 30


def test_prompts_that_are_read_in_parts(cycle: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridelm.engine.scheduler.PREFILL_ROWS", 20)
    policy = speculative(cycle, counting_heads(4), branches=1)
    (sequence,) = run(cycle, policy, [[token % CYCLE for token in range(50)]], SamplingParams(max_tokens=11))
    assert (sequence.stats.prefill_forwards, sequence.stats.forwards) == (2, 3)


# The decoder


@pytest.fixture
def counting(cycle: Checkpoint) -> LanguageModel:
    return assembled(cycle, None, LoadSettings(cache_tokens=1024), heads=counting_heads(4))


@pytest.mark.parametrize("decoder", ["heads", "ensemble", "auto"])
def test_given_heads_are_used(decoder: str, counting: LanguageModel) -> None:
    params = SamplingParams(max_tokens=30)
    plain = counting.generate("$", params, decoder="autoregressive", raw=True)
    result = counting.generate("$", params, decoder=decoder, raw=True)
    assert (result.token_ids, result.exact, result.decoder) == (plain.token_ids, True, decoder)
    assert "heads" in {source for stride in result.strides for source in stride.sources}
    assert result.stats.forwards < 15 < plain.stats.forwards
    assert result.token_ids == counting.twin().generate("$", params, decoder=decoder, raw=True).token_ids


def test_an_explanation_names_heads_and_no_masks(counting: LanguageModel) -> None:
    counting.generate("$", SamplingParams(max_tokens=20), decoder="heads", raw=True)
    explained = counting.explain("heads")
    assert any(line.startswith("heads: of ") for line in explained)
    blocks = explained[explained.index(next(line for line in explained if line.startswith("blocks"))) + 1 :]
    assert any("4 drafts" in line for line in blocks)
    assert not any("mask" in line for line in blocks)


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_k_counts_the_models_own_token(k: int, counting: LanguageModel) -> None:
    """k - 1 heads are asked, so that no step brings more than k tokens."""
    settings = DecodeSettings("heads", k=k)
    result = counting.generate("$", SamplingParams(max_tokens=40), decoder=settings, raw=True)
    assert max(len(stride.tokens) for stride in result.strides) == k


def test_a_larger_k_is_refused(counting: LanguageModel) -> None:
    with pytest.raises(InputError, match="k must be at most 5, one more than there are heads, not 6"):
        counting.generate("$", decoder=DecodeSettings("heads", k=6))
    counting.generate("$", SamplingParams(max_tokens=2), decoder=DecodeSettings("ensemble", k=6))


def test_without_heads_the_decoder_says_what_to_do(cycle: Checkpoint) -> None:
    with pytest.raises(
        InputError, match=r"needs prediction heads: .*load\(heads=\.\.\.\).*stridelm train --mode heads"
    ):
        assembled(cycle, None, LoadSettings()).generate("$", decoder="heads")


def drafters(model: LanguageModel, decoder: str) -> list[str]:
    policy = model._policy(DecodeSettings(decoder))
    assert isinstance(policy, Planned)
    return [drafter.name for drafter in policy.drafters]


def test_the_built_in_models_heads_are_loaded_when_they_are_asked_for_by_name(
    cycle: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_heads(tmp_path, heads_config(cycle, counting_heads(2)), counting_heads(2))
    monkeypatch.setattr("stridelm.models.builtin.builtin_heads", lambda: tmp_path)
    loaded: list[Path] = []
    monkeypatch.setattr(
        "stridelm.backends.network.load_heads", lambda folder: loaded.append(folder) or load_heads(folder)
    )
    model = assembled(replace(cycle, name="smollm2"), None, LoadSettings(cache_tokens=1024))
    for decoder in ("auto", "ensemble"):
        model.generate("$", SamplingParams(max_tokens=4), decoder=decoder, raw=True)
    assert loaded == []
    for _ in range(2):
        result = model.generate("$", SamplingParams(max_tokens=20), decoder="heads", raw=True)
        assert (loaded, result.stats.forwards < 15) == ([tmp_path], True)
    assert drafters(model, "heads") == ["heads"]
    assert "heads" not in drafters(model, "auto") + drafters(model, "ensemble")
    other = assembled(cycle, None, LoadSettings(cache_tokens=1024))
    with pytest.raises(InputError, match="needs prediction heads"):
        other.generate("$", decoder="heads")


def test_where_the_built_in_models_heads_are() -> None:
    folder = Path(stridelm.__file__).parent / "adapters" / "smollm2-heads"
    assert builtin_heads() == (folder if (folder / "heads.json").is_file() else None)


def test_beside_masks(folder: Path, tiny_folder: Folder, tmp_path: Path) -> None:
    """Everything at once: the ensemble has both, and `self` and `heads` keep to their own."""
    save_adapter(tmp_path, random_adapter(load_tiny(tiny_folder())))
    model = stridelm.load(str(tiny_folder()), adapter=tmp_path, heads=folder, settings=LoadSettings(device="cpu"))
    assert (drafters(model, "self"), drafters(model, "heads")) == ([], ["heads"])
    assert "heads" in drafters(model, "auto") and "heads" in drafters(model, "ensemble")
    masks = {decoder: model._policy(DecodeSettings(decoder)).masks is not None for decoder in ("self", "heads", "auto")}  # type: ignore[attr-defined]
    assert masks == {"self": True, "heads": False, "auto": True}


def test_half_precision(cycle: Checkpoint, tmp_path: Path) -> None:
    """Heads compute in float32, the output head in the model's own precision."""
    save_heads(tmp_path, heads_config(cycle, counting_heads(3)), counting_heads(3))
    model = stridelm.load(cycle.name, heads=tmp_path, settings=LoadSettings(device="cpu", dtype="bfloat16"))
    result = model.generate("$", SamplingParams(max_tokens=21), decoder="heads", raw=True)
    assert (result.stats.forwards < 12, result.exact) == (True, False)


# The commands


def test_generate(call: Call, cycle: Checkpoint, tmp_path: Path) -> None:
    save_heads(tmp_path, heads_config(cycle, counting_heads(3)), counting_heads(3))
    arguments = ("generate", "--model", cycle.name, "--device", "cpu", "--max-tokens", 24, "--raw", "--json")
    (plain,) = call(*arguments, "--decoder", "autoregressive", "$").objects
    for decoder in ("heads", "auto"):
        (answer,) = call(*arguments, "--heads", tmp_path, "--decoder", decoder, "$").objects
        assert (answer["token_ids"], answer["exact"]) == (plain["token_ids"], True)
        assert answer["forwards"] < 16
    raced = call(*arguments, "--heads", tmp_path, "--decoder", "heads", "--race", "$")
    assert raced.objects[0]["identical"]


REFUSED: dict[str, tuple[str, ...]] = {
    "--decoder heads": ("heads", "--heads", "stridelm train --mode heads"),
    "--decoder heads --model missing.gguf": ("heads", "--heads"),
    "--heads nowhere": ("nowhere", "heads.json"),
    "--heads HEADS --decoder heads --k 5": ("k must be at most 4", "heads"),
    "--heads HEADS --decoder heads --k 65": ("k must be", "65"),
    "--heads HEADS --decoder heads --threshold 0.5": ("heads has no --threshold", "--k, --nodes, --tolerance"),
    "--heads HEADS --model OTHER": ("other weights", "stridelm train --mode heads --model"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_generate_refuses(arguments: str, call: Call, folder: Path, tiny_folder: Folder) -> None:
    places = {"HEADS": folder, "OTHER": tiny_folder(seed=1)}
    given = [places.get(word, word) for word in arguments.split()]
    refused = call("generate", "--model", tiny_folder(), "--device", "cpu", "--max-tokens", 4, *given, "x")
    assert_refused(refused, *REFUSED[arguments])


def test_no_heads_are_told_before_anything_is_loaded(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("stridelm.backends.torch.converted.load_checkpoint", fail)
    monkeypatch.setattr("stridelm.models.builtin.builtin_heads", lambda: None)
    assert_refused(call("generate", "--decoder", "heads", "x"), "needs prediction heads", "--heads")


def test_tune_tries_heads(call: Call, folder: Path, tiny_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("abc\n")
    arguments = ("--model", tiny_folder(), "--device", "cpu", "--max-tokens", 4, "--rounds", 1, "--out", tmp_path)
    tuned = call("tune", *arguments, "--prompts", tmp_path / "prompts.txt", "--heads", folder)
    assert (tuned.status, tuned.err) == (0, "")
    assert f"--heads {folder} --profile" in tuned.out
    profile = json.loads((tmp_path / "profile.json").read_text())
    tried = [entry["decode"] for entry in profile["measured"]]
    assert [entry["k"] for entry in tried if entry.get("decoder") == "heads"] == [3, 4]
    assert all(entry["identical"] == 1 for entry in profile["measured"] if entry["exact"])


def test_candidates_are_what_the_heads_can_do() -> None:
    for heads_k in (2, 3, 5):
        found = [each for each in candidates(has_draft=False, mask_k=0, heads_k=heads_k) if each.decoder == "heads"]
        for settings in found:
            settings.check(has_draft=False, mask_k=0, heads_k=heads_k)
        assert max(settings.k or 0 for settings in found) == heads_k
    assert "heads" not in {each.decoder for each in candidates(has_draft=True, mask_k=9)}
