"""Steps that a backend runs by itself: the contract of what runs them, and what goes in and comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stridelm.params import SamplingParams

if TYPE_CHECKING:
    import numpy as np

    from stridelm.types import Alternatives

GREEDY = SamplingParams()


class StepCosts(Protocol):
    """Seconds of a forward, as `decode/cost.py` measures them."""

    @property
    def table(self) -> np.ndarray:
        """By number of real rows, with a short context."""
        ...

    @property
    def masks(self) -> float:
        """Extra for any masks at all."""
        ...

    @property
    def mask_row(self) -> float:
        """Extra per mask row, compared with a real row."""
        ...

    @property
    def context(self) -> float:
        """Extra per row and token of context."""
        ...

    @property
    def sequence(self) -> float:
        """Extra per sequence beyond the first."""
        ...

    @property
    def head(self) -> float:
        """The output head on one row, outside of a forward."""
        ...

    @property
    def head_row(self) -> float:
        """The output head on each further row."""
        ...

    @property
    def level(self) -> float:
        """To draft one depth of a tree from masks."""
        ...


Weights = tuple[float, ...]


class StepPrior(Protocol):
    """How likely drafts are accepted if those before them are: logistic regressions on log-odds."""

    @property
    def ease(self) -> float:
        """How often drafts are accepted, over all texts."""
        ...

    @property
    def scored(self) -> Weights:
        """A constant, then per unit of the score's log-odds, of the text's ease's, per place of the chain that the text
        has passed, per depth."""
        ...

    @property
    def unscored(self) -> Weights:
        """The same without the score, of chains that do not exist yet."""
        ...

    @property
    def found(self) -> Weights:
        """Of what look-up finds: a constant, per logarithm of the match's length, and for a long match."""
        ...

    @property
    def agreed(self) -> Weights:
        """Of a token that masks and look-up both propose: a constant, per log-odds of either's chance."""
        ...

    @property
    def chain_against(self) -> Weights:
        """The same of the masks' token where look-up proposes another."""
        ...

    @property
    def found_against(self) -> Weights:
        """The same of look-up's."""
        ...


@dataclass(frozen=True, slots=True)
class MaskPrior:
    """The part of a `StepPrior` that depends on the masks' conversion; the rest is about look-up."""

    ease: float
    scored: Weights
    unscored: Weights

    def __post_init__(self) -> None:
        numbers = (self.ease, *self.scored, *self.unscored)
        if (len(self.scored), len(self.unscored)) != (5, 4) or not all(map(math.isfinite, numbers)):
            raise ValueError("a prior has an ease and 5 and 4 weights, all finite")
        if not 0 < self.ease < 1:
            raise ValueError(f"a prior's ease is between 0 and 1, not {self.ease!r}")


MaskPriors = tuple[MaskPrior, MaskPrior]
"""Of greedy and of sampled texts."""


def mask_priors(entry: dict[str, dict[str, Any]]) -> MaskPriors:
    """From their JSON. Raises ValueError, KeyError or TypeError if it is damaged."""
    kinds = dict(entry)
    if kinds.keys() != {"greedy", "sampled"}:
        raise ValueError(f"a prior is of greedy and sampled texts, not of {', '.join(kinds)}")
    return _mask_prior(**kinds["greedy"]), _mask_prior(**kinds["sampled"])


def _mask_prior(ease: float, scored: Items[float], unscored: Items[float]) -> MaskPrior:
    return MaskPrior(ease, tuple(scored), tuple(unscored))


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """What a policy asks of steps that a backend plans by itself. Without `costs` nothing is drafted."""

    masks: int = 0
    """Masks of the longest chain; 0: no drafts from masks."""
    nodes: int = 0
    """Maximum number of drafts per step."""
    branches: int = 1
    """Maximum number of children per node that is drafted from masks, and of nodes per depth that get children."""
    look_up: int = 0
    """Maximum number of drafts from look-up in the text; 0: none."""
    follow: int = 0
    """Maximum number of drafts from the request's prediction; 0: none."""
    costs: StepCosts | None = None
    priors: tuple[StepPrior, StepPrior] | None = None
    """Of greedy and of sampled texts; given with `costs`."""


