"""`stridelm export`: a model and its conversion in the forms that other engines read."""

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

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for."""

    out: Path
    to: str
    part: str
    model: str
    adapter: str | None
    draft_model: Path | None
    storage: Storage | None = None


def run(request: Request) -> None:
    if request.out.exists():
        raise InputError(f"{request.out}: exists already: name another")
    if request.part == "draft" and request.adapter is not None:
        raise InputError("--adapter is the model's conversion and does not go with --part draft: leave one of them out")
    if request.part == "model" and request.draft_model is not None:
        raise InputError("--draft-model is exported by --part draft: add that, or leave --draft-model out")
    if request.to != "gguf" and request.storage is not None:
        raise InputError("--storage is for GGUF files: add --to gguf, or leave --storage out")
    match request.to, request.part:
        case "hf", "model":
            _model_for_transformers(request)
        case "hf", "draft":
            _draft_for_transformers(request)
        case "vllm", "model":
            _model_for_vllm(request)
        case "gguf", "model":
            _model_for_llama_cpp(request)
        case "gguf", "draft":
            _draft_for_llama_cpp(request)
        case "peft", "model":
            _lora_for_sglang(request)
        case _:
            raise InputError(
                f"--to {request.to} does not go with --part {request.part}: the draft model is exported --to hf or gguf"
            )


def _model_for_transformers(request: Request) -> None:
    out, base = request.out, load_base(request.model)
    what, write = _conversion(request, base)
    with made_whole(out) as folder:
        dtype = write(folder)
    print(
        f"{out}: {request.model} {what}, {_size(out, dtype)}\n"
        "With transformers, which decodes several tokens per step:\n"
        f"    model = AutoModelForCausalLM.from_pretrained({str(out)!r}, dtype='float32')\n"
        f"    model.generate(**inputs, custom_generate={str(out)!r}, trust_remote_code=True)"
    )


def _conversion(request: Request, base: Checkpoint) -> tuple[str, Callable[[Path], torch.dtype]]:
    """What makes a model's drafts, in words, and what writes the model with it into a folder."""
    adapter = _adapter_of(request, base)
    if adapter is None:
        return "with the masks that it names", lambda folder: _with_script(folder, write_plain(base, folder))
    if adapter.is_gated:
        return "with its gated adapter", lambda folder: write_converted(base, adapter, folder)
    return "merged with its adapter", lambda folder: _with_script(folder, write_merged(base, adapter, folder))


def _adapter_of(request: Request, base: Checkpoint) -> Adapter | None:
    """The conversion; None where it is in the model's own weights."""
    adapter_at = adapter_folder(request.model, request.adapter)
    if adapter_at is not None:
        return load_adapter_of(base, adapter_at)
    if own_masks(base.name, base.network.config, base.tokenizer) is None:
        raise InputError(
            f"{request.model} has no conversion of its own: give one with --adapter, or make one with "
            f"`stridelm train --model {request.model}`. As it is, other engines read it without an export"
        )
    return None


def _with_script(folder: Path, dtype: torch.dtype) -> torch.dtype:
    add_custom_generate(folder)
    return dtype


def _model_for_vllm(request: Request) -> None:
    out, base = request.out, load_base(request.model)
    adapter = _adapter_of(request, base)
    with made_whole(out) as folder:
        if adapter is None:
            masks = own_masks(base.name, base.network.config, base.tokenizer)
            assert masks is not None
            written = write_full(base, masks[1], folder)
        else:
            written = (write_gated if adapter.is_gated else write_ungated)(base, adapter, folder)
    needs = "with StrideLM installed beside it, for its plugin" if written.needs_plugin else "as it comes"
    print(
        f"{out}: {request.model}, {_size(out)}\n"
        f"With vLLM, {needs} (docs/engines.md):\n"
        f"    {written.command(out.absolute())}"
    )


