"""Steps that the kernels run by themselves (steps.h): forward, draws, walk, compaction, drafts and their plan in one
call, without the interpreter's lock."""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from ctypes import c_double
from functools import lru_cache
from typing import Any

import numpy as np

from stridelm.backends.native.gate import NativeGate, bias_arrays
from stridelm.backends.native.library import (
    PRIOR_SIZES,
    Costs,
    DrawRules,
    MaskParts,
    PlanRules,
    Prior,
    Sheets,
    TextStart,
    library,
)
from stridelm.backends.native.memory import NativeMemory
from stridelm.backends.native.weights import Weights, address
from stridelm.sampling import noise_key
from stridelm.settings import LARGEST_TREE
from stridelm.stepper import Continuation, Emitted, OwnPlan, OwnRows, StepPrior
from stridelm.types import MASKS, PREDICTION

_ROWS = 64
"""Rows that a text must have room for. Wider plans are cut to the room that there is."""
_HEADER = 5
_ALTERNATIVES = 8
"""Maximum number of likeliest tokens that are reported for each."""
_SOURCES = (MASKS, "ngram", PREDICTION)
"""As numbered in draft_tree.h."""


class NativeStepper:
    """Implements `stepper.Stepper`. Steppers of one model share weights and cache."""

    plans = True
    max_in_flight = 1
    seconds = None
    obeys = frozenset({
        *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "choice", "eos_ids", "is_traced"),
        *("logit_bias", "prediction"),
    })  # fmt: skip

    def __init__(
        self,
        weights: Weights,
        memory: NativeMemory,
        gate: NativeGate | None,
        places: int,
        ends: frozenset[int],
        longest: int,
    ) -> None:
        self.places, self.drafts, self.rows = places, LARGEST_TREE, _ROWS
        self._masks = MaskParts() if gate is None else gate.parts
        self._steps: int | None = None
        self._kept = weights, memory, gate  # the kernels point into their memory
        self._free = library().stride_free_steps
        ends_E = np.array(sorted(ends), np.int64)
        self._steps = library().stride_steps(
            weights.model, memory.cache, self._masks, address(ends_E), len(ends_E), places, longest
        )
        draws = self.drafts + 1
        integers = _HEADER + 2 * draws + 3 * self.drafts + draws + draws * _ALTERNATIVES
        self._integers = np.zeros((places, integers), np.int32)
        self._probabilities = np.zeros((places, draws + self.drafts + draws * _ALTERNATIVES))
        self._sheets = Sheets(
            *(self._integers.shape[1], self._probabilities.shape[1]),
            *(address(self._integers), address(self._probabilities)),
        )
        self._alternatives = [0] * places
        self._waiting = np.empty(0, np.int64)
        self._vocabulary = weights.vocabulary
        self._is_launched = False

    def __del__(self) -> None:
        self._free(self._steps)

    @property
    def seconds_of_level(self) -> float:
        """That drafting one depth of a tree from masks takes in a step; 0 before there was a text with drafts."""
        return library().stride_seconds_of_level(self._steps)

    @property
    def seconds_of_decision(self) -> float:
        """That deciding about one text's next drafts and masks takes, drafting apart: the average of all so far."""
        return library().stride_seconds_of_decision(self._steps)

    def begin(self, place: int, text: Continuation) -> None:
        params = text.params
        tokens, blocks, prediction = (np.array(each, np.int32) for each in (text.tokens, text.blocks, text.prediction))
        for ids in (tokens, prediction):
            assert not len(ids) or 0 <= ids.min() <= ids.max() < self._vocabulary, "no such token"
        biased_N, biases_N = bias_arrays(params)
        self._alternatives[place] = min(text.alternatives, _ALTERNATIVES, self._vocabulary)
        start = TextStart(
            *(text.cached, text.room, len(tokens), text.prompt_length, len(blocks), len(prediction)),
            self._alternatives[place],
            *(address(tokens), address(blocks), address(prediction)),
            *(len(biased_N), address(biased_N), address(biases_N)),
            DrawRules(params.temperature, params.top_p, params.min_p, params.top_k, noise_key(text.seed, text.choice)),
            _rules(text.plan),
        )
        library().stride_begin(self._steps, place, start)

    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        all_blocks = np.array(blocks, np.int32)
        library().stride_give_blocks(self._steps, place, address(all_blocks), len(all_blocks))

    def end(self, place: int) -> None:
        library().stride_end(self._steps, place)

    def launch(self, waiting: Items[int] = ()) -> None:
        """The step runs when it is collected: its threads use all cores, so that the host would gain nothing."""
        assert not self._is_launched
        self._is_launched = True
        self._waiting = np.array(waiting, np.int64)

    def collect(self) -> list[Emitted]:
        assert self._is_launched
        self._is_launched = False
        library().stride_run_step(self._steps, self._sheets, address(self._waiting), len(self._waiting))
        return [self._emitted(place) if count else Emitted((), ()) for place, count in enumerate(self._integers[:, 0])]

    def _emitted(self, place: int) -> Emitted:
        count, accepted, nodes, anchors, masks = self._integers[place, :_HEADER].tolist()
        likeliest = count * self._alternatives[place]
        tokens, path, drafts, parents, sources, anchored, best = _cut(
            self._integers[place, _HEADER:], (count, accepted, nodes, nodes, nodes, anchors, likeliest)
        )
        confidence, scores, its = _cut(self._probabilities[place], (count, nodes, likeliest))
        rows = _rows(parents, sources, anchored, masks)
        emitted = Emitted(tokens, confidence, drafts, path, rows, scores)
        if likeliest:
            pairs = [zip(best, its, strict=True)] * self._alternatives[place]  # one iterator: it goes on
            emitted.alternatives = tuple(zip(*pairs, strict=True))
        return emitted

    def forget(self) -> None:
        self._is_launched = False
        for place in range(self.places):
            self.end(place)


def _cut(values: np.ndarray, sizes: Items[int]) -> Iterator[tuple[Any, ...]]:
    """The first of these values, in parts."""
    listed, at = values[: sum(sizes)].tolist(), 0
    for size in sizes:
        yield tuple(listed[at : at + size])
        at += size


def _rules(plan: OwnPlan) -> PlanRules:
    if plan.costs is None or plan.priors is None:
        return PlanRules()
    costs, table = plan.costs, plan.costs.table
    assert table.dtype == np.float64, "the kernels read doubles"
    numbers = (costs.masks, costs.mask_row, costs.context, costs.sequence, costs.head, costs.head_row, costs.level)
    return PlanRules(
        *(plan.masks, plan.nodes, plan.branches, plan.look_up, plan.follow),
        Costs(address(table), len(table) - 1, *numbers),
        (Prior * 2)(*map(prior_of, plan.priors)),
    )


def prior_of(prior: StepPrior) -> Prior:
    weights = ((c_double * size)(*getattr(prior, name)) for name, size in PRIOR_SIZES.items())
    return Prior(prior.ease, *weights)


@lru_cache(maxsize=4096)
def _rows(parents: tuple[int, ...], sources: tuple[int, ...], anchors: tuple[int, ...], masks: int) -> OwnRows:
    return OwnRows(parents, tuple(_SOURCES[source] for source in sources), anchors, masks)
