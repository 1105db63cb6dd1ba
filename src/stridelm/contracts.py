"""The contracts that decoding is made of. A new drafter or policy is one file that keeps one of them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stridelm.params import SamplingParams
from stridelm.types import Array, Block, Commit, DraftTree, Output, Rows, Sequence

if TYPE_CHECKING:
    import numpy as np

    from stridelm.cache.kv_cache import KVCache, Table
    from stridelm.sampling import Drawer


class Grammar(Protocol):
    """What one answer must keep to. Seen from outside, a pure function of the tokens written: who asks for a path and
    then for a shorter one gets what the shorter one allows. It never fails, for drafters ask about paths that the
    answer never takes: where it cannot tell, it allows nothing, and whoever draws there for the answer fails."""

    def allowed(self, written: Items[int]) -> np.ndarray:
        """V booleans: which tokens may follow these tokens of the answer, those that end it among them. Nothing follows
        an end, or what was not allowed."""
        ...

    def accepts(self, written: Items[int], tokens: Items[int]) -> int:
        """How many of these tokens may follow, one behind the other: what `allowed` allows in turn, found quicker."""
        ...


class Gate(Protocol):
    """What lets a step hold masks, and reads their outputs. Shape letters: X chains, C model width, S state of the
    sequential head, N tokens, V vocabulary."""

    @property
    def k(self) -> int:
        """Tokens that a pass may propose: one more than there are masks in a chain."""
        ...

    @property
    def state_size(self) -> int:
        """S; 0 where there is no sequential head, and then none of the next three is asked."""
        ...

    def start(self, chains: int) -> Array:
        """The sequential head's states before it has read anything: X x S zeros."""
        ...

    def read(self, hidden_XC: Array, before: list[int], state_XS: Array) -> tuple[Array, Array]:
        """The sequential head at one depth: what it adds to these masks' outputs, the tokens before them being known
        (X x C), and its states."""
        ...

    def moved(self, tokens_N: Array, logits: Array, added: Array) -> Array:
        """The logits (... x N, rows of which may be one and the same memory) of these tokens once the sequential head
        has added something (... x C) to a mask's output."""
        ...

    def score(self, hidden_XC: Array) -> Array:
        """The logits of masks that were deferred, in float32."""
        ...

    def top(self, logits_V: Array, count: int) -> tuple[Array, Array]:
        """The so many likeliest tokens, in any order, and their logits."""
        ...

    def grow(self, logits_DV: Array, hidden_DC: Array, state_1S: Array | None, greed: Greed) -> GrownTree | None:
        """A whole tree of one text at once, as TreeGrower grows it; None where the backend has nothing quicker."""
        ...


@dataclass(frozen=True, slots=True)
class Greed:
    """How a greedy tree is grown from masks."""

    before: int
    """The text's last token."""
    candidates: int
    """The likeliest tokens of each place, among which its drafts are chosen."""
    branches: int
    """The most children of a node, and the most nodes of a depth that get children."""
    floor: float
    """Nodes less likely to stand than this are left out."""
    bias: Mapping[int, float]
    ends: frozenset[int]
    """Nothing grows behind these tokens."""


@dataclass(frozen=True, slots=True)
class GrownTree:
    tree: DraftTree
    buds: list[int]
    """Nodes, or ROOT, that the sequential head has read."""
    states_BS: Array
    """Its states then."""


class Heads(Protocol):
    """Prediction heads on what the output head reads. Shape letters: X rows, H heads, C model width."""

    @property
    def k(self) -> int:
        """Tokens that a pass may propose: one more than there are heads."""
        ...

    def __call__(self, hidden_XC: Array) -> Array:
        """What the output head is to read instead: X x H x C. Float32 gives float32."""
        ...


class Assistant(Protocol):
    """A small network that drafts from what the target has computed: it reads the target's keys and values where they
    lie. Shape letters: X texts, C the target's width, V vocabulary."""

    def __call__(self, tokens: list[int], hidden_XC: Array, tables: list[Table]) -> tuple[Array, Array]:
        """What may follow these tokens, in float32 (X x V), and what to hand in with the token that is drawn (X x C).

        `tokens`: each text's newest one, or its latest draft. `hidden_XC`: what the target's output head read to give
        the newest one, or what came back with the draft. `tables`: the target's, which hold all but the newest."""
        ...

    def reading(self, forward: Forward) -> Assistant:
        """The same weights for another cache of the target."""
        ...


