"""The GPU backend on a CPU: Triton's interpreter runs its kernels. Slow, so texts are short here."""

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="there is no Triton here: the dev extra brings it")

import torch

from stridelm.backends.gpu.forward import GpuForward
from stridelm.backends.gpu.weights import is_supported, stack
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.gated import TorchGate
from stridelm.models.adapter import Adapter
from stridelm.settings import LoadSettings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def load_gpu(
    folder: Path, adapter: Adapter | None = None, *, cache_tokens: int = 1024, merges: bool | None = None
) -> tuple[Checkpoint, GpuForward]:
    """A tiny model's forward by the GPU backend: in float32, in the interpreter where there is no GPU."""
    checkpoint = load_checkpoint(str(folder), LoadSettings(device=DEVICE, dtype="float32"), trainable=True)
    assert is_supported(checkpoint.network, adapter)
    weights = stack(checkpoint.network, adapter, merges=merges)
    gate = None if adapter is None else TorchGate(checkpoint.network, adapter)
    return checkpoint, GpuForward(checkpoint.network, weights, cache_tokens, gate)
