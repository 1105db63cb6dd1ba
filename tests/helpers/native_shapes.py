"""Shapes of tiny models that the native kernels are tried on."""

import random
from pathlib import Path
from typing import Any

import torch

from tiny import save_tiny

LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"hidden_size": 64, "head_dim": 16}),
    "llama, odd sizes": ("llama", {"hidden_size": 80, "head_dim": 16, "intermediate_size": 100}),
    "llama, narrow": ("llama", {"hidden_size": 64, "head_dim": 16, "intermediate_size": 16}),
    "llama, three heads": (
        "llama", {"hidden_size": 30, "head_dim": 16, "num_attention_heads": 3, "num_key_value_heads": 1,
                  "intermediate_size": 100},
    ),
    "llama, wide heads": ("llama", {"hidden_size": 96, "head_dim": 96, "num_attention_heads": 6,
                                    "num_key_value_heads": 3}),
    "llama, one key head": ("llama", {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 16,
                                      "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama3 positions": ("llama", {"hidden_size": 64, "head_dim": 32, "rope_parameters": LLAMA3}),
    "linear positions": (
        "llama", {"hidden_size": 64, "head_dim": 32, "num_key_value_heads": 4,
                  "rope_parameters": {"rope_type": "linear", "rope_theta": 5e4, "factor": 3.0}},
    ),
    "mistral": ("mistral", {"hidden_size": 64, "head_dim": 32}),
    "qwen2": ("qwen2", {"hidden_size": 64, "head_dim": 16}),
    "qwen3": ("qwen3", {"hidden_size": 96, "head_dim": 32, "num_attention_heads": 5, "num_key_value_heads": 5}),
    "qwen3, small heads": ("qwen3", {"hidden_size": 64, "head_dim": 16, "tie_word_embeddings": False}),
    "qwen3, heads of 48": ("qwen3", {"hidden_size": 80, "head_dim": 48, "intermediate_size": 100}),
}  # fmt: skip
_random = random.Random(1)
PREFIXES = [[_random.randrange(250) for _ in range(length)] for length in (3, 40, 17)]


def save_shape(folder: Path, shape: str) -> Path:
    """With random norms and biases, so that one in the wrong place shows."""
    family, changes = SHAPES[shape]
    save_tiny(folder, family, **changes)
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)
    torch.manual_seed(1)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.uniform_(0.5, 1.5)
    network.save_pretrained(folder)
    return folder