class Forward(Protocol):
    """A model with a cache of its own. Its arrays are numpy's or torch's, always the same."""

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
        """How many it has."""
        ...

    @property
    def longest(self) -> int:
        """Positions that the model has."""
        ...

    @property
    def backend(self) -> str:
        """What runs it: "torch", "native" or "gpu"."""
        ...

    @property
    def identity(self) -> tuple[object, ...]:
        """What its speed depends on beside the weights: the key of a kept measurement. Of each only `repr` counts."""
        ...

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        """Append the rows to the cache and return, per block, what the model says of its wanted rows. The arrays are
        the caller's: drafters keep some for later steps, and no later call may write into them."""
        ...

    def with_cache(self, tokens: int) -> Forward:
        """The same weights with another, empty cache."""
        ...

    def score(self, hidden_XC: Array) -> Array:
        """The output head outside of a step, in float32: X x V."""
        ...

    def zeros(self, rows: int) -> Array:
        """So many rows for `score`, to time it with."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        ...

    def stepper(self, drafts: int, places: int, ends: frozenset[int]) -> Stepper | None:
        """Steps that the backend runs by itself, with up to `drafts` drafts and `places` texts; always the same stepper
        for the same arguments. None where the host takes part in every step. `ends`: tokens that end a text."""
        ...


GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class Continuation:
    """A text that a place of a stepper goes on with."""

    cached: int
    """So many of its tokens are in the cache."""
    pending: int
    """The token that is not."""
    room: int
    """So many more may be written."""
    blocks: Items[int]
    """Of the cache, that are the text's."""
    params: SamplingParams = GREEDY
    """Those that the stepper obeys; a sequence that sets others takes the host's steps."""
    seed: int = 0
    choice: int = 0


@dataclass(slots=True)  # frozen it takes three times as long to make, and a rollout has a thousand a step
class Emitted:
    """What one step wrote at one place."""

    tokens: tuple[int, ...]
    confidence: tuple[float, ...]
    """The model's own probability of each."""
    drafts: tuple[int, ...] = ()
    """The drafts that the step verified; the first step of a text has none yet."""


class Stepper(Protocol):
    """Runs whole steps by itself: forward, draws, walk, compaction of the cache, next drafts. Steps have one shape,
    over a number of places, each of which holds a text; the host launches them, and may be some steps behind.

    The cache's bookkeeping is the caller's: a step writes `rows` tokens behind those that its text has in the cache,
    and keeps as many of them, the first ones, as it emits tokens. Steps, and whatever else the model runs, happen in
    the order in which they were launched.
    """

    obeys: frozenset[str]
    """Fields of SamplingParams and of Sequence that its steps obey. A sequence that sets any other field takes the
    host's steps."""
    max_in_flight: int
    """Maximum number of steps that are launched and not collected."""

    @property
    def drafts(self) -> int:
        """Maximum number of tokens that a step emits, less one."""
        ...

    @property
    def places(self) -> int: ...

    @property
    def rows(self) -> int:
        """Of one place."""
        ...

    @property
    def seconds(self) -> float:
        """What a step takes, over short texts. Asked while no text has a place."""
        ...

    def begin(self, place: int, text: Continuation) -> None:
        """Let a place go on with a text, from the next launch on. Draws are those of `sampling.draw`."""
        ...

    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        """All blocks that the text has now."""
        ...

    def end(self, place: int) -> None:
        """Free a place."""
        ...

    def launch(self) -> None:
        """Start a step of all places."""
        ...

    def collect(self) -> list[Emitted]:
        """Wait for the earliest step in flight; returns what it wrote at each place."""
        ...

    def forget(self) -> None:
        """Free all places and drop what is in flight, also after a launch or collect that failed."""
        ...


class Drafter(Protocol):
    """Proposes continuations. May propose nothing; is never trusted.

    One that reads the target's keys and values finds them where the engine does: in the target's cache, by way of
    `sequence.table`.
    """

    name: str
    layers: tuple[int, ...]
    """The layers of the target whose inputs it wants to see in `observe`; empty for most. The target's number of layers
    stands for its output head, whose input lies behind the last norm."""
    reads_whole_texts: bool
    """Whether it must see every token of a text in `observe`. If not, a text may begin with what the cache has kept of
    another one, and its first tokens are never run."""
    is_optional: bool
    """Whether `auto` may do without it: where a backend runs whole steps by itself, which has no drafts but those of
    masks, steps without it are worth more than what it proposes."""
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
    """Decides the rows of a step and which of its tokens stand. Known by its identity, and may be referred to weakly:
    the engine counts by it."""

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
    """Maximum number of drafts from masks in a step that a backend runs by itself; None where the host must plan."""

    def plan(self, sequences: list[Sequence], others: int = 0) -> list[Block]:
        """`others`: rows that the step has besides those of these sequences."""
        ...

    def commit(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], drawer: Drawer = ...
    ) -> list[Commit]:
        """`outputs` holds, per sequence, what the model says of its block's wanted rows. `drawer`: how tokens are drawn
        from them, `sampling.drawer` by default."""
        ...

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None: ...

    def release(self, sequence: Sequence) -> None: ...
