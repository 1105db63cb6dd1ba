"""The nouns of StrideLM. Logic lives elsewhere; nothing here imports torch, so that the command line starts at once."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import torch

    from stridelm.contracts import Policy
    from stridelm.model.kv_cache import Table

FinishReason = Literal["stop", "length"]
"""`stop`: an end-of-text token or a stop string; `length`: `max_tokens` or the context is used up."""

ROOT = -1
"""The parent of a row that hangs off the cached prefix, or of a draft that hangs off the last pending row."""


class InputError(ValueError):
    """Something a user gave that cannot be used. The message says what, where and what to do instead."""


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from logits, and when to stop."""

    max_tokens: int = 256
    """The most tokens to write."""
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
            _is_count(self.max_tokens, 1), f"max_tokens must be a whole number of at least 1, not {self.max_tokens!r}"
        )
        _require(
            self.temperature == 0 or _within(self.temperature, 1e-4, 100),
            f"temperature must be 0 (greedy) or between 0.0001 and 100, not {self.temperature!r}",
        )
        _require(_within(self.top_p, 1e-6, 1), f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        _require(
            _is_count(self.top_k, 0), f"top_k must be a whole number of at least 0 (0 keeps all), not {self.top_k!r}"
        )
        _require(_within(self.min_p, 0, 1), f"min_p must be between 0 and 1, not {self.min_p!r}")
        _require(
            _within(self.repetition_penalty, 1e-2, 100),
            f"repetition_penalty must be between 0.01 and 100 (1 is off), not {self.repetition_penalty!r}",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(_within(value, -100, 100), f"{name} must be between -100 and 100 (0 is off), not {value!r}")
        for token, bias in self.logit_bias.items():
            _require(
                _is_count(token, 0) and (bias == -math.inf or _within(bias, -1e4, 1e4)),
                f"logit_bias takes token ids and biases between -10000 and 10000 or -inf, not {token!r}: {bias!r}",
            )
        _require(
            self.seed is None or (_is_count(self.seed, 0) and self.seed < 2**64),
            f"seed must be a whole number between 0 and 2**64 - 1, not {self.seed!r}",
        )
        _require(
            isinstance(self.stop, tuple) and all(isinstance(text, str) and text for text in self.stop),
            f"stop must be a tuple of non-empty strings, not {self.stop!r}",
        )

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the chosen token is just the argmax of the logits."""
        return self.temperature == 0 and not self.changes_logits

    @property
    def changes_logits(self) -> bool:
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty or self.logit_bias)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _within(value: object, low: float, high: float) -> bool:
    """Whether a number lies in [low, high]; NaN does not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


class RowKind(IntEnum):
    """What a row is. Carried with the row, never inferred from the token id."""

    REAL = 0
    """A token of the text, committed or proposed."""
    MASK = 1
    """Asks what comes next. Its embedding is the adapter's, so its token id is never looked up."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Proposed continuations of one sequence: node i holds a token and its parent node, a smaller index or ROOT."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    source: str = ""
    """The name of the drafter."""

    @classmethod
    def chain(cls, tokens: list[int], source: str) -> DraftTree:
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), source)

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` (or of ROOT) that holds `token`."""
        for index, (parent, held) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if parent == node and held == token:
                return index
        return None

    @property
    def depths(self) -> list[int]:
        """Every node's depth, the first level being 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def pruned(self, depth: int, nodes: int) -> DraftTree:
        """The first so many nodes, without those deeper than `depth`."""
        kept = [node for node, node_depth in enumerate(self.depths) if node_depth <= depth][:nodes]
        renamed = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
        return DraftTree(
            tuple(self.tokens[node] for node in kept),
            tuple(renamed[self.parents[node]] for node in kept),
            self.source,
        )


NO_DRAFT = DraftTree()


@dataclass(frozen=True, slots=True)
class Block:
    """One sequence's rows of one step: a chain of pending rows, a tree that hangs off the last of them, and chains of
    masks that hang off either."""

    start: int
    """How many tokens of the sequence are in the cache: the position of row 0."""
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    """The parent row in this block, a smaller index, or ROOT for the cached prefix."""
    kinds: tuple[RowKind, ...]
    wanted: tuple[int, ...]
    """The rows whose logits are wanted."""
    pending: int
    """The first so many rows are tokens of the text that are not in the cache yet."""
    tree: DraftTree = NO_DRAFT
    """What the rows after the pending ones propose; node i is row pending + i."""
    mask_anchors: tuple[int, ...] = ()
    """The nodes, or ROOT for the last pending row, that a chain of masks hangs off; behind the tree, in this order."""
    masks: int = 0
    """Mask rows per chain."""

    def __len__(self) -> int:
        return len(self.tokens)

    def mask_outputs(self, anchor: int) -> slice:
        """An anchor's mask rows among the wanted ones: the last pending row and the tree's come before them."""
        first = 1 + len(self.tree) + self.mask_anchors.index(anchor) * self.masks
        return slice(first, first + self.masks)


@dataclass(frozen=True, slots=True)
class Rows:
    """The blocks of one step, packed. Q rows in all, W of them with logits wanted, M of them masks."""

    ids_Q: np.ndarray
    positions_Q: np.ndarray
    starts: tuple[int, ...]
    segments: tuple[slice, ...]
    """Each block's rows among the Q."""
    ancestors: tuple[np.ndarray, ...]
    """Per block, a q x q matrix: row i sees row j of its own block."""
    wanted_W: np.ndarray
    wanted_segments: tuple[slice, ...]
    """Each block's part of the W."""
    mask_rows_M: np.ndarray
    """The mask rows among the Q."""
    mask_depths_M: np.ndarray
    """How many masks are among a mask row's ancestors, itself included."""


@dataclass(frozen=True, slots=True)
class Output:
    """What the model says of a block's W wanted rows."""

    logits_WV: torch.Tensor
    hidden_WC: torch.Tensor | None = None
    """What the output head read; only from steps that hold masks."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What one step decided for one sequence."""

    kept: tuple[int, ...]
    """The block's rows whose KV stays: the pending ones and the accepted path."""
    tokens: tuple[int, ...] = ()
    """The tokens that the step emits; empty while a prompt is still being read."""
    sources: tuple[str, ...] = ()
    """Who proposed each token: a drafter's name, or `model`."""
    confidence: tuple[float, ...] = ()
    """The model's own probability of each token, before any filter."""
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Stats:
    """What an answer cost. Times are seconds of a monotonic clock."""

    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float | None = None
    prompt_tokens: int = 0
    tokens: int = 0
    forwards: int = 0
    """Forward passes that emitted tokens: plain decoding has exactly one per token."""
    prefill_forwards: int = 0
    """Forward passes that only read a part of the prompt."""
    rows: int = 0
    """Rows that this sequence put through the model, the prompt's included."""
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def ttft(self) -> float:
        """Seconds from the request to its first token."""
        return (self.first_token or self.started) - self.started

    @property
    def latency(self) -> float:
        """Seconds from the request to its last token."""
        return (self.last_token or self.started) - self.started

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.latency if self.latency else 0.0


@dataclass(eq=False, slots=True)
class Sequence:
    """One answer in the making."""

    tokens: list[int]
    """The prompt and what was written since."""
    params: SamplingParams
    policy: Policy
    eos_ids: frozenset[int]
    context_length: int
    choice: int = 0
    """Which of several answers to one prompt; part of the key of the noise."""
    prompt_length: int = field(init=False)
    seed: int = field(init=False)
    cached: int = 0
    """How many of the tokens are in the KV cache; the rest are pending."""
    allowance: int = 0
    """How many pending rows the scheduler lets into this step."""
    table: Table | None = None
    stats: Stats = field(default_factory=Stats)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.stats.prompt_tokens = len(self.tokens)
        # 53 bits: what every JSON reader can hold, so that a seed in a log can be given back.
        self.seed = secrets.randbits(53) if self.params.seed is None else self.params.seed

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def room(self) -> int:
        """How many more tokens may be written."""
        written = len(self.tokens) - self.prompt_length
        return min(self.params.max_tokens - written, self.context_length - len(self.tokens))


@dataclass(frozen=True, slots=True)
class Stride:
    """What one forward pass added to an answer."""

    tokens: tuple[int, ...]
    text: str
    """The text that became certain: a stop string's beginning or half a character is held back."""
    sources: tuple[str, ...]
    confidence: tuple[float, ...]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    decoder: str
    seed: int
    exact: bool
    """Whether the tokens are those of one-token-at-a-time decoding with the same settings and seed."""
    exact_to: str
    """The model, precision and device that `exact` speaks of."""
    stats: Stats
    strides: tuple[Stride, ...]
