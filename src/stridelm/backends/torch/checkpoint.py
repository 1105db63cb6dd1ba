"""From a name, a folder, a hub id or a GGUF file to a model that is ready to run."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from stridelm.backends.gpu.load import has_kernels
from stridelm.backends.gpu.weights import FAMILIES
from stridelm.backends.torch.attention import NAME as ATTENTION
from stridelm.backends.torch.attention import UnsupportedModel
from stridelm.backends.torch.linear import best_storage, store_linears
from stridelm.backends.torch.llama_layer import fuse_layers
from stridelm.backends.torch.support import check_config, check_logits, own_logits
from stridelm.models import builtin
from stridelm.models.adapter import Adapter, check_base
from stridelm.models.folder_settings import quiet, read_config, read_eos_ids, read_tokenizer
from stridelm.models.gguf import read_gguf
from stridelm.models.store import map_weights, read_weights, weight_files
from stridelm.models.target import Target
from stridelm.models.ungated import merge
from stridelm.params import InputError
from stridelm.settings import AUTO_DTYPE, LoadSettings

logging.disable_progress_bar()  # transformers would draw one for weights that are in memory already

_FINGERPRINT_VALUES = 128
_DTYPES = {AUTO_DTYPE: torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Checkpoint(Target):
    """A model in memory as transformers' network."""

    tokenizer: PreTrainedTokenizerBase
    network: PreTrainedModel
    stored_dtype: torch.dtype = torch.float32
    """Of the largest of the weights as stored: what a model that is trained from them is stored as."""
    has_own_rows: bool = False
    """Whether it runs through kernels in which a row does not depend on those beside it."""

    @property
    def is_verified_exactly(self) -> bool:
        """In float32 near-ties are rare enough; below, other shapes round otherwise, if rows depend on each other."""
        return self.has_own_rows or self.network.dtype == torch.float32

    @property
    def description(self) -> str:
        dtype = str(self.network.dtype).removeprefix("torch.")
        return f"{self.name} in {dtype} on {self.network.device.type}, one token at a time"

    @property
    def device(self) -> str:
        device = self.network.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def load_checkpoint(
    name: str, settings: LoadSettings, *, trainable: bool = False, merged: tuple[Path, Adapter] | None = None
) -> Checkpoint:
    """`trainable` keeps transformers' own layers, through which gradients flow; otherwise faster ones take over.
    `merged`: an adapter without a gate, and its folder."""
    device = _device(settings.device)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    config, weights, tokenizer, eos_ids = _read(name)
    is_half = settings.dtype == AUTO_DTYPE and not trainable and has_kernels(device) and config.model_type in FAMILIES
    network = build_network(name, config, weights, device, torch.bfloat16 if is_half else _DTYPES[settings.dtype])
    weights_fingerprint = fingerprint(weights)
    stored_dtype = max(weights.values(), key=torch.numel).dtype
    del weights
    if merged is not None:
        folder, adapter = merged
        check_base(folder, adapter, name, weights_fingerprint)
        merge(network, adapter)
        name = f"{name} with {folder}"
        weights_fingerprint = hashlib.sha256(
            f"{weights_fingerprint} {fingerprint(adapter.tensors)}".encode()
        ).hexdigest()
    make_ready(network, trainable=trainable)
    text_config = config.get_text_config()
    return Checkpoint(
        name=name,
        network=network,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        context_length=int(text_config.max_position_embeddings),
        vocabulary=int(text_config.vocab_size),
        fingerprint=weights_fingerprint,
        stored_dtype=stored_dtype,
    )


