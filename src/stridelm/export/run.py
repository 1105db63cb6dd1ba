"""`stridelm export`: writes a model and its conversion in the formats of other engines."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.draft_layers import is_draft, load_layers
from stridelm.export.gguf_file import Storage, write_gguf
from stridelm.export.hf_folder import (
    add_custom_generate,
    load_adapter_of,
    load_base,
    made_whole,
    write_converted,
    write_draft,
    write_merged,
    write_plain,
)
from stridelm.export.peft_folder import write_peft
from stridelm.export.vllm_folder import write_full, write_gated, write_ungated
from stridelm.models.adapter import Adapter
from stridelm.models.mask_token import own_masks
from stridelm.models.preview import adapter_folder, own_draft
from stridelm.models.ungated import merge
from stridelm.params import InputError
from stridelm.settings import ModelChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the command line asked for."""

    out: Path
    to: str
    part: str
    choice: ModelChoice
    storage: Storage | None = None


def run(options: ExportOptions) -> None:
    if options.out.exists():
        raise InputError(f"{options.out}: exists already: name another")
    if options.part == "draft" and options.choice.adapter is not None:
        raise InputError("--adapter is the model's conversion and does not go with --part draft: leave one of them out")
    if options.part == "model" and options.choice.draft_model is not None:
        raise InputError("--draft-model is exported by --part draft: add that, or leave --draft-model out")
    if options.to != "gguf" and options.storage is not None:
        raise InputError("--storage is for GGUF files: add --to gguf, or leave --storage out")
    match options.to, options.part:
        case "hf", "model":
            _model_for_transformers(options)
        case "hf", "draft":
            _draft_for_transformers(options)
        case "vllm", "model":
            _model_for_vllm(options)
        case "gguf", "model":
            _model_for_llama_cpp(options)
        case "gguf", "draft":
            _draft_for_llama_cpp(options)
        case "peft", "model":
            _lora_for_sglang(options)
        case _:
            raise InputError(
                f"--to {options.to} does not go with --part {options.part}: the draft model is exported --to hf or gguf"
            )


def _model_for_transformers(options: ExportOptions) -> None:
    out, base = options.out, load_base(options.choice.model)
    what, write = _conversion(options, base)
    with made_whole(out) as folder:
        dtype = write(folder)
    print(
        f"{out}: {options.choice.model} {what}, {_size(out, dtype)}\n"
        "With transformers, which decodes several tokens per step:\n"
        f"    model = AutoModelForCausalLM.from_pretrained({str(out)!r}, dtype='float32')\n"
        f"    model.generate(**inputs, custom_generate={str(out)!r}, trust_remote_code=True)"
    )


def _conversion(options: ExportOptions, base: Checkpoint) -> tuple[str, Callable[[Path], torch.dtype]]:
    """A phrase that says how the model drafts, and the function that writes the model into a folder."""
    adapter = _adapter_of(options, base)
    if adapter is None:
        return "with the masks that it names", lambda folder: _with_script(folder, write_plain(base, folder))
    if adapter.is_gated:
        return "with its gated adapter", lambda folder: write_converted(base, adapter, folder)
    return "merged with its adapter", lambda folder: _with_script(folder, write_merged(base, adapter, folder))


def _adapter_of(options: ExportOptions, base: Checkpoint) -> Adapter | None:
    """The adapter; None if the conversion is in the model's own weights."""
    adapter_at = adapter_folder(options.choice.model, options.choice.adapter)
    if adapter_at is not None:
        return load_adapter_of(base, adapter_at)
    if own_masks(base.name, base.network.config, base.tokenizer) is None:
        raise InputError(
            f"{options.choice.model} has no conversion of its own: give one with --adapter, or make one with "
            f"`stridelm train --model {options.choice.model}`. As it is, other engines read it without an export"
        )
    return None


def _with_script(folder: Path, dtype: torch.dtype) -> torch.dtype:
    add_custom_generate(folder)
    return dtype


def _model_for_vllm(options: ExportOptions) -> None:
    out, base = options.out, load_base(options.choice.model)
    adapter = _adapter_of(options, base)
    with made_whole(out) as folder:
        if adapter is None:
            masks = own_masks(base.name, base.network.config, base.tokenizer)
            assert masks is not None
            written = write_full(base, masks[1], folder)
        else:
            written = (write_gated if adapter.is_gated else write_ungated)(base, adapter, folder)
    needs = "with StrideLM installed beside it, for its plugin" if written.needs_plugin else "as it comes"
    print(
        f"{out}: {options.choice.model}, {_size(out)}\n"
        f"With vLLM, {needs} (docs/engines.md):\n"
        f"    {written.command(out.absolute())}"
    )


