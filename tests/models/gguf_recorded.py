"""Small GGUF files, drawn from seeds without torch, so that they are the same everywhere: llama.cpp's own logits for
them are in tests/data/llama_cpp_logits.npz (made by tests/data/make_llama_cpp_logits.py)."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Stored

from stridelm.export.gguf_file import add_field

RECORDED = Path(__file__).parent.parent / "data" / "llama_cpp_logits.npz"
VOCABULARY = 64
CONTEXT = 512
IDS = [5, 60, 17, 33, 8, 41, 22, 2, 2, 59, 30, 11, 48, 37, 26, 19, 54, 7, 62, 13, 44, 1, 35, 28]
PLACES = (0, 4, 7, 12, 18, 23)
"""The positions whose logits are recorded: before and behind the windows."""

SCALES: dict[Stored, tuple[int, ...]] = {
    **dict.fromkeys((Stored.Q4_0, Stored.Q5_0, Stored.Q8_0, Stored.IQ2_XXS, Stored.IQ2_XS, Stored.IQ2_S), (0,)),
    **dict.fromkeys((Stored.IQ3_XXS, Stored.IQ3_S, Stored.IQ1_S, Stored.IQ4_NL, Stored.IQ4_XS), (0,)),
    **dict.fromkeys((Stored.Q4_1, Stored.Q5_1, Stored.Q4_K, Stored.Q5_K), (0, 2)),
    Stored.Q2_K: (80, 82),
    Stored.Q3_K: (108,),
    Stored.Q6_K: (208,),
    Stored.TQ1_0: (52,),
    Stored.TQ2_0: (64,),
    Stored.IQ1_M: (),
    Stored.MXFP4: (),
    Stored.NVFP4: (),
}
"""Kinds of blocks, and at which of their bytes a scale in half precision begins."""
_LARGEST_BYTE = {Stored.IQ1_M: (55, 0x3F), Stored.MXFP4: (0, 0x7F)}
"""Where random bytes could make infinite values."""
_SPREAD = {Stored.Q4_K: (189.0, 7.5), Stored.Q5_K: (378.0, 15.5), Stored.Q6_K: (1370.0, 0.0)}
"""The standard deviation of random blocks with a scale of 1, and the second scale, with which their mean is 0."""


@dataclass
class RecordedFile:
    """A file before it is written."""

    architecture: str
    settings: dict[str, Any]
    tensors: dict[str, tuple[np.ndarray, Stored]] = field(default_factory=dict)
    """Rows of numbers or of bytes, and what they are."""

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for name, value in (self.settings | _tokenizer()).items():
            add_field(writer, name, value)
        for name, (array, kind) in self.tensors.items():
            writer.add_tensor(name, array, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def in_float32(self) -> "RecordedFile":
        """The same weights, dequantised."""
        tensors = {name: (gguf.dequantize(array, kind), Stored.F32) for name, (array, kind) in self.tensors.items()}
        return RecordedFile(self.architecture, self.settings, tensors)

    @property
    def digest(self) -> str:
        """Of its weights: the recorded logits are for these."""
        digest = hashlib.sha256()
        for name, (array, kind) in self.tensors.items():
            digest.update(f"{name} {kind.name} {array.shape}".encode() + array.tobytes())
        return digest.hexdigest()


def _tokenizer() -> dict[str, Any]:
    tokens = [chr(code) for code in range(48, 48 + VOCABULARY - 2)] + ["\u010a", "<eos>"]
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * (VOCABULARY - 1) + [3],
        "merges": ["a b"],
        "bos_token_id": VOCABULARY - 1,
        "eos_token_id": VOCABULARY - 1,
    }
    fields["tokens"][fields["tokens"].index("0")] = "ab"  # what the merge makes
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def random_blocks(kind: Stored, count: int, random: np.random.RandomState) -> np.ndarray:
    """Blocks whose values are finite."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.randint(0, 256, (count, size)).astype(np.uint8)
    for place in SCALES[kind]:
        blocks[:, place + 1] = random.randint(0x34, 0x40, count)  # the upper byte: 0.25 to 2
    if kind in _LARGEST_BYTE:
        place, largest = _LARGEST_BYTE[kind]
        blocks[:, place] = np.minimum(blocks[:, place], largest)
    if kind is Stored.NVFP4:
        blocks[:, :4] = np.minimum(blocks[:, :4], 0x7E)
    return blocks


