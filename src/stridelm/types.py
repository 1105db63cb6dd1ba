"""The nouns of StrideLM. Logic is elsewhere; nothing here imports torch, so that the command line starts at once."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

from stridelm.params import SamplingParams
from stridelm.stats import Stats, path_in_words

if TYPE_CHECKING:
    import numpy as np

    from stridelm.cache.kv_cache import Table
    from stridelm.contracts import Grammar, Policy

Array = Any
"""A numpy array or a torch tensor, whichever the backend hands out: see stridelm.arrays. A union of the two would make
every operator an error to a type checker, so names carry the shape and nothing carries the kind."""

FinishReason = Literal["stop", "length"]
"""`stop`: an end-of-text token or a stop string; `length`: `max_tokens` or the context is used up."""

ROOT = -1
"""The parent of a row that hangs off the cached prefix, or of a draft that hangs off the last pending row."""


MASKS = "self"
"""The name of drafts that come from masks."""
PREDICTION = "prediction"
"""The name of drafts that come from a sequence's prediction."""


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
    sources: tuple[str, ...] = ()
    """The drafter of each node."""
    scores: tuple[float, ...] = ()
    """Per node, its drafter's estimate of the probability that it is accepted if its parent is: 0 to 1. Empty if a
    backend drafted by itself, which reports no scores."""

    @classmethod
    def chain(cls, tokens: Items[int], source: str, scores: Items[float] | None = None) -> DraftTree:
        return cls.of(tokens, range(ROOT, len(tokens) - 1), source, scores)

    @classmethod
    def of(cls, tokens: Items[int], parents: Items[int], source: str, scores: Items[float] | None = None) -> DraftTree:
        """A tree of one drafter; without scores, all of them are 1."""
        count = len(tokens)
        return cls(tuple(tokens), tuple(parents), (source,) * count, tuple(scores or (1.0,) * count))

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
        """The first `nodes` nodes, without those deeper than `depth`."""
        if not self.tokens or len(self.tokens) <= min(depth, nodes):
            return self  # no node is deeper than there are nodes
        return self.only([node for node, node_depth in enumerate(self.depths) if node_depth <= depth][:nodes])

    def only(self, kept: list[int]) -> DraftTree:
        """Only these nodes. They are in rising order, and every node's parent is among them."""
        renamed = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
        return DraftTree(
            tuple(self.tokens[node] for node in kept),
            tuple(renamed[self.parents[node]] for node in kept),
            tuple(self.sources[node] for node in kept),
            tuple(self.scores[node] for node in kept),
        )


NO_DRAFT = DraftTree()


@dataclass(frozen=True, slots=True)
class GrownTree:
    """A tree that a backend grew from masks in one call."""

    tree: DraftTree
    buds: list[int]
    """Nodes, or ROOT, that the sequential head has read."""
    states_BS: Array
    """Its states after reading them."""


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
    """Number of pending rows, which come first: tokens of the text that are not in the cache yet."""
    tree: DraftTree = NO_DRAFT
    """What the rows after the pending ones propose; node i is row pending + i."""
    mask_anchors: tuple[int, ...] = ()
    """The nodes, or ROOT for the last pending row, that a chain of masks hangs off; behind the tree, in this order."""
    masks: int = 0
    """Mask rows per chain."""
    defers_masks: bool = False
    """The output head does not run on the masks in this step: `Gate.score` computes logits of some of them later."""
    layers: tuple[int, ...] = ()
    """The layers whose input is wanted, for all rows; the number of layers stands for the output head."""

    def __len__(self) -> int:
        return len(self.tokens)

    def mask_outputs(self, anchor: int) -> slice:
        """An anchor's mask rows among the wanted rows: the last pending row and the tree's rows come before them."""
        first = 1 + len(self.tree) + self.mask_anchors.index(anchor) * self.masks
        return slice(first, first + self.masks)


@dataclass(frozen=True, slots=True)
class Rows:
    """The blocks of one step, packed. Q rows in all, W of them with logits wanted, M of them masks."""

    ids_Q: np.ndarray
    positions_Q: np.ndarray
    parents_Q: np.ndarray
    """Every row's parent among the Q; -1 for the cached prefix."""
    starts: tuple[int, ...]
    segments: tuple[slice, ...]
    """Each block's rows among the Q."""
    ancestors: tuple[np.ndarray, ...]
    """Per block, a q x q matrix: row i sees row j of its own block."""
    wanted_W: np.ndarray
    wanted_segments: tuple[slice, ...]
    """Each block's part of the W."""
    scored_segments: tuple[slice, ...]
    """The same without deferred masks: the rows that the output head runs on."""
    mask_rows_M: np.ndarray
    """The mask rows among the Q."""
    mask_depths_M: np.ndarray
    """How many masks are among a mask row's ancestors, itself included."""
    layers: tuple[int, ...] = ()
    """The layers whose input any of the blocks wants."""


