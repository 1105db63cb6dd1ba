"""Which models the GPU kernels support: needed before a model is loaded in half precision for them."""

from importlib.util import find_spec

import torch

FAMILIES = {
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
}
"""Model type in config.json -> the class of the layers that the kernels compute."""


def has_kernels(device: torch.device) -> bool:
    """Whether the kernels can run on this device at all."""
    return (
        device.type == "cuda" and find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)
    )
