"""`stridelm export`: what it writes works elsewhere, and it writes all of it or nothing."""

import dataclasses
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
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.draft_layers import DraftConfig, first_layers, load_layers, save_draft
from stridelm.export.hf_folder import made_whole
from stridelm.models import builtin
from stridelm.models.adapter import MASK_EMBEDDING, load_adapter, save_adapter
from stridelm.models.ungated import merge
from stridelm.params import InputError, SamplingParams
from stridelm.settings import LoadSettings
from tiny import CONTEXT, load_tiny, random_adapter, save_tiny

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


# The model with its conversion


def export_model(call: Call, base: Path, adapter: Path, out: Path) -> Any:
    return call("export", "--model", base, "--adapter", adapter, "--to", "hf", out)


def saved_adapter(folder: Path, base: Path, *, is_gated: bool = True) -> Path:
    adapter = random_adapter(load_tiny(base), sequential_size=8 if is_gated else 0)
    save_adapter(folder, dataclasses.replace(adapter, is_gated=is_gated))
    return folder


def test_a_converted_model_is_the_base_with_its_adapter_beside_it(
    call: Call, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = export_model(call, tiny_folder(), saved_adapter(tmp_path / "adapter", tiny_folder()), out)
    first, _, *snippet = run.out.splitlines()
    assert first.startswith(f"{out}: {tiny_folder()} with its gated adapter") and first.endswith("MB in float32")
    base: Any = AutoModelForCausalLM.from_pretrained(tiny_folder())
    names: dict[str, Any] = {"AutoModelForCausalLM": AutoModelForCausalLM}
    names["inputs"] = AutoTokenizer.from_pretrained(out)("abc", return_tensors="pt")
    exec("\n".join(line.strip() for line in snippet), names)
    assert torch.equal(logits_of(names["model"]), logits_of(base))
    beside = contents(out / "custom_generate")
    assert beside == ["README.md", "adapter-00001-of-00001.safetensors", "adapter.json", "generate.py"]
    assert "chat_template.jinja" in contents(out)


@pytest.mark.parametrize(("family", "changes"), [("llama", {}), ("qwen3", {"vocab_size": 257}), ("gemma2", {})])
def test_a_merged_model_names_its_masks_and_never_says_one(
    family: str, changes: dict[str, int], call: Call, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """A vocabulary with free ids, one without, tied, and an embedding that is scaled."""
    base, out = tiny_folder(family, **changes), tmp_path / "out"
    folder = saved_adapter(tmp_path / "adapter", base, is_gated=False)
    run = export_model(call, base, folder, out)
    assert (run.status, run.err) == (0, "")
    merged: Any = AutoModelForCausalLM.from_pretrained(out)
    config = merged.config
    assert (config.mask_token_id, config.mask_token_ids, config.trained_masks) == (257, [257, 258, 259], 3)
    assert config.vocab_size == len(merged.lm_head.weight) == (320 if changes else 260)
    masks = torch.tensor(config.mask_token_ids)
    adapter = load_adapter(folder)
    torch.testing.assert_close(merged.get_input_embeddings()(masks), adapter.mask_embedding.float())
    plain: Any = AutoModelForCausalLM.from_pretrained(base)
    merge(plain, adapter)
    torch.testing.assert_close(logits_of(merged)[..., :257], logits_of(plain)[..., :257], rtol=1e-4, atol=1e-4)
    assert (logits_of(merged)[..., 257:] < logits_of(merged).amax(dim=-1, keepdim=True)).all()
    assert merged.generation_config.suppress_tokens == [257, 258, 259]


@pytest.mark.parametrize(("family", "changes"), [("llama", {}), ("gemma2", {"vocab_size": 257})])
def test_masks_that_are_equal_share_a_token_which_other_engines_can_run(
    family: str, changes: dict[str, int], call: Call, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """What `stridelm train --gate none` makes: the folder for transformers is one that vLLM takes, too."""
    base, out = tiny_folder(family, **changes), tmp_path / "out"
    adapter = random_adapter(load_tiny(base), sequential_size=0)
    masks_DC = adapter.mask_embedding[:1].expand_as(adapter.mask_embedding).contiguous()
    tensors = adapter.tensors | {MASK_EMBEDDING: masks_DC}
    save_adapter(tmp_path / "adapter", dataclasses.replace(adapter, tensors=tensors, is_gated=False))
    assert export_model(call, base, tmp_path / "adapter", out).status == 0
    merged: Any = AutoModelForCausalLM.from_pretrained(out)
    config = merged.config
    assert (config.mask_token_id, config.trained_masks) == (257, 3) and not hasattr(config, "mask_token_ids")
    torch.testing.assert_close(merged.get_input_embeddings()(torch.tensor([257])), masks_DC[:1].float())
    assert merged.generation_config.suppress_tokens == [257]

    run = call("export", "--model", out, "--to", "vllm", tmp_path / "vllm")
    assert (run.status, run.err) == (0, "")
    assert json.loads((tmp_path / "vllm" / "model" / "config.json").read_text())["mask_token_id"] == 257
    if family == "llama":  # Gemma's sliding windows are none of custom_generate's
        ids = torch.tensor([[5, 40, 7]])
        options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
        several = merged.generate(ids, custom_generate=str(out), trust_remote_code=True, **options)
        assert torch.equal(several, merged.generate(ids, **options))


@pytest.mark.parametrize("ids", [[257, 999], "257", [257.0]])
def test_masks_that_are_no_tokens_are_refused(ids: object, call: Call, tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", mask_token_id=257)
    file = base / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mask_token_ids": ids}))
    refused = call("export", "--model", base, "--to", "hf", tmp_path / "out")
    assert_refused(refused, str(base), "mask_token_ids", repr(ids), "0 to 259")


def test_settings_for_generating_go_along(call: Call, tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    file = base / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_sample": True, "top_k": 7}))
    adapter = saved_adapter(tmp_path / "adapter", base)
    assert export_model(call, base, adapter, tmp_path / "out").status == 0
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (written["do_sample"], written["top_k"]) == (True, 7)


@pytest.mark.parametrize("said", [{}, {"do_sample": False}])
def test_settings_of_sampling_that_nobody_asks_for_do_not_hinder(
    said: dict[str, bool], call: Call, tmp_path: Path
) -> None:
    """As in folders on the hub: transformers reads them and does not write them."""
    base = save_tiny(tmp_path / "base")
    (base / "generation_config.json").write_text(
        json.dumps({**said, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "eos_token_id": 256})
    )
    assert export_model(call, base, saved_adapter(tmp_path / "adapter", base), tmp_path / "out").status == 0
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written["repetition_penalty"] == 1.1 and written["eos_token_id"] == [256]
    assert not {"temperature", "top_p"} & {name for name, value in written.items() if value is not None}


@pytest.mark.parametrize("text", ['{"temperature": 0.6', '{"max_new_tokens": 0}', '{"pad_token_id": "x"}'])
def test_settings_for_generating_that_are_not_valid_are_refused(text: str, call: Call, tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    adapter = saved_adapter(tmp_path / "adapter", base)
    (base / "generation_config.json").write_text(text)
    refused = export_model(call, base, adapter, tmp_path / "out")
    assert_refused(refused, "generation_config.json", "mend or delete it")
    assert not (tmp_path / "out").exists()


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


def test_a_file_is_made_whole_too(tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    places: list[Path] = []

    def write(error: OSError | None = None) -> None:
        with made_whole(out) as place:
            places.append(place)
            assert not place.exists()
            place.write_text("half")
            if error is not None:
                raise error
            place.write_text("whole")

    with pytest.raises(InputError, match=r"cannot be written \(full\)"):
        write(OSError("full"))
    assert contents(tmp_path) == []
    places[0].write_text("what a run that was killed has left")
    write()
    assert contents(tmp_path) == [out.name] and out.read_text() == "whole"


def test_what_cannot_be_read_is_not_said_to_be_unwritable(
    call: Call, draft: Path, tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_draft: Path, _base: Checkpoint) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "draft.safetensors")

    monkeypatch.setattr("stridelm.export.run.load_layers", fail)
    refused = export(call, tiny_folder(), draft, tmp_path / "out")
    assert_refused(refused, "draft.safetensors: Permission denied")


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
    model = ("export", "--to", "hf", "--model", tiny_folder())
    assert_refused(call(*model, "--draft-model", draft, out), "--part draft")
    assert_refused(call(*model, "--part", "draft", "--adapter", draft, out), "--adapter")
    assert_refused(call(*model, "--adapter", draft, out), "no adapter.json", "--draft-model")
    assert_refused(call(*model, out), "no conversion of its own", "--adapter", "stridelm train --model")
    assert_refused(call(*model, "--adapter", "none", out), "no conversion of its own")
    adapter = saved_adapter(tmp_path / "adapter", tiny_folder("llama", seed=1))
    assert_refused(call(*model, "--adapter", adapter, out), "other weights")
    monkeypatch.setattr(builtin, "builtin_draft", lambda: None)
    assert_refused(
        call("export", "--part", "draft", "--to", "hf", out), "smollm2", "--draft-model", "stridelm train --mode draft"
    )
    assert not out.exists()
