"""The contracts that decoding is made of. A new drafter or policy is one file that implements one of them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stridelm.stepper import MaskPriors, OwnPlan, Stepper
from stridelm.types import Array, Block, Commit, DraftTree, GrownTree, Output, Rows, Sequence

if TYPE_CHECKING:
    import numpy as np

    from stridelm.cache.kv_cache import KVCache, Table
    from stridelm.sampling import Drawer


class Grammar(Protocol):
    """What one answer must match. Seen from outside, a pure function of the tokens written: after a longer path, a
    shorter one may be asked about and gets its own result. It never raises, since drafters ask about paths that the
    answer never takes: if it cannot tell, it allows nothing, and a draw for the answer itself fails there."""

    def allowed(self, written: Items[int]) -> np.ndarray:
        """V booleans: which tokens may follow these tokens of the answer, including tokens that end it. Nothing may
        follow an end, or a token that was not allowed."""
        ...

    def accepts(self, written: Items[int], tokens: Items[int]) -> int:
        """How many of these tokens may follow in a row: the same as asking `allowed` for each in turn, but faster."""
        ...


class Gate(Protocol):
    """What lets a step hold masks, and reads their outputs. Shape letters: X chains, C model width, S state of the
    sequential head, N tokens, V vocabulary."""

    @property
    def k(self) -> int:
        """Tokens that a pass may propose: one more than there are masks in a chain."""
        ...

    @property
    def tail(self) -> int:
        """T: number of places behind the last mask of a chain of k - 1 that its output proposes, too."""
        ...

    @property
    def prior(self) -> MaskPriors | None:
        """How likely its drafts are accepted, if its conversion says so; None: what the package knows of drafts."""
        ...

    def foretell(self, hidden_C: Array) -> Array:
        """The outputs for these places, T x C, from the last mask's. Not called if there are none."""
        ...

    @property
    def state_size(self) -> int:
        """S; 0 if there is no sequential head, and then none of the next three is called."""
        ...

    def start(self, chains: int) -> Array:
        """The sequential head's states before it has read anything: X x S zeros."""
        ...

    def read(self, hidden_XC: Array, before: list[int], state_XS: Array) -> tuple[Array, Array]:
        """The sequential head at one depth: what it adds to these masks' outputs (X x C), given the tokens `before`
        them, and its new states."""
        ...

    def moved(self, tokens_N: Array, logits: Array, added: Array) -> Array:
        """The logits (... x N; rows may share memory) of these tokens after the sequential head has added `added`
        (... x C) to a mask's output."""
        ...

    def score(self, hidden_XC: Array) -> Array:
        """The logits of masks that were deferred, in float32."""
        ...

    def top(self, logits_V: Array, count: int) -> tuple[Array, Array]:
        """The `count` likeliest tokens, in any order, and their logits."""
        ...

    def grow(self, logits_DV: Array, hidden_DC: Array, state_1S: Array | None, growth: Growth) -> GrownTree | None:
        """A whole tree of one text in one call, the same as TreeGrower's; None if the backend has nothing faster."""
        ...


@dataclass(frozen=True, slots=True)
class Growth:
    """How a tree is grown from masks."""

    sequence: Sequence
    """Its draws depend on nothing else than their positions: no grammar, no penalties."""
    candidates: int
    """Number of likeliest tokens per position among which its drafts are chosen."""
    branches: int
    """Maximum number of children per node, and of nodes per depth that get children."""
    floor: float
    """Nodes less likely to be accepted than this are left out."""


class Heads(Protocol):
    """Prediction heads on the output head's input. Shape letters: X rows, H heads, C model width."""

    @property
    def k(self) -> int:
        """Tokens that a pass may propose: one more than there are heads."""
        ...

    def __call__(self, hidden_XC: Array) -> Array:
        """The output head's inputs for the tokens to come: X x H x C. Float32 gives float32."""
        ...


