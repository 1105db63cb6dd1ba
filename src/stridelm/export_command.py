"""`stridelm export`: a model and its conversion in the forms that other engines read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from stridelm.interop.hf_folder import (
    add_custom_generate,
    load_adapter_of,
    load_base,
    made_whole,
    write_converted,
    write_draft,
    write_merged,
    write_plain,
)
from stridelm.model.draft_layers import is_draft
from stridelm.model.load import Checkpoint
from stridelm.model.mask_token import own_masks
from stridelm.model.preview import adapter_folder, own_draft
from stridelm.params import InputError


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for."""

    out: Path
    to: str
    part: str
    model: str
    adapter: str | None
    draft_model: Path | None


def run(request: Request) -> None:
    if request.out.exists():
        raise InputError(f"{request.out}: exists already: name another")
    if request.part == "draft" and request.adapter is not None:
        raise InputError("--adapter is the model's conversion and does not go with --part draft: leave one of them out")
    if request.part == "model" and request.draft_model is not None:
        raise InputError("--draft-model is exported by --part draft: add that, or leave --draft-model out")
    match request.to, request.part:
        case "hf", "model":
            _model_for_transformers(request)
        case "hf", "draft":
            _draft_for_transformers(request)
        case _:
            raise InputError(f"--to {request.to} does not go with --part {request.part}")


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
    adapter_at = adapter_folder(request.model, request.adapter)
    if adapter_at is None:
        if own_masks(base.name, base.network.config, base.tokenizer) is None:
            raise InputError(
                f"{request.model} has no conversion of its own: give one with --adapter, or make one with "
                f"`stridelm train --model {request.model}`. As it is, other engines read it without an export"
            )
        return "with the masks that it names", lambda folder: _with_script(folder, write_plain(base, folder))
    adapter = load_adapter_of(base, adapter_at)
    if adapter.is_gated:
        return f"with the gated adapter {adapter_at}", lambda folder: write_converted(base, adapter, folder)
    return f"merged with {adapter_at}", lambda folder: _with_script(folder, write_merged(base, adapter, folder))


def _with_script(folder: Path, dtype: torch.dtype) -> torch.dtype:
    add_custom_generate(folder)
    return dtype


def _draft_for_transformers(request: Request) -> None:
    out, draft_folder = request.out, request.draft_model or own_draft(request.model)
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
    base = load_base(request.model)
    with made_whole(out) as folder:
        layers, dtype = write_draft(base, draft_folder, folder)
    of = base.network.config.get_text_config().num_hidden_layers
    print(
        f"{out}: {layers} of {of} layers, embeddings and tokenizer of {request.model}, {_size(out, dtype)}\n"
        "With transformers:\n"
        f"    assistant = AutoModelForCausalLM.from_pretrained({str(out)!r})\n"
        "    model.generate(**inputs, assistant_model=assistant)"
    )


def _size(out: Path, dtype: torch.dtype) -> str:
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 1e6
    return f"{size:,.1f} MB in {str(dtype).removeprefix('torch.')}"
