"""Who answers many prompts for a measurement: the serving engine, or whoever does it quicker (`mask_rollout.py`)."""

from dataclasses import dataclass
from typing import Protocol

from stridelm.api import LanguageModel
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and how many forward passes wrote it."""

    tokens: tuple[int, ...]
    text: str
    forwards: int


class Answering(Protocol):
    """A conversion that answers prompts, greedily."""

    k: int
    """Tokens a pass that its masks were trained for; 0 without masks."""
    is_exact: bool
    """Whether exact decoders write, token for token, what plain decoding does."""

    def __call__(self, prompts: list[str], settings: DecodeSettings, max_tokens: int) -> list[Answered]: ...


class EngineAnswering:
    """The serving engine, some answers at once."""

    def __init__(self, model: LanguageModel, batch: int) -> None:
        self.model, self.batch = model, batch
        self.k = 0 if model.gate is None else model.gate.k
        self.is_exact = model.target.is_verified_exactly

    def __call__(self, prompts: list[str], settings: DecodeSettings, max_tokens: int) -> list[Answered]:
        self.model.forget()  # every decoder reads the prompts itself
        params = SamplingParams(max_tokens=max_tokens)
        answers: list[Answered] = []
        for start in range(0, len(prompts), self.batch):
            results = self.model.generate(prompts[start : start + self.batch], params, decoder=settings)
            answers += [Answered(result.token_ids, result.text, result.stats.forwards) for result in results]
        return answers