def _matrix_of_blocks(
    kind: Stored, shape: tuple[int, ...], deviation: float, random: np.random.RandomState
) -> np.ndarray:
    spread, second = _SPREAD[kind]
    blocks = random_blocks(kind, int(np.prod(shape)) // 256, random)
    scales = [deviation / spread, deviation / spread * second]
    for place, scale in zip(SCALES[kind], scales, strict=False):
        blocks[:, place : place + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], -1)


class _Maker:
    """Draws the tensors of a file, one after the other."""

    def __init__(self, seed: int, *, blocks: bool) -> None:
        self.random = np.random.RandomState(seed)
        self.blocks = blocks
        self.tensors: dict[str, tuple[np.ndarray, Stored]] = {}

    def matrix(self, name: str, *shape: int, gain: float = 1.0, kind: Stored = Stored.Q4_K) -> None:
        deviation = gain / shape[-1] ** 0.5
        if self.blocks:
            self.tensors[f"{name}.weight"] = _matrix_of_blocks(kind, shape, deviation, self.random), kind
        else:
            self.plain(f"{name}.weight", self.random.standard_normal(shape) * deviation)

    def vectors(self, size: int, *names: str) -> None:
        for name in names:
            self.plain(name, self.random.uniform(0.5, 1.5, size))

    def plain(self, name: str, array: np.ndarray) -> None:
        self.tensors[name] = array.astype(np.float32), Stored.F32


