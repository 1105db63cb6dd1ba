"""What a user asks of an answer: how tokens are chosen and when to stop. Nothing here imports torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


class InputError(ValueError):
    """Something a user gave that cannot be used. The message says what, where and what to do instead."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        """`field`: the name of the parameter at fault, if it is one."""
        super().__init__(message)
        self.field = field


def _require(holds: bool, field: str, message: str) -> None:
    """`message` follows the field's name."""
    if not holds:
        raise InputError(f"{field} {message}", field=field)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from logits, and when to stop."""

    max_tokens: int = 256
    """Maximum number of tokens to write."""
    temperature: float = 0.0
    """0 takes the likeliest token; 1 samples from the model's own distribution."""
    top_p: float = 1.0
    """Keep the smallest set of tokens that holds this much probability; 1 keeps all."""
    top_k: int = 0
    """Keep the K likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the likeliest; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divide the positive and multiply the negative logits of tokens seen in prompt or answer; 1 is off."""
    presence_penalty: float = 0.0
    """Subtract this from the logits of tokens that the answer holds already."""
    frequency_penalty: float = 0.0
    """Subtract this from a token's logit once for every time the answer holds it."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """Added to the logits of these token ids; -inf bans a token."""
    seed: int | None = None
    """Same seed, same text, whatever the decoder; none draws a fresh one, and the result names it."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of its text. Special tokens have no text to match."""

    def __post_init__(self) -> None:
        _require(
            _is_count(self.max_tokens, 1),
            "max_tokens",
            f"must be a whole number of at least 1, not {self.max_tokens!r}",
        )
        _require(
            self.temperature == 0 or _within(self.temperature, 1e-4, 100),
            "temperature",
            f"must be 0 (greedy) or between 0.0001 and 100, not {self.temperature!r}",
        )
        _require(_within(self.top_p, 1e-6, 1), "top_p", f"must be above 0 and at most 1, not {self.top_p!r}")
        _require(
            _is_count(self.top_k, 0), "top_k", f"must be a whole number of at least 0 (0 keeps all), not {self.top_k!r}"
        )
        _require(_within(self.min_p, 0, 1), "min_p", f"must be between 0 and 1, not {self.min_p!r}")
        _require(
            _within(self.repetition_penalty, 1e-2, 100),
            "repetition_penalty",
            f"must be between 0.01 and 100 (1 is off), not {self.repetition_penalty!r}",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(_within(value, -100, 100), name, f"must be between -100 and 100 (0 is off), not {value!r}")
        for token, bias in self.logit_bias.items():
            _require(
                _is_count(token, 0) and (bias == -math.inf or _within(bias, -1e4, 1e4)),
                "logit_bias",
                f"takes token ids and biases between -10000 and 10000 or -inf, not {token!r}: {bias!r}",
            )
        _require(
            self.seed is None or (_is_count(self.seed, 0) and self.seed < 2**64),
            "seed",
            f"must be a whole number between 0 and 2**64 - 1, not {self.seed!r}",
        )
        _require(
            isinstance(self.stop, tuple) and all(isinstance(text, str) and text for text in self.stop),
            "stop",
            f"must be a tuple of non-empty strings, not {self.stop!r}",
        )

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the chosen token is just the argmax of the logits."""
        return self.temperature == 0 and not self.changes_logits

    @property
    def changes_logits(self) -> bool:
        return self.weighs_text or bool(self.logit_bias)

    @property
    def weighs_text(self) -> bool:
        """Whether logits are changed by the tokens before them."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _within(value: object, low: float, high: float) -> bool:
    """Whether a number lies in [low, high]; NaN does not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
