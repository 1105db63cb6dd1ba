"""The gated adapter: mask rows against a naive forward, real rows bit for bit as without it, and its files."""

import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import stridelm
from native import skip_without_kernels
from reference import mask_row_outputs
from stridelm import InputError, LoadSettings, SamplingParams
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.gated import TorchGate, attach
from stridelm.backends.torch.linear import PackedLinear, PanelLinear, TransposedLinear, store_linears
from stridelm.backends.torch.llama_layer import fuse_layers
from stridelm.layout import lay_out, make_block
from stridelm.models.adapter import CONFIG, MASK_EMBEDDING, Adapter, check_base, load_adapter, save_adapter
from stridelm.types import ROOT, DraftTree, Output
from tiny import FAMILIES, load_tiny, plain_network, random_adapter

TREE = DraftTree.of((5, 6, 7, 8), (ROOT, 0, ROOT, 1), "tree")
NODES = range(ROOT, len(TREE))
PREFIXES = [list(range(30, 30 + length)) for length in (3, 40, 17)]
Converted = Callable[..., tuple[Checkpoint, TorchGate]]


def path_to(node: int) -> list[int]:
    return [] if node == ROOT else [*path_to(TREE.parents[node]), TREE.tokens[node]]


def outputs_of(network: Any, gate: TorchGate | None, *, masks: int) -> list[Output]:
    """Three prefixes, read first; then the last token of each, a tree and masks off every node, in one forward."""
    forward = TorchForward(network, 1024, gate)
    tables = [forward.cache.open() for _ in PREFIXES]
    forward(lay_out([make_block(0, ids[:-1], reads_logits=False) for ids in PREFIXES]), tables)
    for table in tables:
        forward.cache.keep(table, range(table.step_rows))
    anchors = NODES if masks else ()
    blocks = [make_block(len(ids) - 1, ids[-1:], TREE, anchors=anchors, masks=masks) for ids in PREFIXES]
    return forward(lay_out(blocks), tables)