def _draft_folder(request: Request) -> Path:
    draft_folder = request.draft_model or own_draft(request.model)
    if draft_folder is None:
        raise InputError(
            f"{request.model} has no draft model of its own: give one with --draft-model, or make one with "
            "`stridelm train --mode draft`"
        )
    if not is_draft(draft_folder):
        raise InputError(
            f"{draft_folder}: no draft.json there, so `stridelm train --mode draft` did not make it. A whole model "
            "needs no export: give it to other engines as it is"
        )
    return draft_folder


def _draft_for_transformers(request: Request) -> None:
    out, draft_folder = request.out, _draft_folder(request)
    base = load_base(request.model)
    network = load_layers(draft_folder, base)
    with made_whole(out) as folder:
        dtype = write_draft(base, network, folder)
    print(
        f"{out}: {_layers(network, base)}, {_size(out, dtype)}\n"
        "With transformers:\n"
        f"    assistant = AutoModelForCausalLM.from_pretrained({str(out)!r})\n"
        "    model.generate(**inputs, assistant_model=assistant)"
    )


def _model_for_llama_cpp(request: Request) -> None:
    """The model that the conversion verifies by: itself, or, of an adapter without a gate, the two merged."""
    base, what = load_base(request.model), ""
    adapter_at = None if request.adapter is None else adapter_folder(request.model, request.adapter)
    if adapter_at is not None:
        adapter = load_adapter_of(base, adapter_at)
        if adapter.is_gated:
            raise InputError(
                f"{request.adapter} is a gated adapter: it speaks for mask rows only, which llama.cpp does not have. "
                "Leave --adapter out to export the model itself, and export a draft model with --part draft"
            )
        merge(base.network, adapter)
        what = f" merged with {request.adapter}"
    _write_gguf(request, base, base.network)
    out = request.out
    print(
        f"{out}: {request.model}{what}, {_size(out)}\nWith llama.cpp, one token at a time:\n    llama-server -m {out}"
    )


def _draft_for_llama_cpp(request: Request) -> None:
    out, draft_folder = request.out, _draft_folder(request)
    base = load_base(request.model)
    network = load_layers(draft_folder, base)
    _write_gguf(request, base, network)
    print(
        f"{out}: {_layers(network, base)}, {_size(out)}\n"
        "With llama.cpp, which checks every draft:\n"
        f"    llama-server -m MODEL.gguf --spec-type draft-simple --spec-draft-model {out} --spec-draft-n-max 1"
    )


def _lora_for_sglang(request: Request) -> None:
    out, adapter_at = request.out, adapter_folder(request.model, request.adapter)
    if adapter_at is None:
        raise InputError(
            f"{request.model} has no adapter of its own: give one with --adapter, or make one with `stridelm train "
            f"--model {request.model}`"
        )
    base = load_base(request.model)
    adapter = load_adapter_of(base, adapter_at)
    with made_whole(out) as folder:
        write_peft(adapter, request.model, folder)
    print(
        f"{out}: the low-rank parts of {adapter_at}, {_size(out)}. For drafts only: as an ordinary LoRA it would "
        "change what the model says\n"
        "With SGLang, beside the model as a Hugging Face folder:\n"
        f"    sglang serve --model-path MODEL --speculative-algorithm UNO --uno-lora-path {out} "
        f"--speculative-num-draft-tokens {adapter.config.k} --attention-backend fa3"
    )


def _write_gguf(request: Request, base: Checkpoint, network: "PreTrainedModel") -> None:
    name = f"{request.model} {request.part}"
    write_gguf(request.out, network, base.tokenizer, base.eos_ids, name=name, storage=request.storage or "exact")


def _layers(draft: "PreTrainedModel", base: Checkpoint) -> str:
    """What a draft model is made of."""
    layers, of = (each.config.get_text_config().num_hidden_layers for each in (draft, base.network))
    return f"{layers} of {of} layers, embeddings and tokenizer of {base.name}"


def _size(out: Path, dtype: torch.dtype | None = None) -> str:
    """Of a file, or of all files in a folder."""
    size = sum(file.stat().st_size for file in (out, *out.rglob("*")) if file.is_file()) / 1e6
    return f"{size:,.1f} MB" + (f" in {str(dtype).removeprefix('torch.')}" if dtype else "")
