"""`stridelm export --to vllm` and the plugin's parts, as far as both go without vLLM; the rest is in test_vllm.py."""

import json
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from command_line import Call, assert_refused
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.export.hf_folder import load_base
from stridelm.export.vllm_folder import mask_token_in
from stridelm.export.vllm_plugin import plugin
from stridelm.export.vllm_plugin.checks import check_family, check_settings, check_target
from stridelm.export.vllm_plugin.plugin import ARCHITECTURE, is_supported, refusal
from stridelm.export.vllm_plugin.twin import Chains, GatedProduct, LowRank, twin_of
from stridelm.models.adapter import MASK_EMBEDDING, Adapter, load_adapter, save_adapter
from stridelm.models.fingerprint import fingerprint_of
from stridelm.models.ungated import merge
from stridelm.params import InputError
from tiny import random_adapter

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def converted(tiny: Callable[..., Checkpoint], tmp_path: Path) -> Callable[..., Path]:
    """A folder with an adapter of the tiny model."""

    def make(*, gated: bool = True, one_mask: bool = True) -> Path:
        adapter = random_adapter(tiny(), sequential_size=8 if gated else 0)
        if one_mask and not gated:
            masks = adapter.mask_embedding[:1].expand_as(adapter.mask_embedding)
            adapter = replace(adapter, tensors=adapter.tensors | {MASK_EMBEDDING: masks})
        save_adapter(tmp_path / "adapter", replace(adapter, is_gated=gated))
        return tmp_path / "adapter"

    return make


def export(call: Call, base: Path, adapter: Path, out: Path) -> Any:
    return call("export", "--model", base, "--adapter", adapter, "--to", "vllm", out)


def serve_command(printed: str) -> tuple[str, dict[str, Any]]:
    """What a printed command serves, and how that is drafted for."""
    program, verb, model, option, settings = shlex.split(printed.splitlines()[-1])
    assert (program, verb, option) == ("vllm", "serve", "--speculative-config")
    return model, json.loads(settings)


def test_a_gated_conversion_is_the_model_and_its_adapter(
    call: Call, tiny_folder: Callable[..., Path], converted: Callable[..., Path], tmp_path: Path
) -> None:
    out, adapter = tmp_path / "out", converted()
    run = export(call, tiny_folder(), adapter, out)
    assert (run.status, run.err) == (0, "") and "plugin" in run.out
    model, speculative = serve_command(run.out)
    assert model == str(out / "model")
    assert speculative == {
        "method": "draft_model",
        "model": str(out / "drafter"),
        "num_speculative_tokens": 4,
        "parallel_drafting": True,
    }
    kept = AutoModelForCausalLM.from_pretrained(tiny_folder()).state_dict()
    for name, tensor in AutoModelForCausalLM.from_pretrained(out / "model").state_dict().items():
        assert torch.equal(tensor, kept[name])
    stored = load_adapter(out / "drafter")
    for name, tensor in load_adapter(adapter).tensors.items():
        assert torch.equal(tensor, stored.tensors[name])
    check_target(out / "drafter", stored, out / "model")
    config = json.loads((out / "drafter" / "config.json").read_text())
    assert config["architectures"] == [ARCHITECTURE] and config["mask_token_id"] == 260
    assert config["vocab_size"] == json.loads((out / "model" / "config.json").read_text())["vocab_size"]


def test_one_without_a_gate_is_the_model_and_the_merged_one(
    call: Call, tiny_folder: Callable[..., Path], converted: Callable[..., Path], tmp_path: Path
) -> None:
    out, adapter = tmp_path / "out", converted(gated=False)
    run = export(call, tiny_folder(), adapter, out)
    assert (run.status, run.err) == (0, "") and "as it comes" in run.out
    _, speculative = serve_command(run.out)
    assert speculative["num_speculative_tokens"] == 4
    drafter: Any = AutoModelForCausalLM.from_pretrained(out / "drafter", dtype=torch.float32)
    expected: Any = AutoModelForCausalLM.from_pretrained(tiny_folder())
    merge(expected, load_adapter(adapter))
    token = drafter.config.mask_token_id
    assert token in range(257, 260) and drafter.config.vocab_size == 260, "an id that no text uses"
    ids = torch.tensor([[1, 40, 7, 250, 9, 3]])
    torch.testing.assert_close(drafter(ids).logits, expected(ids).logits, rtol=0.1, atol=0.3)  # stored in bfloat16
    mask = load_adapter(adapter).mask_embedding[0]
    assert torch.equal(drafter.get_input_embeddings().weight[token], mask.float())
    assert not hasattr(AutoModelForCausalLM.from_pretrained(out / "model").config, "mask_token_id")