class Assistant(Protocol):
    """A small network that drafts from what the target has computed: it reads keys and values from the target's cache.
    Shape letters: X texts, C the target's width, V vocabulary."""

    def __call__(self, tokens: list[int], hidden_XC: Array, tables: list[Table]) -> tuple[Array, Array]:
        """Logits after these tokens, in float32 (X x V), and the hidden states to pass with the next token (X x C).

        `tokens`: each text's newest token, or its latest draft. `hidden_XC`: the target's output head's input that gave
        the newest token, or the state returned with the draft. `tables`: the target's; they hold all but the newest
        token."""
        ...

    def reading(self, forward: Forward) -> Assistant:
        """The same weights for another cache of the target."""
        ...


class Forward(Protocol):
    """A model with a cache of its own. All its arrays are numpy's, or all are torch's."""

    @property
    def cache(self) -> KVCache: ...

    @property
    def gate(self) -> Gate | None:
        """What lets its steps hold masks."""
        ...

    @property
    def width(self) -> int:
        """The model's: C."""
        ...

    @property
    def layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def longest(self) -> int:
        """Number of positions that the model has."""
        ...

    @property
    def backend(self) -> str:
        """What runs it: "torch", "native" or "gpu"."""
        ...

    @property
    def identity(self) -> tuple[object, ...]:
        """What its speed depends on besides the weights: the key of a stored measurement. Only their `repr` counts."""
        ...

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        """Append the rows to the cache and return, per block, the outputs of its wanted rows. The arrays belong to the
        caller: drafters keep some for later steps, and no later call may write into them."""
        ...

    def with_cache(self, tokens: int) -> Forward:
        """The same weights with another, empty cache."""
        ...

    def score(self, hidden_XC: Array) -> Array:
        """The output head outside of a step, in float32: X x V."""
        ...

    def zeros(self, rows: int) -> Array:
        """`rows` rows for `score`, to time it with."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all its work."""
        ...

    def stepper(self, drafts: int, places: int, ends: frozenset[int]) -> Stepper | None:
        """Steps that the backend runs by itself, with up to `drafts` drafts and `places` texts; always the same stepper
        for the same arguments. None if the host takes part in every step. `ends`: tokens that end a text. One that
        plans its steps by itself does so for any number of drafts."""
        ...


class Drafter(Protocol):
    """Proposes continuations. May propose nothing; is never trusted.

    One that reads the target's keys and values finds them where the engine does: in the target's cache, by way of
    `sequence.table`.
    """

    name: str
    layers: tuple[int, ...]
    """The layers of the target whose inputs it wants to see in `observe`; empty for most. The target's number of layers
    stands for its output head, whose input is the last norm's output."""
    reads_whole_texts: bool
    """Whether it must see every token of a text in `observe`. If not, a text may start from a cached prefix of another
    one, and its first tokens are never run."""
    is_optional: bool
    """Whether `auto` may do without it: if a backend runs whole steps by itself, with drafts from masks only, such
    steps are worth more than what this drafter proposes."""
    reads_predictions: bool
    """Whether it drafts from `Sequence.prediction`."""

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]: ...

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """Learn from a step: what was run, what the model said, what was accepted. Called after the commits are part of
        the sequences."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended, or is read again from its start: forget it."""
        ...


class Policy(Protocol):
    """Decides the rows of a step and which of its tokens are accepted. Compared by identity and weakly referable: the
    engine keeps counts per policy."""

    exact: bool
    needed_rows: int
    """Rows beyond the pending ones that a step must have room for, as far as the answer may still grow."""
    spare_rows: int
    """Rows beyond the pending ones that a step can use if there is room for them."""
    reads_whole_texts: bool
    """Whether one of its drafters must see every token of a text."""
    reads_predictions: bool
    """Whether one of its drafters drafts from `Sequence.prediction`; without one a prediction is of no use."""
    own_drafts: int | None
    """Maximum number of drafts from masks in a step that a backend runs by itself; None if the host must plan."""
    own_plan: OwnPlan | None
    """What steps that a backend plans by itself go by; None if the host must plan."""

    def plan(self, sequences: list[Sequence], others: int = 0) -> list[Block]:
        """`others`: rows that the step has besides those of these sequences."""
        ...

    def commit(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], drawer: Drawer = ...
    ) -> list[Commit]:
        """`outputs` holds, per sequence, the model's output for its block's wanted rows. `drawer`: how tokens are drawn
        from them, `sampling.drawer` by default."""
        ...

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None: ...

    def release(self, sequence: Sequence) -> None: ...