def fingerprint(weights: dict[str, torch.Tensor]) -> str:
    """A digest of every tensor's name, shape and some hundred of its values, as float32: the same whether a model is
    stored as float32 or, without loss, as bfloat16; another after any training."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        values = weight.flatten()
        picked = values[:: max(1, len(values) // _FINGERPRINT_VALUES)].float().contiguous()
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        digest.update(picked.numpy().tobytes())
    return digest.hexdigest()


def fingerprint_of(folder: Path) -> str:
    """The same of a Hugging Face folder, of which only the values that count are read."""
    return fingerprint(map_weights(weight_files(folder)))


def make_ready(network: PreTrainedModel, *, trainable: bool) -> None:
    """Let faster layers take over, unless it is to be trained, and see that the network says what it said before."""
    expected = own_logits(network)
    storage = None if trainable else best_storage(network.device, network.dtype)
    if storage is not None:
        fuse_layers(network, storage)
        store_linears(network, storage)
    check_logits(network, expected)


def build_network(
    name: str, config: PreTrainedConfig, weights: dict[str, torch.Tensor], device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """The model with its weights: all of them, in the shapes that its settings name."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(f"{name}: {config.model_type} is not a causal language model of transformers")
    family = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    try:
        with quiet():
            loaded: Any = family.from_pretrained(
                None,
                config=config,
                state_dict=weights,
                dtype=dtype,
                attn_implementation=ATTENTION,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (
        ValueError,
        RuntimeError,
        KeyError,
        ImportError,
        AssertionError,
        ArithmeticError,
        AttributeError,
        TypeError,
    ) as error:
        raise InputError(f"{name}: the weights cannot be put into a {config.model_type} model ({error})") from error
    network, report = loaded
    wrong = sorted(key for key, *_ in report["mismatched_keys"]) + sorted(report["missing_keys"])
    # Other parts of a larger model (a vision tower) may be left over, a layer of this one may not.
    wrong += sorted(key for key in report["unexpected_keys"] if key.startswith("model.layers."))
    if wrong:
        raise InputError(
            f"{name}: the weights do not fit config.json: {wrong[0]} is missing, left over or of another shape, "
            f"{len(wrong)} such in all"
        )
    return network.to(device).eval().requires_grad_(False)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.ones(1, device=device).item()
        if device.type == "cuda":
            # cuDNN's attention is wrong on our layouts: on an H200 (torch 2.11, bfloat16) logits were off by their
            # own size.
            torch.backends.cuda.enable_cudnn_sdp(False)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise InputError(f"device {name!r} cannot be used here ({reason}): try cpu or auto") from error
    return device


Parts = tuple[PreTrainedConfig, dict[str, torch.Tensor], PreTrainedTokenizerBase, frozenset[int]]


def _read(name: str) -> Parts:
    folder = folder_of(name)
    if folder is not None:
        return read_folder(folder)
    model = read_gguf(Path(name))
    check_config(model.config)
    return model.config, model.weights, model.tokenizer, model.eos_ids


def folder_of(name: str) -> Path | None:
    """The Hugging Face folder that a name means, fetched where need be; None where it means a GGUF file."""
    path = Path(name)
    if name == builtin.NAME:
        return builtin.ensure_builtin()
    if name and path.is_dir():
        return path
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        return None
    return from_hub(name)


def read_folder(folder: Path) -> Parts:
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json there, so it is not a Hugging Face model folder")
    files = weight_files(folder)
    config = read_config(folder)
    check_config(config)  # first: what is no language model may have no tokenizer
    tokenizer = read_tokenizer(folder)
    return config, read_weights(files), tokenizer, read_eos_ids(folder, config, tokenizer)


def from_hub(name: str) -> Path:
    unknown = (
        f"there is no model {name!r}: --model takes {builtin.NAME} (built in), a Hugging Face folder, a .gguf file or "
        "a hub id such as Qwen/Qwen3-0.6B; `stridelm models` lists what is on this machine"
    )
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or os.sep * 2 in name:
        raise InputError(unknown)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"{name!r} is not on this machine and the hub cannot be reached (no network, or HF_HUB_OFFLINE is set): "
            "fetch it elsewhere and give its folder"
        ) from error
    # A proxy, a broken connection, an unknown name: each library below the hub's client has errors of its own.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{unknown} (the hub said: {reason})") from error
