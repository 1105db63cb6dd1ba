"""Models and tokenizers that are written as GGUF files, with a vocabulary that llama.cpp has read."""

import json
from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType as Stored
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gguf_models import tiny_network
from stridelm.models.vocabulary.pre_tokenizers import pre_tokenizers_by_name

SYNTHETIC = json.loads((Path(__file__).parent.parent / "data" / "llama_cpp_synthetic_ids.json").read_text())
"""A vocabulary that shows every boundary between words."""
CHAT = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
ENDS = frozenset({0})
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 50_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def tokenizer_of(pre: str | pre_tokenizers.PreTokenizer = "smollm", **settings: Any) -> PreTrainedTokenizerFast:
    vocabulary = {token: number for number, token in enumerate(SYNTHETIC["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in SYNTHETIC["merges"]]
    whole_words = settings.pop("ignore_merges", pre == "llama-bpe")
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    backend.pre_tokenizer = pre_tokenizers_by_name()[pre] if isinstance(pre, str) else pre
    backend.decoder = decoders.ByteLevel()
    for token, kind in zip(SYNTHETIC["tokens"], SYNTHETIC["token_type"], strict=True):
        if kind in (3, 4):
            backend.add_tokens([AddedToken(token, special=kind == 3, normalized=False)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", **settings)
    wrapped.chat_template = CHAT
    return wrapped


def network_of(family: str = "llama", **changes: Any) -> PreTrainedModel:
    """Rows for all tokens of the tokenizer, and three more that no token has."""
    return tiny_network(family, vocab_size=len(SYNTHETIC["tokens"]) + 3, pad_token_id=0, eos_token_id=0, **changes)


def kinds_of(file: Path) -> set[str]:
    """How the matrices are stored; all else is in float32."""
    tensors = gguf.GGUFReader(file).tensors
    assert all(tensor.tensor_type == Stored.F32 for tensor in tensors if len(tensor.shape) < 2)
    return {tensor.tensor_type.name for tensor in tensors if len(tensor.shape) == 2}
