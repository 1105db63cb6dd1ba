"""GGUF files as transformers models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from rich.console import Console
from rich.progress import track
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from stridelm.models.fingerprint import fingerprint
from stridelm.models.gguf_content import GgufContent, damaged, read_content
from stridelm.models.gguf_format.weights import GgufWeights
from stridelm.models.stored import StoredModel
from stridelm.models.support import check_config

_CONFIGS: dict[str, type[PreTrainedConfig]] = {
    config.model_type: config
    for config in (
        LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig, Gemma2Config, Gemma3TextConfig, Phi3Config
    )
}  # fmt: skip
# What transformers' configs raise for settings that they do not take.
_REFUSALS = (ValueError, LookupError, TypeError, ArithmeticError, StrictDataclassError)
_LONG_LOAD = 2**28
"""Number of weights, from which on converting takes seconds."""


def in_float32(_config: PreTrainedConfig) -> torch.dtype:
    return torch.float32


def read_gguf(path: Path, choose_dtype: Callable[[PreTrainedConfig], torch.dtype] = in_float32) -> StoredModel:
    """Read a whole file, its weights one after the other into the dtype that is chosen. Raises InputError if it is
    damaged or of a kind that is not supported."""
    found = read_content(path)
    try:
        config = _config(found)
    except _REFUSALS as error:
        raise damaged(path, error) from error
    check_config(config)
    weights = _convert(found.weights, choose_dtype(config))
    return StoredModel(config, weights, _tokenizer(found), found.eos_ids, fingerprint(found.weights), torch.float32)


def _convert(weights: GgufWeights, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    console = Console(stderr=True)
    is_short = sum(torch.Size(weights.shape(name)).numel() for name in weights) < _LONG_LOAD
    names = track(
        list(weights), "Reading weights", console=console, disable=is_short or not console.is_terminal, transient=True
    )
    return {name: _tensor(weights, name, dtype) for name in names}


def _tensor(weights: GgufWeights, name: str, dtype: torch.dtype) -> torch.Tensor:
    shape = weights.shape(name)
    tensor = torch.empty(shape, dtype=dtype)
    for place, values in weights.parts(name):
        tensor.view(-1, shape[-1])[place] = torch.from_numpy(np.require(values, requirements="W"))
    return tensor


def _config(found: GgufContent) -> PreTrainedConfig:
    family = found.config.model_type
    settings = {name: value for name, value in vars(found.config).items() if name != "model_type"}
    return _CONFIGS[family](**settings, architectures=[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]], dtype="float32")


def _tokenizer(found: GgufContent) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=found.tokenizer.backend_tokenizer,
        **found.tokenizer.special_tokens_map,
        clean_up_tokenization_spaces=False,
        model_max_length=found.config.max_position_embeddings,
    )
    tokenizer.chat_template = found.tokenizer.chat_template
    return tokenizer
