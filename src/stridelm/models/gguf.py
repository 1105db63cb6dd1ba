"""GGUF files as transformers models."""

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from stridelm.models.gguf_content import GgufContent, damaged, read_content
from stridelm.models.stored import StoredModel

_CONFIGS: dict[str, type[LlamaConfig | Qwen2Config | Qwen3Config]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
# What transformers' configs raise for settings that they do not take.
_REFUSALS = (ValueError, LookupError, TypeError, ArithmeticError, StrictDataclassError)


def read_gguf(path: Path) -> StoredModel:
    """Read a whole file. Raises InputError if it is damaged or of a kind that is not supported."""
    found = read_content(path)
    try:
        config = _config(found)
    except _REFUSALS as error:
        raise damaged(path, error) from error
    weights = {name: torch.from_numpy(array) for name, array in found.weights.items()}
    return StoredModel(config, weights, _tokenizer(found), found.eos_ids)


def _config(found: GgufContent) -> PreTrainedConfig:
    config_class = _CONFIGS[found.config.model_type]
    architecture = config_class.__name__.replace("Config", "ForCausalLM")
    settings = {name: value for name, value in vars(found.config).items() if name != "model_type"}
    return config_class(**settings, architectures=[architecture], dtype="float32")


def _tokenizer(found: GgufContent) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=found.tokenizer.backend_tokenizer,
        **found.tokenizer.special_tokens_map,
        clean_up_tokenization_spaces=False,
        model_max_length=found.config.max_position_embeddings,
    )
    tokenizer.chat_template = found.tokenizer.chat_template
    return tokenizer
