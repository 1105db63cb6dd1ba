"""Hugging Face folders on disk: writing one, reading its weights."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from stridelm.params import InputError


def save_folder(
    folder: Path, config: PreTrainedConfig, weights: dict[str, torch.Tensor], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write a Hugging Face folder. Raises OSError if there is no room."""
    with writing(folder):
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def save_network(
    folder: Path,
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: frozenset[int],
    weights: dict[str, torch.Tensor] | None = None,
) -> None:
    """The same for a transformers network, with all tokens that end its answers. `weights`: stored instead of the
    network's own, all of one dtype."""
    assert network.generation_config is not None
    network.generation_config.eos_token_id = sorted(eos_ids) or None
    with writing(folder):
        # A copy: transformers removes entries that it has written, unless it loaded the network from a folder itself.
        network.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
        if weights is not None:  # transformers writes the network's own dtype
            network.config.dtype = next(iter(weights.values())).dtype
            network.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def save_smallest(
    folder: Path, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, eos_ids: frozenset[int]
) -> torch.dtype:
    """The same in bfloat16 if that loses nothing, as for most published models; returns the chosen dtype."""
    state = network.state_dict()
    exact = all(torch.equal(tensor, tensor.bfloat16().to(tensor.dtype)) for tensor in state.values())
    dtype = torch.bfloat16 if exact else torch.float32
    save_network(folder, network, tokenizer, eos_ids, as_dtype(state, dtype))
    return dtype


def as_dtype(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Weights in another dtype; tied weights stay tied."""
    converted: dict[int, torch.Tensor] = {}
    for tensor in weights.values():
        converted.setdefault(tensor.data_ptr(), tensor.to(dtype))
    return {name: converted[tensor.data_ptr()] for name, tensor in weights.items()}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Create a folder to be filled; errors of the libraries that write become OSErrors."""
    folder.mkdir()
    try:
        yield
    except Exception as error:
        # For a full disk, tokenizers raises a bare Exception and safetensors an error of its own.
        if type(error) not in (Exception, SafetensorError):
            raise
        raise OSError(str(error)) from error
    for file in weight_files(folder):
        file.chmod(0o644)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, from its index if there is one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            files = [folder / name for name in names]
            if not files:
                raise ValueError("it names no files")
        except (ValueError, KeyError, AttributeError, TypeError, OSError) as error:
            raise InputError(f"{index}: cannot be read ({error}): fetch the model again") from error
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise InputError(
                f"{folder}: {missing[0]} is missing ({len(missing)} of {len(files)} files): fetch it again"
            )
        return files
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        other = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.pt"))
        found = f" ({other[0]} is a pickle, which StrideLM does not read: convert it to safetensors)" if other else ""
        raise InputError(f"{folder}: no weights there, no .safetensors file{found}")
    return files


def read_weights(files: list[Path]) -> dict[str, torch.Tensor]:
    """All tensors, read rather than memory-mapped: mapped pages would take memory in addition to the packed copies."""
    return _tensors(files, backend="pread")


def map_weights(files: list[Path]) -> dict[str, torch.Tensor]:
    """All tensors, memory-mapped: for callers that need few of their values."""
    return _tensors(files, backend="mmap")


def _tensors(files: list[Path], *, backend: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt", backend=backend) as opened:
                for name in opened.keys():  # noqa: SIM118
                    weights[name] = opened.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise InputError(
                f"{file}: cannot be read as safetensors ({error}). It may be cut off: fetch it again"
            ) from error
    return weights
