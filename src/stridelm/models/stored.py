"""What is stored of a model, wherever it lies, in transformers' terms."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A folder's or a GGUF file's, read whole."""

    config: PreTrainedConfig
    weights: dict[str, torch.Tensor]
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    """The tokens that end an answer: of text, of turn, of message."""