def assert_equals_naive(outputs: list[Output], folder: str, adapter: Adapter, masks: int) -> None:
    block = make_block(0, [0], TREE, anchors=NODES, masks=masks)
    for ids, output in zip(PREFIXES, outputs, strict=True):
        assert output.hidden_WC is not None
        for node in NODES:
            text, rows = ids + path_to(node), block.mask_outputs(node)
            logits, hidden = mask_row_outputs(plain_network(folder), adapter, text, masks)
            torch.testing.assert_close(output.logits_WV[rows], logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(output.hidden_WC[rows], hidden, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_mask_rows_equal_naive_forwards(family: str, converted: Converted) -> None:
    checkpoint, gate = converted(family)
    adapter = random_adapter(checkpoint)
    # The second is longer than what was trained: the last embedding stands for all that follow.
    for masks in (2, 5):
        outputs = outputs_of(checkpoint.network, gate, masks=masks)
        assert_equals_naive(outputs, checkpoint.name, adapter, masks)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2"])
@pytest.mark.parametrize("storage", [PanelLinear, TransposedLinear, PackedLinear, None])
def test_every_form_of_layer_takes_the_adapter(family: str, storage: type | None, converted: Converted) -> None:
    """Fused, stored in any way, or as transformers made them: whichever this machine prefers."""
    checkpoint, _ = converted(family)
    network: Any = AutoModelForCausalLM.from_pretrained(
        checkpoint.name, dtype=torch.float32, attn_implementation="stridelm"
    ).eval()
    expected_weight = network.get_output_embeddings().weight.detach().clone()
    if storage is not None:
        fuse_layers(network, storage)
        store_linears(network, storage)
    adapter = random_adapter(checkpoint)
    gate = attach(network, adapter)
    assert_equals_naive(outputs_of(network, gate, masks=3), checkpoint.name, adapter, 3)
    assert gate.output_weight_VC is not None
    assert torch.equal(gate.output_weight_VC, expected_weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_real_rows_are_the_same_bit_for_bit(family: str, converted: Converted, tiny: Callable[..., Checkpoint]) -> None:
    checkpoint, gate = converted(family)
    zeros = load_tiny(Path(checkpoint.name))
    adapter = random_adapter(checkpoint)
    nothing = Adapter(adapter.config, {name: torch.zeros_like(each) for name, each in adapter.tensors.items()})
    real = len(NODES)
    with_adapter = outputs_of(checkpoint.network, gate, masks=3)
    without = outputs_of(zeros.network, attach(zeros.network, nothing), masks=3)
    for ours, theirs in zip(with_adapter, without, strict=True):
        assert torch.equal(ours.logits_WV[:real], theirs.logits_WV[:real])
        assert not torch.allclose(ours.logits_WV[real:], theirs.logits_WV[real:], atol=1e-2)
    # Without masks, the network with an adapter is the one that never had any.
    plain = outputs_of(tiny(family).network, None, masks=0)
    for ours, theirs in zip(outputs_of(checkpoint.network, gate, masks=0), plain, strict=True):
        assert torch.equal(ours.logits_WV, theirs.logits_WV)


def test_where_experts_send_masks_does_not_show_in_real_rows(tiny_folder: Callable[..., Path]) -> None:
    """Wide enough, and with experts enough, that the rows of an expert decide how its product is rounded."""
    folder = tiny_folder("mixtral", hidden_size=256, intermediate_size=512, num_local_experts=12)
    logits: list[torch.Tensor] = []
    for seed in (0, 1):
        checkpoint = load_tiny(folder)
        gate = attach(checkpoint.network, random_adapter(checkpoint, seed=seed))
        logits.append(
            torch.cat([each.logits_WV[: len(NODES)] for each in outputs_of(checkpoint.network, gate, masks=3)])
        )
    assert torch.equal(*logits)


def test_mask_rows_need_an_adapter(tiny: Callable[..., Checkpoint]) -> None:
    with pytest.raises(AssertionError, match="adapter"):
        outputs_of(tiny("llama").network, None, masks=1)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_threads_share_a_network(family: str, converted: Converted) -> None:
    """Forwards with and without masks at the same time: which rows are masks is known to each alone."""
    checkpoint, gate = converted(family)
    lengths = [0, 1, 3, 2] * 6
    expected = {masks: outputs_of(checkpoint.network, gate, masks=masks) for masks in set(lengths)}
    wrong: list[int] = []

    def check(masks: int) -> None:
        for ours, theirs in zip(outputs_of(checkpoint.network, gate, masks=masks), expected[masks], strict=True):
            if not torch.equal(ours.logits_WV, theirs.logits_WV):
                wrong.append(masks)

    threads = [threading.Thread(target=check, args=(masks,)) for masks in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_target_that_the_model_lacks_is_refused(tiny: Callable[..., Checkpoint]) -> None:
    for family, target in (
        ("llama", "model.layers.0.self_attn.z_proj"),
        ("llama", "model.layers.7.self_attn.q_proj"),
        ("llama", "model.layers.0.mlp"),
        ("qwen3", "model.layers.0.self_attn.q_norm"),
        ("qwen3", "nothing.here"),
        ("mixtral", "model.layers.0.mlp.experts"),
    ):
        checkpoint = tiny(family)
        adapter = random_adapter(checkpoint)
        low_rank = {f"{target}.{part}": adapter.low_rank(adapter.config.targets[0])[0] for part in ("down", "up")}
        changed = Adapter(replace(adapter.config, targets=(target,)), adapter.tensors | low_rank)
        with pytest.raises(InputError, match=target):
            attach(checkpoint.network, changed)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_layer_of_another_size_is_refused(family: str, tiny: Callable[..., Checkpoint]) -> None:
    checkpoint = tiny(family)
    adapter = random_adapter(checkpoint)
    for target in ("model.layers.1.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
        down, up = adapter.low_rank(target)
        for changed in ({f"{target}.down": down[:, 1:]}, {f"{target}.up": up[1:]}):
            with pytest.raises(InputError, match=target):
                attach(checkpoint.network, Adapter(adapter.config, adapter.tensors | changed))


def test_round_trip(tmp_path: Path, tiny: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridelm.models.parts.SHARD_BYTES", 2000)
    adapter = random_adapter(tiny("llama"))
    save_adapter(tmp_path, adapter)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded = load_adapter(tmp_path)
    assert loaded.config == adapter.config
    assert loaded.tensors.keys() == adapter.tensors.keys()
    for name, tensor in adapter.tensors.items():
        assert torch.equal(loaded.tensors[name].float(), tensor)
    assert {file.suffix for file in tmp_path.iterdir()} == {".safetensors", ".json"}


def test_without_a_sequential_head(tmp_path: Path, tiny_folder: Callable[..., Path]) -> None:
    checkpoint = load_tiny(tiny_folder("llama"))
    save_adapter(tmp_path, random_adapter(checkpoint, sequential_size=0))
    adapter = load_adapter(tmp_path)
    gate = attach(checkpoint.network, adapter)
    assert adapter.sequential_head() is None is gate.sequential_head is gate.output_weight_VC


def test_it_is_no_plain_lora(tmp_path: Path, tiny: Callable[..., Checkpoint]) -> None:
    """Neither is ours named like one, nor is one taken for ours."""
    save_adapter(tmp_path / "ours", random_adapter(tiny("llama")))
    names = [name for file in (tmp_path / "ours").glob("*.safetensors") for name in load_file(file)]
    assert not any("lora" in name for name in names)
    assert not (tmp_path / "ours" / "adapter_config.json").exists()
    assert not (tmp_path / "ours" / "adapter_model.safetensors").exists()
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(InputError, match="PEFT"):
        load_adapter(tmp_path)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_an_adapter_serves_other_weights_of_its_shape(
    backend: str, tmp_path: Path, tiny_folder: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and the text is the model's own."""
    changes = {"hidden_size": 64, "head_dim": 16}
    checkpoint = load_tiny(tiny_folder(**changes))
    save_adapter(tmp_path, random_adapter(checkpoint))
    other = str(tiny_folder(seed=1, **changes))
    if backend == "native":
        skip_without_kernels()
    settings = LoadSettings(device="cpu", backend=backend, quantize="q8" if backend == "native" else None, threads=1)
    model = stridelm.load(other, adapter=tmp_path, settings=settings)
    assert "has other weights" in caplog.text and "stridelm acceptance" in caplog.text
    params = SamplingParams(max_tokens=24)
    answer, plain = (model.generate("abcabc", params, decoder=name, raw=True) for name in ("self", "autoregressive"))
    assert answer.token_ids == plain.token_ids
    check_base(tmp_path, load_adapter(tmp_path), checkpoint.name, checkpoint.fingerprint)
    with pytest.raises(InputError, match="other weights"):
        check_base(tmp_path, load_adapter(tmp_path), "another", "0" * 64)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("change", [{"intermediate_size": 96}, {"num_key_value_heads": 4}, {"num_hidden_layers": 1}])
def test_an_adapter_of_another_shape_is_refused(
    backend: str, change: dict[str, int], tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    sizes = {"hidden_size": 64, "head_dim": 16}
    save_adapter(tmp_path, random_adapter(load_tiny(tiny_folder(**sizes))))
    if backend == "native":
        skip_without_kernels()
    settings = LoadSettings(device="cpu", backend=backend, quantize="q8" if backend == "native" else None)
    with pytest.raises(InputError, match=r"use the adapter of this model|has no layer"):
        stridelm.load(str(tiny_folder(**sizes | change)), adapter=tmp_path, settings=settings)


def edit_config(folder: Path, **changes: object) -> None:
    entry = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps(entry))


PRIOR = {"ease": 0.3, "scored": [0.0, 1.0, 0.5, 0.0, 0.0], "unscored": [0.0, 1.0, 0.0, 0.0]}


def edit_prior(folder: Path, **changes: object) -> None:
    edit_config(folder, draft_prior={"greedy": PRIOR | changes, "sampled": PRIOR})


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def shard(folder: Path) -> Path:
    (file,) = folder.glob("*.safetensors")
    return file


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda folder: (folder / CONFIG).unlink(), "not a StrideLM adapter"),
    "no JSON": (lambda folder: (folder / CONFIG).write_text("{"), "cannot be read"),
    "not text": (lambda folder: (folder / CONFIG).write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "a list": (lambda folder: (folder / CONFIG).write_text("[]"), "cannot be read"),
    "another format": (lambda folder: edit_config(folder, format="lora"), "format lora"),
    "a later version": (lambda folder: edit_config(folder, version=3), "version 3"),
    "a field missing": (lambda folder: (folder / CONFIG).write_text('{"format": "stridelm-gated-adapter", '
                                                                   '"version": 1}'), "cannot be read"),
    "tail heads in a version without": (lambda folder: edit_config(folder, version=1, tail_heads=0), "one too many"),
    "tail heads that are no number": (lambda folder: edit_config(folder, tail_heads="two"), "tail_heads must be"),
    "a prior of one kind": (lambda folder: edit_config(folder, draft_prior={"greedy": PRIOR}), "cannot be read"),
    "a prior that is no object": (lambda folder: edit_config(folder, draft_prior=[1]), "cannot be read"),
    "a prior with a weight too few": (lambda folder: edit_prior(folder, scored=[0.0] * 4), "5 and 4 weights"),
    "a prior that is not finite": (lambda folder: edit_prior(folder, unscored=[0.0, 0.0, 0.0, math.nan]), "all finite"),
    "a prior of words": (lambda folder: edit_prior(folder, ease="high"), "cannot be read"),
    "a prior with more": (lambda folder: edit_prior(folder, found=[0.0]), "cannot be read"),
    "an ease above one": (lambda folder: edit_prior(folder, ease=1.5), "between 0 and 1"),
    "a shard missing": (lambda folder: shard(folder).unlink(), "is missing: copy"),
    "a shard elsewhere": (lambda folder: edit_config(folder, shards=["../x.safetensors"]), "outside its folder"),
    "half a shard": (lambda folder: shard(folder).write_bytes(shard(folder).read_bytes()[:2000]), "safetensors"),
    "a tensor missing": (lambda folder: edit_tensors(folder, lambda each: each.pop(MASK_EMBEDDING)), MASK_EMBEDDING),
    "a tensor too many": (lambda folder: edit_tensors(folder, lambda each: each.update(more=torch.ones(1))), "more"),
    "another rank": (lambda folder: edit_config(folder, rank=5), "shape"),
    "more masks": (lambda folder: edit_config(folder, masks=9), "shape"),
    "not finite": (lambda folder: edit_tensors(folder, lambda each: each[MASK_EMBEDDING].fill_(torch.nan)),
                   "not finite"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(damage: str, tmp_path: Path, tiny: Callable[..., Checkpoint]) -> None:
    save_adapter(tmp_path, random_adapter(tiny("llama")))
    do, said = DAMAGES[damage]
    do(tmp_path)
    with pytest.raises(InputError, match=said):
        load_adapter(tmp_path)