def _draft_folder(options: ExportOptions) -> Path:
    given = options.choice.draft_model
    draft_folder = own_draft(options.choice.model) if given is None else Path(given)
    if draft_folder is None:
        raise InputError(
            f"{options.choice.model} has no draft model of its own: give one with --draft-model, or make one with "
            "`stridelm train --mode draft`"
        )
    if not is_draft(draft_folder):
        raise InputError(
            f"{draft_folder}: no draft.json there, so `stridelm train --mode draft` did not make it. A whole model "
            "needs no export: give it to other engines as it is"
        )
    return draft_folder


def _draft_for_transformers(options: ExportOptions) -> None:
    out, draft_folder = options.out, _draft_folder(options)
    base = load_base(options.choice.model)
    network = load_layers(draft_folder, base)
    with made_whole(out) as folder:
        dtype = write_draft(base, network, folder)
    print(
        f"{out}: {_layers(network, base)}, {_size(out, dtype)}\n"
        "With transformers:\n"
        f"    assistant = AutoModelForCausalLM.from_pretrained({str(out)!r})\n"
        "    model.generate(**inputs, assistant_model=assistant)"
    )


def _model_for_llama_cpp(options: ExportOptions) -> None:
    """Export the model that verifies drafts: the model itself, or, with an adapter without a gate, the two merged."""
    choice = options.choice
    base, what = load_base(choice.model), ""
    adapter_at = None if choice.adapter is None else adapter_folder(choice.model, choice.adapter)
    if adapter_at is not None:
        adapter = load_adapter_of(base, adapter_at)
        if adapter.is_gated:
            raise InputError(
                f"{choice.adapter} is a gated adapter: it speaks for mask rows only, which llama.cpp does not have. "
                "Leave --adapter out to export the model itself, and export a draft model with --part draft"
            )
        merge(base.network, adapter)
        what = f" merged with {choice.adapter}"
    _write_gguf(options, base, base.network)
    out = options.out
    print(f"{out}: {choice.model}{what}, {_size(out)}\nWith llama.cpp, one token at a time:\n    llama-server -m {out}")


def _draft_for_llama_cpp(options: ExportOptions) -> None:
    out, draft_folder = options.out, _draft_folder(options)
    base = load_base(options.choice.model)
    network = load_layers(draft_folder, base)
    _write_gguf(options, base, network)
    print(
        f"{out}: {_layers(network, base)}, {_size(out)}\n"
        "With llama.cpp, which checks every draft:\n"
        f"    llama-server -m MODEL.gguf --spec-type draft-simple --spec-draft-model {out} --spec-draft-n-max 1"
    )


def _lora_for_sglang(options: ExportOptions) -> None:
    out, choice = options.out, options.choice
    adapter_at = adapter_folder(choice.model, choice.adapter)
    if adapter_at is None:
        raise InputError(
            f"{choice.model} has no adapter of its own: give one with --adapter, or make one with `stridelm train "
            f"--model {choice.model}`"
        )
    base = load_base(choice.model)
    adapter = load_adapter_of(base, adapter_at)
    with made_whole(out) as folder:
        write_peft(adapter, choice.model, folder)
    print(
        f"{out}: the low-rank parts of {adapter_at}, {_size(out)}. For drafts only: as an ordinary LoRA it would "
        "change what the model says\n"
        "With SGLang, beside the model as a Hugging Face folder:\n"
        f"    sglang serve --model-path MODEL --speculative-algorithm UNO --uno-lora-path {out} "
        f"--speculative-num-draft-tokens {adapter.config.k} --attention-backend fa3"
    )


def _write_gguf(options: ExportOptions, base: Checkpoint, network: "PreTrainedModel") -> None:
    name = f"{options.choice.model} {options.part}"
    write_gguf(options.out, network, base.tokenizer, base.eos_ids, name=name, storage=options.storage or "exact")


def _layers(draft: "PreTrainedModel", base: Checkpoint) -> str:
    """A phrase that says what a draft model is made of."""
    layers, of = (each.config.get_text_config().num_hidden_layers for each in (draft, base.network))
    return f"{layers} of {of} layers, embeddings and tokenizer of {base.name}"


def _size(out: Path, dtype: torch.dtype | None = None) -> str:
    """The size of a file, or of all files in a folder, as text."""
    size = sum(file.stat().st_size for file in (out, *out.rglob("*")) if file.is_file()) / 1e6
    return f"{size:,.1f} MB" + (f" in {str(dtype).removeprefix('torch.')}" if dtype else "")
