"""A model as it is stored, in transformers' terms."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The content of a model folder or a GGUF file."""

    config: PreTrainedConfig
    weights: dict[str, torch.Tensor]
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    """The tokens that end an answer: end of text, of turn, of message."""
    fingerprint: str
    dtype: torch.dtype
    """Of the largest weight, as it is stored; float32 for blocks of GGUF files."""