PLAIN_PLAN = OwnPlan()


@dataclass(frozen=True, slots=True)
class Continuation:
    """A text that a place of a stepper continues."""

    cached: int
    """Number of its tokens in the cache."""
    pending: int
    """Its last token, which is not in the cache yet."""
    room: int
    """Maximum number of tokens that may still be written."""
    blocks: Items[int]
    """The cache's blocks that belong to the text."""
    params: SamplingParams = GREEDY
    """Only fields that the stepper obeys; a sequence that sets others takes the host's steps."""
    seed: int = 0
    choice: int = 0
    tokens: Items[int] = ()
    """The whole text; this and what follows is for a stepper that plans."""
    prompt_length: int = 0
    prediction: Items[int] = ()
    plan: OwnPlan = PLAIN_PLAN
    alternatives: int = 0
    """Likeliest tokens that may be reported for each written one."""


@dataclass(frozen=True, slots=True)
class OwnRows:
    """The rows of a step at one place, if its stepper plans: a tree of drafts, and masks."""

    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    """The drafter of each node."""
    anchors: tuple[int, ...] = ()
    masks: int = 0
    """Per anchor."""


@dataclass(slots=True)  # frozen, it takes three times as long to create, and a rollout has a thousand per step
class Emitted:
    """What one step wrote at one place."""

    tokens: tuple[int, ...]
    confidence: tuple[float, ...]
    """The model's own probability of each."""
    drafts: tuple[int, ...] = ()
    """The drafts that the step verified; the first step of a text has none yet."""
    path: tuple[int, ...] = ()
    """The drafts that were accepted. Only with `rows`: otherwise drafts are a chain."""
    rows: OwnRows | None = None
    """None if all steps have the same rows: a chain of drafts, with masks off every row."""
    scores: tuple[float, ...] = ()
    """How likely the stepper found each draft, if its parent is accepted; empty if it does not report that."""
    alternatives: tuple[Alternatives, ...] = ()
    """Per token, if the text asked for them and the stepper reports them."""


class Stepper(Protocol):
    """Runs whole steps by itself: forward, draws, walk, compaction of the cache, next drafts. A step is over a number
    of places, each of which holds one text; the host launches them, and may be some steps behind. Either all steps have
    one shape, and the host chooses among steppers; or the stepper plans: each of its steps has the rows that pay.

    The caller keeps the cache's books: a step writes `rows` tokens behind those that its text has in the cache, and
    keeps the first of them, as many as it emits tokens. Steps, and everything else that the model runs, happen in the
    order in which they were launched.
    """

    obeys: frozenset[str]
    """Fields of SamplingParams and of Sequence that its steps obey. A sequence that sets any other field takes the
    host's steps."""
    max_in_flight: int
    """Maximum number of steps that are launched and not collected."""

    plans: bool
    """Whether it chooses drafts and masks of each step by itself, by the text's `OwnPlan`."""

    @property
    def drafts(self) -> int:
        """Maximum number of tokens that a step emits, less one."""
        ...

    @property
    def places(self) -> int: ...

    @property
    def rows(self) -> int:
        """Rows per place that must have room in the cache. A stepper that plans uses fewer if there is less room."""
        ...

    @property
    def seconds(self) -> float | None:
        """Seconds per step, over short texts. Measure while all places are free: timing runs real steps. None if it
        plans."""
        ...

    def begin(self, place: int, text: Continuation) -> None:
        """Put a text into a place, from the next launch on. Draws are those of `sampling.draw`."""
        ...

    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        """All blocks that the text has now."""
        ...

    def end(self, place: int) -> None:
        """Free a place."""
        ...

    def launch(self, waiting: Items[int] = ()) -> None:
        """Start a step of all places but the `waiting` ones, whose texts go on in a later step. Only a stepper that
        plans can leave places out."""
        ...

    def collect(self) -> list[Emitted]:
        """Wait for the earliest step in flight; returns what it wrote at each place."""
        ...

    def forget(self) -> None:
        """Free all places and drop what is in flight, also after a launch or collect that failed."""
        ...