def test_a_vocabulary_without_a_free_id_gives_a_special_token_that_nobody_says(
    tiny_folder: Callable[..., Path],
) -> None:
    base = load_base(str(tiny_folder()))
    tokenizer = base.tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": ["<said>", "<file>", "<name>"]})
    tokenizer.chat_template = f"{tokenizer.chat_template}<said>"
    assert mask_token_in(base, torch.ones(1, 32)) == tokenizer.convert_tokens_to_ids("<name>")
    tokenizer.chat_template += "<file><name>"
    with pytest.raises(InputError, match="convert the model with a gate"):
        mask_token_in(base, torch.ones(1, 32))


def test_a_whole_model_drafts_for_itself(call: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    base, out = tmp_path / "full", tmp_path / "out"
    AutoModelForCausalLM.from_pretrained(tiny_folder()).save_pretrained(base)
    AutoTokenizer.from_pretrained(tiny_folder()).save_pretrained(base)
    config = json.loads((base / "config.json").read_text()) | {"mask_token_id": 258, "trained_masks": 5}
    (base / "config.json").write_text(json.dumps(config))
    run = call("export", "--model", base, "--to", "vllm", out)
    assert (run.status, run.err) == (0, "")
    model, speculative = serve_command(run.out)
    assert model == speculative["model"] == str(out / "model") and speculative["num_speculative_tokens"] == 6
    assert json.loads((out / "model" / "config.json").read_text())["mask_token_id"] == 258


def test_masks_that_differ_by_depth_are_refused(
    call: Call, tiny_folder: Callable[..., Path], converted: Callable[..., Path], tmp_path: Path
) -> None:
    run = export(call, tiny_folder(), converted(gated=False, one_mask=False), tmp_path / "out")
    assert_refused(run, "one token for all of them", "--gate none")
    assert not (tmp_path / "out").exists()
    base, out = tmp_path / "full", tmp_path / "out"
    AutoModelForCausalLM.from_pretrained(tiny_folder()).save_pretrained(base)
    AutoTokenizer.from_pretrained(tiny_folder()).save_pretrained(base)
    config = json.loads((base / "config.json").read_text())
    config |= {"mask_token_id": 257, "mask_token_ids": [257, 258], "trained_masks": 2}
    (base / "config.json").write_text(json.dumps(config))
    assert_refused(call("export", "--model", base, "--to", "vllm", out), "one token for all of them")
    assert not out.exists()


def test_a_model_without_a_conversion_and_a_draft_model_are_refused(
    call: Call, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert_refused(call("export", "--model", tiny_folder(), "--to", "vllm", out), "has no conversion of its own")
    assert_refused(call("export", "--to", "vllm", "--part", "draft", out), "--part draft")
    assert not out.exists()


# The plugin


def test_the_plugin_can_be_found_and_imported_without_vllm() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, function = entries["vllm.general_plugins"]["stridelm"].partition(":")
    check = f"import sys, {module} as plugin; assert callable(plugin.{function}) and 'vllm' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_other_versions_of_vllm_are_refused_in_words() -> None:
    assert is_supported("0.32.0") and is_supported("0.32.1+cpu")
    assert not is_supported("0.3.2") and not is_supported("0.33.0") and not is_supported("of unknown version")
    config = SimpleNamespace(model_config=SimpleNamespace(model="somewhere/drafter"))
    with pytest.raises(ValueError, match="somewhere/drafter: drafts in another vLLM"):
        refusal("drafts in another vLLM")(vllm_config=config)


def test_a_plugin_that_cannot_be_loaded_refuses_its_own_drafters_only(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {}
    registry = SimpleNamespace(register_model=known.__setitem__)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(ModelRegistry=registry))
    config = SimpleNamespace(model_config=SimpleNamespace(model="somewhere/drafter"))
    for version, told in (
        ("0.99.0", r"vLLM 0\.32, and this is vLLM 0\.99\.0"),
        ("0.32.0", "cannot be loaded in this vLLM"),
    ):
        monkeypatch.setattr(plugin, "vllm_version", lambda version=version: version)
        plugin.register()
        with pytest.raises(ValueError, match=told):
            known[ARCHITECTURE](vllm_config=config)


def settings(**changes: object) -> Any:
    """A drafter's VllmConfig, as far as it is looked at; its own parallel settings are not the target's."""
    parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    speculative: dict[str, Any] = {
        "method": "draft_model",
        "parallel_drafting": True,
        "draft_sample_method": "greedy",
        "use_heterogeneous_vocab": False,
        "disable_padded_drafter_batch": False,
        "num_speculative_tokens": 9,
    }
    whole: dict[str, Any] = {"lora_config": None, "kv_transfer_config": None, "use_v2_model_runner": False}
    for part in (parallel, speculative, whole):
        part |= {name: value for name, value in changes.items() if name in part}
    target = SimpleNamespace(**parallel)
    return SimpleNamespace(**whole, speculative_config=SimpleNamespace(**speculative, target_parallel_config=target))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size is 2"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size is 2"),
        ({"method": "eagle"}, "method is eagle"),
        ({"parallel_drafting": False}, "parallel_drafting is False"),
        ({"draft_sample_method": "probabilistic"}, "draft_sample_method is probabilistic"),
        ({"use_heterogeneous_vocab": True}, "use_heterogeneous_vocab is True"),
        ({"disable_padded_drafter_batch": True}, "disable_padded_drafter_batch"),
        ({"lora_config": object()}, "--enable-lora"),
        ({"kv_transfer_config": object()}, "--kv-transfer-config"),
        ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"num_speculative_tokens": 10}, "trained for 9 at most"),
    ],
)
def test_settings_that_were_never_tried_are_refused(change: dict[str, object], told: str) -> None:
    check_settings(settings(), 9)
    check_settings(settings(num_speculative_tokens=3), 9)
    with pytest.raises(InputError, match=told):
        check_settings(settings(**change), 9)


