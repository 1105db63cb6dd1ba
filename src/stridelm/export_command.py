"""`stridelm export`: a trained draft model as a plain Hugging Face folder, for engines other than ours."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from stridelm.model.draft_layers import is_draft, load_layers
from stridelm.model.load import load_checkpoint
from stridelm.model.preview import own_draft
from stridelm.model.store import save_network
from stridelm.params import InputError
from stridelm.settings import LoadSettings


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for."""

    model: str
    draft_model: Path | None
    out: Path


def run(request: Request) -> None:
    out, draft_folder = request.out, request.draft_model or own_draft(request.model)
    if out.exists():
        raise InputError(f"{out}: exists already: name another folder")
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
    base = load_checkpoint(request.model, LoadSettings(device="cpu"), trainable=True)
    network = load_layers(draft_folder, base)
    network.to(_smallest_dtype(network.state_dict()))  # type: ignore[arg-type]
    with _made_whole(out) as folder:
        save_network(folder, network, base.tokenizer, base.eos_ids)
    layers, of = (each.config.get_text_config().num_hidden_layers for each in (network, base.network))
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    dtype = str(network.dtype).removeprefix("torch.")
    print(
        f"{out}: {layers} of {of} layers, embeddings and tokenizer of {request.model}, {size:,.1f} MB in {dtype}\n"
        "With transformers:\n"
        f"    assistant = AutoModelForCausalLM.from_pretrained({str(out)!r})\n"
        "    model.generate(**inputs, assistant_model=assistant)"
    )


def _smallest_dtype(tensors: Mapping[str, torch.Tensor]) -> torch.dtype:
    """bfloat16 where it loses nothing: the draft's own tensors are stored so, and most models' embeddings."""
    exact = all(torch.equal(tensor, tensor.bfloat16().to(tensor.dtype)) for tensor in tensors.values())
    return torch.bfloat16 if exact else torch.float32


@contextmanager
def _made_whole(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into, which takes its place at the end, or goes again."""
    working = out.with_name(f".{out.name}.writing")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(working, ignore_errors=True)  # of a run that was killed here
        yield working
        working.rename(out)
    except OSError as error:
        raise InputError(
            f"{out}: cannot be written ({error.strerror or error}): make room, or name another folder"
        ) from error
    finally:
        shutil.rmtree(working, ignore_errors=True)
