"""The architectures of GGUF files that are read, by llama.cpp's names."""

from stridelm.models.gguf_format.architecture import Architecture
from stridelm.models.gguf_format.gemma import GEMMA2, GEMMA3
from stridelm.models.gguf_format.llama import LLAMA, QWEN2, QWEN3
from stridelm.models.gguf_format.phi3 import PHI3
from stridelm.models.gguf_format.qwen3moe import QWEN3MOE

ARCHITECTURES: dict[str, Architecture] = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3moe": QWEN3MOE,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "phi3": PHI3,
}