def test_a_target_with_other_weights_or_from_elsewhere_is_refused(
    tiny: Callable[..., Checkpoint], tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    adapter: Adapter = random_adapter(tiny())
    assert fingerprint_of(tiny_folder()) == adapter.config.fingerprint
    check_target(tmp_path, adapter, tiny_folder())
    for served, told in (
        (tiny_folder(seed=1), "has other weights"),
        (tmp_path / "hub" / "id", "not a folder on this machine"),
    ):
        with pytest.raises(InputError, match=told):
            check_target(tmp_path, adapter, served)


def test_a_family_that_the_plugin_does_not_run_is_refused_before_anything_is_written(
    call: Call, tiny: Callable[..., Checkpoint], tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    save_adapter(tmp_path / "adapter", random_adapter(tiny("gemma3")))
    run = export(call, tiny_folder("gemma3"), tmp_path / "adapter", tmp_path / "out")
    assert_refused(run, "not Gemma3ForCausalLM", "--gate none")
    assert not (tmp_path / "out").exists()
    check_family("Qwen2ForCausalLM", SimpleNamespace(layer_types=["full_attention"] * 2))
    with pytest.raises(InputError, match="sliding window"):
        check_family("Qwen2ForCausalLM", SimpleNamespace(layer_types=["full_attention", "sliding_attention"]))


class Linear(nn.Module):
    """As vLLM's linear layers answer: a product, and a bias that somebody else adds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x @ self.weight.t(), None


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"wide": Linear(), "plain": nn.Linear(6, 4)}) for _ in range(2)])
        self.do_not_compile = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers: Any = self.layers
        for layer in layers:
            x = layer["plain"](layer["wide"](x)[0])
        return x


def test_a_twin_shares_the_weights_and_leaves_the_target_as_it_was() -> None:
    torch.manual_seed(0)
    target, chains = Tower(), Chains(length=3)
    parts = [LowRank(0, 2, torch.randn(2, 4), torch.randn(2, 2)), LowRank(2, 6, torch.randn(2, 4), torch.randn(4, 2))]
    wide: Any = target.get_submodule("layers.1.wide")
    rows = torch.randn(6, 4)
    before, children = target(rows), {name for name, _ in target.named_modules()}
    twin: Any = twin_of(target, {"layers.1.wide": GatedProduct(wide, parts, chains)})

    assert twin.layers[0] is target.layers[0] and twin.layers[1]["plain"] is target.get_submodule("layers.1.plain")
    assert {id(weight) for weight in twin.parameters()} == {id(weight) for weight in target.parameters()}
    assert twin.do_not_compile and not target.do_not_compile
    drafted = twin(rows)
    assert torch.equal(target(rows), before) and {name for name, _ in target.named_modules()} == children
    # Two chains of three rows: the first of each is a real one.
    assert torch.equal(drafted[[0, 3]], before[[0, 3]])
    first: Any = target.layers[0]
    middle = first["plain"](first["wide"](rows)[0])[[1, 2, 4, 5]]
    low = torch.cat([middle @ part.down_RI.t() @ part.up_OR.t() for part in parts], dim=-1)
    expected = twin.layers[1]["plain"](wide(middle)[0] + low)
    torch.testing.assert_close(drafted[[1, 2, 4, 5]], expected)
    chains.length = 1
    assert torch.equal(twin(rows), before), "a chain of one row has no mask"
