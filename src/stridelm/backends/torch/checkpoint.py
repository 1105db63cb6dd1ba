"""Loads a model as transformers' network, and replaces its layers by faster ones if there are any."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from stridelm.backends.common.gpu_families import FAMILIES, has_kernels
from stridelm.backends.torch.attention import NAME as ATTENTION
from stridelm.backends.torch.linear import best_storage, store_linears
from stridelm.backends.torch.llama_layer import fuse_layers
from stridelm.backends.torch.trial import check_logits, own_logits
from stridelm.models.adapter import Adapter, check_base
from stridelm.models.find import read_model
from stridelm.models.fingerprint import fingerprint
from stridelm.models.network import build_network
from stridelm.models.target import Target
from stridelm.models.ungated import merge
from stridelm.params import InputError
from stridelm.settings import AUTO_DTYPE, LoadSettings

_DTYPES = {AUTO_DTYPE: torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Checkpoint(Target):
    """A model in memory as transformers' network."""

    tokenizer: PreTrainedTokenizerBase
    network: PreTrainedModel
    stored_dtype: torch.dtype = torch.float32
    """The dtype of the largest weight as stored. Models that are trained from this one are saved in it."""
    has_own_rows: bool = False
    """Whether it runs through kernels in which a row's result does not depend on the other rows of the step."""

    @property
    def is_verified_exactly(self) -> bool:
        """In float32 near-ties are rare enough. In lower precision, steps of other shapes round differently, unless the
        kernels compute each row independently."""
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
    """`trainable` keeps transformers' own layers, which support gradients; otherwise faster layers replace them.
    `merged`: an adapter without a gate, and its folder; it is merged into the weights."""
    device = _device(settings.device)
    if settings.threads:
        torch.set_num_threads(settings.threads)

    def choose_dtype(config: PreTrainedConfig) -> torch.dtype:
        is_ours = not trainable and has_kernels(device) and config.model_type in FAMILIES
        return torch.bfloat16 if settings.dtype == AUTO_DTYPE and is_ours else _DTYPES[settings.dtype]

    stored = read_model(name, choose_dtype)
    config = stored.config
    network = build_network(name, config, stored.weights, device, choose_dtype(config), attention=ATTENTION)
    weights_fingerprint, stored_dtype = stored.fingerprint, stored.dtype
    tokenizer, eos_ids = stored.tokenizer, stored.eos_ids
    del stored
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


def make_ready(network: PreTrainedModel, *, trainable: bool) -> None:
    """Replace layers by faster ones, unless the network is to be trained, and check that its logits are the same."""
    expected = own_logits(network)
    storage = None if trainable else best_storage(network.device, network.dtype)
    if storage is not None:
        fuse_layers(network, storage)
        store_linears(network, storage)
    check_logits(network, expected)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.ones(1, device=device).item()
        if device.type == "cuda":
            # cuDNN's attention is wrong on our layouts: on an H200 (torch 2.11, bfloat16) errors were as large as the
            # logits.
            torch.backends.cuda.enable_cudnn_sdp(False)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise InputError(f"device {name!r} cannot be used here ({reason}): try cpu or auto") from error
    return device
