"""A whole language model whose steps a device runs by itself, without a device: the hash of `hash_stepper`."""

from dataclasses import dataclass

import numpy as np
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase

from hash_stepper import Device, SteppingForward
from hashing_model import CONTEXT, END, VOCABULARY, HashGate, letters
from stridelm.api import LanguageModel
from stridelm.cache.kv_cache import BLOCK_SIZE, blocks_for
from stridelm.models.target import LoadedModel, Target
from stridelm.settings import LoadSettings

PROMPT = "o r l l i v g d f f"
"""A word of one letter is a token. The answer has 60 of them or more."""


@dataclass(frozen=True, slots=True)
class HashTarget(Target):
    @property
    def description(self) -> str:
        return "a hash"

    @property
    def is_verified_exactly(self) -> bool:
        return True

    @property
    def device(self) -> str:
        return "none"


class SteppingModelForward(SteppingForward):
    """One with masks, whose output head can be timed."""

    def __init__(self, blocks: int, device: Device | None = None) -> None:
        super().__init__(blocks, device)
        self.gate = HashGate()

    def with_cache(self, tokens: int) -> "SteppingModelForward":
        return SteppingModelForward(blocks_for(tokens), self.device)

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return np.zeros((len(hidden_XC), VOCABULARY), dtype=np.float32)


def stepping_model(device: Device | None = None, blocks: int = 64) -> LanguageModel:
    """`auto`, `self` and plain decoding take own steps; other decoders the host's."""
    ends = frozenset({END})
    target = HashTarget("hash", _words(), ends, CONTEXT, VOCABULARY, "0")
    forward = SteppingModelForward(blocks, device or Device(right=0.9))
    return LanguageModel(LoadedModel(target, forward), LoadSettings(cache_tokens=blocks * BLOCK_SIZE))


def _words() -> PreTrainedTokenizerBase:
    tokenizer = letters()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[attr-defined]
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    return tokenizer
