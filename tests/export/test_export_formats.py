"""`stridelm export --to peft` and `--to gguf`: what the commands write, and what they refuse."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from command_line import Call, assert_refused
from gguf_written import kinds_of, network_of, tokenizer_of
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.export import run as export_command
from stridelm.models.adapter import save_adapter
from stridelm.models.ungated import merge
from stridelm.settings import LoadSettings
from tiny import random_adapter

PAGE = (Path(__file__).parent.parent.parent / "docs" / "engines.md").read_text()
COMMANDS = re.findall(r"^    stridelm (export .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_are_understood(command: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for llama.cpp are run by test_llama_cpp.py."""
    asked: list[export_command.ExportOptions] = []
    monkeypatch.setattr(export_command, "run", asked.append)
    run = call(*shlex.split(command))
    assert (run.status, run.err) == (0, "")
    assert str(asked[0].out) == command.split()[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model whose tokenizer llama.cpp has, too."""
    network_of().save_pretrained(tmp_path / "model")
    tokenizer_of().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def base(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True)


@pytest.fixture
def save(base: Checkpoint, tmp_path: Path) -> Callable[[bool], Path]:
    def make(is_gated: bool) -> Path:
        adapter = random_adapter(base, sequential_size=0)
        made = tmp_path / ("gated" if is_gated else "ungated")
        save_adapter(made, type(adapter)(adapter.config, adapter.tensors, is_gated=is_gated))
        return made

    return make


def test_the_lora_is_the_adapters_own(
    call: Call, folder: Path, base: Checkpoint, save: Callable[[bool], Path], tmp_path: Path
) -> None:
    out = tmp_path / "lora"
    run = call("export", "--model", folder, "--adapter", save(True), "--to", "peft", out)
    assert (run.status, run.err) == (0, "")
    assert f"--uno-lora-path {out} --speculative-num-draft-tokens 4" in run.out
    config = json.loads((out / "adapter_config.json").read_text())
    tensors = load_file(out / "adapter_model.safetensors")
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 4)
    # PEFT's rule: every layer whose name ends in one of the modules, its weight plus B A alpha / r.
    layers: dict[str, Any] = {
        name: module
        for name, module in base.network.named_modules()
        if name.rpartition(".")[2] in config["target_modules"]
    }
    assert {f"base_model.model.{name}.lora_{part}.weight" for name in layers for part in "AB"} == tensors.keys()
    expected = {name: module.weight.clone() for name, module in layers.items()}
    merge(base.network, random_adapter(base, sequential_size=0))
    for name, module in layers.items():
        down, up = (tensors[f"base_model.model.{name}.lora_{part}.weight"].float() for part in "AB")
        torch.testing.assert_close(expected[name] + up @ down, module.weight)
        assert not torch.equal(expected[name], module.weight)


def test_an_adapter_without_a_gate_is_merged_into_the_file(
    call: Call, folder: Path, base: Checkpoint, save: Callable[[bool], Path], tmp_path: Path
) -> None:
    plain, merged = tmp_path / "plain.gguf", tmp_path / "merged.gguf"
    assert call("export", "--model", folder, "--to", "gguf", plain).status == 0
    run = call("export", "--model", folder, "--adapter", save(False), "--to", "gguf", merged)
    assert run.status == 0 and "merged with" in run.out and f"llama-server -m {merged}" in run.out
    own, changed = (load_checkpoint(str(file), LoadSettings(device="cpu"), trainable=True) for file in (plain, merged))
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(own.network.state_dict()[name], base.network.state_dict()[name])
    merge(base.network, random_adapter(base, sequential_size=0))
    assert torch.equal(changed.network.state_dict()[name], base.network.state_dict()[name])


def test_storage_is_asked_for(call: Call, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    assert call("export", "--model", folder, "--to", "gguf", "--storage", "q8_0", file).status == 0
    assert "Q8_0" in kinds_of(file)


def test_what_does_not_go_together_is_refused(
    call: Call, folder: Path, save: Callable[[bool], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    gated, ungated = save(True), save(False)
    for arguments, said in (
        (["--adapter", gated, "--to", "gguf"], "mask rows only, which llama.cpp does not have"),
        (["--adapter", ungated, "--to", "peft"], "without a gate"),
        (["--to", "peft"], "no adapter of its own"),
        (["--to", "peft", "--part", "draft"], "does not go with --part draft"),
        (["--to", "hf", "--adapter", gated, "--storage", "q8_0"], "--storage is for GGUF"),
        (["--to", "gguf", "--part", "draft"], "no draft model of its own"),
    ):
        assert_refused(call("export", "--model", folder, *arguments, out), said)
        assert not out.exists()
