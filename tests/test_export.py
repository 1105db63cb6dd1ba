"""`stridelm export`: what it writes works elsewhere, and it writes all of it or nothing."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import stridelm
from command_line import Call, assert_refused
from stridelm.model import builtin
from stridelm.model.draft_layers import DraftConfig, first_layers, load_layers, save_draft
from stridelm.model.load import Checkpoint, load_checkpoint
from stridelm.params import SamplingParams
from stridelm.settings import LoadSettings
from tiny import CONTEXT, save_tiny

CPU = LoadSettings(device="cpu", cache_tokens=1024)


def save_first(folder: Path, base: Checkpoint, layers: int) -> Path:
    """The first layers as they are, stored as a draft model."""
    draft = first_layers(base.network, layers)
    save_draft(folder, DraftConfig(base.name, base.fingerprint, layers), draft)
    return folder


@pytest.fixture
def draft(trainable: Callable[..., Checkpoint], tmp_path: Path) -> Path:
    return save_first(tmp_path / "draft", trainable(), 1)


def export(call: Call, base: Path, draft: Path, out: Path) -> Any:
    return call("export", "--part", "draft", "--model", base, "--draft-model", draft, "--to", "hf", out)


@torch.no_grad()
def logits_of(network: Any) -> torch.Tensor:
    return network(input_ids=torch.tensor([[1, 40, 7, 250, 9, 3]]), use_cache=False).logits.float()


FAMILIES = ("llama", "qwen3", "gemma3", "mixtral", "gpt_oss")
"""Plain; tied; of layers that differ; of experts that lie otherwise on disk than in memory, and of such that do not."""


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_draft_assists_in_transformers_without_changing_the_text(
    family: str, call: Call, tiny_folder: Callable[..., Path], trainable: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    base, out = trainable(family), tmp_path / "out" / "model"
    for layers in (1, 2):
        stored = save_first(tmp_path / f"draft-{layers}", base, layers)
        out = tmp_path / "out" / str(layers)
        run = export(call, tiny_folder(family), stored, out)
        assert (run.status, run.err) == (0, "")
        assistant = AutoModelForCausalLM.from_pretrained(out)
        assert assistant.config.num_hidden_layers == layers and "generation_config.json" in contents(out)
        expected = load_layers(stored, base)
        expected.set_attn_implementation("eager")
        torch.testing.assert_close(logits_of(assistant), logits_of(expected), rtol=1e-4, atol=1e-4)

        network: Any = AutoModelForCausalLM.from_pretrained(tiny_folder(family))
        inputs = AutoTokenizer.from_pretrained(out)("abcabcab", return_tensors="pt")
        forwards = count_forwards(network)
        plain = network.generate(**inputs, max_new_tokens=24, do_sample=False)
        alone = len(forwards)
        assisted = network.generate(**inputs, max_new_tokens=24, do_sample=False, assistant_model=assistant)
        assert torch.equal(plain, assisted)
        if layers == 2:  # the whole model, but for its rounding
            assert len(forwards) - alone < alone


def count_forwards(network: PreTrainedModel) -> list[None]:
    forwards: list[None] = []
    network.register_forward_hook(lambda *_: forwards.append(None))
    return forwards


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_is_said_and_runs_as_printed_and_in_stridelm(
    call: Call, draft: Path, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = export(call, tiny_folder(), draft, out)
    first, _, *snippet = run.out.splitlines()
    assert first.startswith(f"{out}: 1 of 2 layers") and first.endswith("MB in float32")
    network: Any = AutoModelForCausalLM.from_pretrained(tiny_folder())
    inputs = AutoTokenizer.from_pretrained(tiny_folder())("abc", return_tensors="pt")
    names = {"AutoModelForCausalLM": AutoModelForCausalLM, "model": network, "inputs": inputs}
    assert len(snippet) == 2
    exec("\n".join(line.strip() for line in snippet), names)

    params = SamplingParams(max_tokens=24)
    model = stridelm.load(str(tiny_folder()), draft_model=str(out), settings=CPU)
    shared = stridelm.load(str(tiny_folder()), draft_model=draft, settings=CPU)
    whole, first_layer = (each.generate("abcabc", params, decoder="draft") for each in (model, shared))
    assert whole.token_ids == first_layer.token_ids
    assert (whole.stats.drafted, whole.stats.accepted) == (first_layer.stats.drafted, first_layer.stats.accepted)
    assert model.draft is not None and model.draft.context_length == CONTEXT
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in out.iterdir())


def test_all_tokens_that_end_an_answer_are_named(call: Call, tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    file = base / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [255, 257]}))
    checkpoint = load_checkpoint(str(base), CPU, trainable=True)
    draft = save_first(tmp_path / "draft", checkpoint, 1)
    assert export(call, base, draft, tmp_path / "out").status == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert exported.generation_config.eos_token_id == [255, 256, 257]


def test_a_model_that_bfloat16_holds_is_written_so(call: Call, tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    draft = save_first(tmp_path / "draft", load_checkpoint(str(base), CPU, trainable=True), 1)
    assert "MB in bfloat16\n" in export(call, base, draft, tmp_path / "out").out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


# What goes wrong


def test_a_folder_that_is_there_is_left_alone(
    call: Call, draft: Path, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert_refused(export(call, tiny_folder(), draft, out), str(out), "exists already")
    assert contents(out) == []


def test_a_disk_that_fills_up_leaves_nothing(
    call: Call, draft: Path, tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer is written last: by then all else is there."""
    written: list[str] = []

    def fail(_tokenizer: object, folder: Path) -> None:
        written.extend(contents(folder))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", fail)
    out = tmp_path / "deeper" / "out"
    assert_refused(export(call, tiny_folder(), draft, out), str(out), "No space left on device")
    assert "model.safetensors" in written and contents(out.parent) == []


def test_a_place_below_a_file_is_refused(
    call: Call, draft: Path, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(export(call, tiny_folder(), draft, tmp_path / "file" / "out"), "out", "cannot be written")


def test_what_a_killed_run_left_behind_does_not_matter(
    call: Call, draft: Path, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / ".out.writing").mkdir()
    (tmp_path / ".out.writing" / "half").write_text("")
    assert export(call, tiny_folder(), draft, tmp_path / "out").status == 0
    assert contents(tmp_path) == ["draft", "out"] and "half" not in contents(tmp_path / "out")


def test_wrong_input_is_refused(
    call: Call, draft: Path, tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert_refused(export(call, tiny_folder("llama", seed=1), draft, out), "other weights", "--mode draft")
    assert_refused(export(call, tiny_folder(), tiny_folder(), out), "no draft.json", "A whole model needs no export")
    assert_refused(export(call, tmp_path / "missing", draft, out), "there is no model")
    assert_refused(
        call("export", "--part", "draft", "--model", tiny_folder(), "--to", "hf", out), "no draft model of its own"
    )
    assert_refused(call("export", "--model", tiny_folder(), "--draft-model", draft, "--to", "onnx", out), "'onnx'")
    assert_refused(call("export", "--model", tiny_folder(), "--draft-model", draft, out), "--to")
    monkeypatch.setattr(builtin, "builtin_draft", lambda: None)
    assert_refused(
        call("export", "--part", "draft", "--to", "hf", out), "smollm2", "--draft-model", "stridelm train --mode draft"
    )
    assert not out.exists()