@dataclass(frozen=True)
class Recorded:
    """An architecture as it is recorded."""

    architecture: str
    settings: dict[str, Any] = field(default_factory=dict)
    layers: int = 2
    head_size: int = 16
    rotary: int | None = None
    """Rotary dimensions, if not a whole head."""
    stretch: float | None = None
    """Llama 3's factor, over a context of 32."""
    seed: int = 0

    def file(self, *, blocks: bool) -> RecordedFile:
        """With `blocks` as K-quants (Q4_K, Q5_K and Q6_K), otherwise in float32."""
        name, heads, key_heads = self.architecture, 4, 2
        width, inner, size = (256, 256, 4 * self.head_size) if blocks else (64, 96, self.head_size)
        is_gemma = name.startswith("gemma")
        maker = _Maker(self.seed, blocks=blocks)
        # Gemma multiplies embeddings by the root of their size; the head is the same matrix in it.
        maker.matrix("token_embd", VOCABULARY, width, gain=2.0 if is_gemma else width**0.5, kind=Stored.Q6_K)
        maker.vectors(width, "output_norm.weight")
        if not is_gemma:
            maker.matrix("output", VOCABULARY, width, gain=2.0, kind=Stored.Q6_K)
        for layer in range(self.layers):
            self._attention(maker, f"blk.{layer}", width, heads * size, key_heads * size, size)
            self._rest(maker, f"blk.{layer}", width, inner)
        if self.rotary:
            scale = 4 if blocks else 1
            maker.vectors(self.rotary * scale // 2, "rope_factors_short.weight", "rope_factors_long.weight")
        if self.stretch:
            maker.plain("rope_freqs.weight", _stretches(self.stretch, 500.0, size))
        rotary = (self.rotary or self.head_size) * (4 if blocks else 1)
        common = {
            "block_count": self.layers,
            "context_length": CONTEXT,
            "embedding_length": width,
            "feed_forward_length": inner,
            "attention.head_count": heads,
            "attention.head_count_kv": key_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 500.0,
            **({"rope.dimension_count": rotary} if name == "phi3" else _head_lengths(size)),
            **({"expert_feed_forward_length": inner} if name == "qwen3moe" else {}),
        }
        settings = {f"{name}.{key}": value for key, value in (common | self.settings).items()}
        return RecordedFile(name, settings, maker.tensors)

    def _attention(self, maker: _Maker, layer: str, width: int, queries: int, keys: int, size: int) -> None:
        if self.architecture == "phi3":
            maker.matrix(f"{layer}.attn_qkv", queries + 2 * keys, width, gain=2.0)
        else:
            maker.matrix(f"{layer}.attn_q", queries, width, gain=2.0)
            maker.matrix(f"{layer}.attn_k", keys, width, gain=2.0)
            maker.matrix(f"{layer}.attn_v", keys, width, kind=Stored.Q6_K)
        maker.matrix(f"{layer}.attn_output", width, queries, kind=Stored.Q5_K)
        if self.architecture == "qwen2":
            maker.vectors(queries, f"{layer}.attn_q.bias")
            maker.vectors(keys, f"{layer}.attn_k.bias", f"{layer}.attn_v.bias")
        if self.architecture in ("qwen3", "qwen3moe", "gemma3"):
            maker.vectors(size, f"{layer}.attn_q_norm.weight", f"{layer}.attn_k_norm.weight")

    def _rest(self, maker: _Maker, layer: str, width: int, inner: int) -> None:
        maker.vectors(width, f"{layer}.attn_norm.weight", f"{layer}.ffn_norm.weight")
        if self.architecture.startswith("gemma"):
            maker.vectors(width, f"{layer}.post_attention_norm.weight", f"{layer}.post_ffw_norm.weight")
        if self.architecture == "qwen3moe":
            experts = self.settings["expert_count"]
            maker.plain(f"{layer}.ffn_gate_inp.weight", maker.random.standard_normal((experts, width)) * 0.3)
            maker.matrix(f"{layer}.ffn_gate_exps", experts, inner, width)
            maker.matrix(f"{layer}.ffn_up_exps", experts, inner, width)
            maker.matrix(f"{layer}.ffn_down_exps", experts, width, inner, kind=Stored.Q6_K)
            return
        if self.architecture == "phi3":
            maker.matrix(f"{layer}.ffn_up", 2 * inner, width)
        else:
            maker.matrix(f"{layer}.ffn_gate", inner, width)
            maker.matrix(f"{layer}.ffn_up", inner, width)
        maker.matrix(f"{layer}.ffn_down", width, inner, kind=Stored.Q6_K)


def _stretches(factor: float, theta: float, size: int) -> np.ndarray:
    """By Llama 3's rule, as llama.cpp's converter has it."""
    found = []
    for place in range(0, size, 2):
        wave = 2 * np.pi * theta ** (place / size)
        share = min(max((32 / wave - 1) / 3, 0), 1)
        found.append(1 / ((1 - share) / factor + share))
    return np.array(found)


def _head_lengths(size: int) -> dict[str, int]:
    return {"attention.key_length": size, "attention.value_length": size}


_STRETCHED: dict[str, Any] = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
_LONG: dict[str, Any] = {"rope.scaling.original_context_length": 256, "rope.scaling.attn_factor": 1.19}
RECORDED_FILES: dict[str, Recorded] = {
    "llama": Recorded("llama", seed=1),
    "llama, stretched": Recorded("llama", _STRETCHED, seed=2),
    "llama, Llama 3's positions": Recorded("llama", stretch=8.0, seed=12),
    "qwen2": Recorded("qwen2", seed=3),
    "qwen3": Recorded("qwen3", head_size=32, seed=4),
    "qwen3moe": Recorded("qwen3moe", {"expert_count": 8, "expert_used_count": 3}, seed=5),
    "gemma2": Recorded("gemma2", {
        "attention.sliding_window": 5, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0,
    }, layers=3, head_size=32, seed=6),
    "gemma3": Recorded(
        "gemma3", {"attention.sliding_window": 5, "attention.sliding_window_pattern": 3, **_STRETCHED},
        layers=4, head_size=32, seed=7,
    ),
    "gemma3, as published": Recorded(
        "gemma3", {"attention.sliding_window": 5, "rope.freq_base_swa": 100.0}, layers=7, head_size=32, seed=8
    ),
    "gemma3, no window": Recorded("gemma3", {"final_logit_softcapping": 6.0}, seed=9),
    "phi3": Recorded("phi3", {"attention.sliding_window": 0}, seed=10),
    "phi3, long texts": Recorded("phi3", _LONG, rotary=12, seed=11),
}  # fmt: skip


def values_digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, np.float32).tobytes()).hexdigest()