@dataclass(frozen=True, slots=True)
class Output:
    """The model's output for a block's W wanted rows."""

    logits_WV: Array
    """Without those of deferred masks, which come last."""
    hidden_WC: Array | None = None
    """The output head's input; only from steps with masks."""
    layers_qC: Mapping[int, Array] = field(default_factory=dict)
    """Layer -> its input, for all rows of the block, for the layers that were asked for. The number of layers stands
    for the output head."""
    log_sums_W: Array | None = None
    """Log-sum-exp of each row of logits, if the backend has computed it anyway."""


Alternatives = tuple[tuple[int, float], ...]
"""The likeliest tokens at one position, best first, each with the model's own probability of it."""


@dataclass(slots=True)  # frozen, it takes three times as long to create, and every sequence gets one per step
class Commit:
    """What one step decided for one sequence."""

    kept: tuple[int, ...]
    """The block's rows whose KV stays: the pending ones and the accepted path."""
    tokens: tuple[int, ...] = ()
    """The tokens that the step emits; empty while a prompt is still being read."""
    sources: tuple[str, ...] = ()
    """The source of each token: a drafter's name, or `model`."""
    confidence: tuple[float, ...] = ()
    """The model's own probability of each token, before any filter."""
    finish_reason: FinishReason | None = None
    alternatives: tuple[Alternatives, ...] = ()
    """Per token, the likeliest alternatives; only for sequences that ask for them."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """One answer while it is being written."""

    tokens: list[int]
    """The prompt and the tokens written so far."""
    params: SamplingParams
    policy: Policy
    eos_ids: frozenset[int]
    context_length: int
    choice: int = 0
    """Which of several answers to one prompt; part of the key of the noise."""
    grammar: Grammar | None = None
    """The grammar that the answer must match."""
    alternatives: int = 0
    """Number of likeliest tokens that are reported at every position."""
    optional_alternatives: int = 0
    """The same, but only for steps that the host runs anyway: asking for these does not rule out a backend's own
    steps."""
    prediction: tuple[int, ...] = ()
    """The expected answer, or most of it: drafts for policies that read predictions. Never changes the text."""
    is_traced: bool = False
    """Whether its strides carry a trace of what was run for them."""
    reads_anew: bool = False
    """Read the whole prompt even if the cache holds its beginning: for answers whose times are compared."""
    prompt_length: int = field(init=False)
    most_tokens: int = field(init=False)
    """Maximum number of tokens, prompt and answer together."""
    seed: int = field(init=False)
    cached: int = 0
    """Number of its tokens in the KV cache; the rest are pending."""
    allowance: int = 0
    """Number of pending rows that the scheduler lets into this step."""
    arrival: int = 0
    """Its number in the order of arrival."""
    is_held: bool = False
    """Left out of steps for now: its client does not read what it writes."""
    table: Table | None = None
    stats: Stats = field(default_factory=Stats)
    finish_reason: FinishReason | None = None
    stopped_by: str | None = None
    """The stop string that ended it."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.most_tokens = min(self.prompt_length + self.params.max_tokens, self.context_length)
        self.stats.prompt_tokens = len(self.tokens)
        # 53 bits: every JSON reader can represent them, so that a logged seed can be used again.
        self.seed = secrets.randbits(53) if self.params.seed is None else self.params.seed

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def shares_prefixes(self) -> bool:
        """Whether it may start from keys and values that other sequences with the same beginning have computed."""
        return not (self.reads_anew or self.policy.reads_whole_texts)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether its next token is just the argmax of the logits."""
        return self.grammar is None and self.params.is_plain_greedy

    @property
    def room(self) -> int:
        """How many more tokens may be written."""
        return self.most_tokens - len(self.tokens)


@dataclass(frozen=True, slots=True)
class Stride:
    """What one forward pass added to an answer."""

    tokens: tuple[int, ...]
    text: str
    """The text that is final now: a possible beginning of a stop string, or half a character, is held back."""
    sources: tuple[str, ...]
    confidence: tuple[float, ...]
    finish_reason: FinishReason | None = None
    alternatives: tuple[Alternatives, ...] = ()
    """Per token; only if the sequence asks for them."""
    drafted: int = 0
    """How many drafts the pass verified."""
    predicted: int = 0
    """How many of these came from the sequence's prediction."""
    trace: Trace | None = None
    """Only if the sequence asks for it."""
    is_own: bool = False
    """Whether the backend ran the pass by itself."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one forward pass ran for a sequence, and what was accepted."""

    block: Block
    kept: tuple[int, ...]
    """The rows of the block that were kept: the pending ones and the accepted path."""


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
    backend: str
    """As `Forward.backend` names it."""
    stats: Stats
    strides: tuple[Stride, ...]

    @property
    def path(self) -> str:
        """What ran: the backend, and whose steps; as in `gpu, own steps`."""
        return path_in_words(self.backend, self.stats.forwards, self.stats.own_forwards)
