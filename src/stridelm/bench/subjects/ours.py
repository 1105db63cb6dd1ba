"""Our own decoders, all on one loaded model: does what `generate` does, and records each stride and where time goes.

A decoder keeps what it learns (the planner of `auto`, acceptance rates of drafters) from question to question, as in a
server.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stridelm import __version__
from stridelm.api import LanguageModel
from stridelm.bench.records import Answer, Question
from stridelm.bench.subjects import WARM_UP, memory_peak, prompt_of
from stridelm.bench.subjects.phases import HeadCost, watched
from stridelm.params import InputError, SamplingParams
from stridelm.profile import changed_fields, label
from stridelm.settings import PLAIN, DecodeSettings
from stridelm.types import ROOT, Trace


def ours(
    model: LanguageModel, settings: Iterable[DecodeSettings], params: SamplingParams | None = None
) -> list["Ours"]:
    """One subject for each of the settings. Plain decoding, the baseline, comes first, even if it is not among them.
    `params`: greedy by default; the number of tokens is set by each question."""
    params = params or SamplingParams()
    if params.temperature and params.seed is None:
        raise InputError("a bench at a temperature needs a --seed, the same for all subjects")
    head_cost = HeadCost(model.engine.forward)
    return [Ours(model, each, params, head_cost) for each in dict.fromkeys((DecodeSettings(PLAIN), *settings))]


def check_questions(model: LanguageModel, questions: Iterable[Question]) -> None:
    """Check all prompts first: one that the model refuses must not cost the measurements before it."""
    for question in questions:
        try:
            model.encode(prompt_of(question))
        except InputError as error:
            raise InputError(f"{question.suite}, question {question.name}: {error}") from error


class Ours:
    """One decoder with its settings."""

    def __init__(
        self, model: LanguageModel, settings: DecodeSettings, params: SamplingParams, head_cost: HeadCost
    ) -> None:
        self.name = label(settings)
        self.about: dict[str, Any] = {
            "library": "stridelm",
            "version": __version__,
            "decoder": settings.decoder,
            "settings": changed_fields(settings),
            "exact": None,
            "backend": model.engine.forward.backend,
            "exact_to": model.target.description,
        }
        self._model, self._settings, self._params, self._head_cost = model, settings, params, head_cost

    def start(self) -> None:
        """Make the decoder: the cost of forwards is measured now, if it is not known yet."""
        settings = self._model.check(self._settings)
        sequence = self._model.sequence([0], self._params, settings)
        self.about["exact"] = self._model.is_exact(sequence, settings.decoder)

    def warm_up(self) -> None:
        self.ask(WARM_UP)

    def ask(self, question: Question) -> Answer:
        model, params = self._model, replace(self._params, max_tokens=question.max_tokens)
        model.forget()
        started = time.perf_counter()
        sequence = model.sequence(model.encode(prompt_of(question)), params, self._settings)
        sequence.is_traced = True
        with watched(model.engine, sequence) as watch:
            came = [(stride, time.perf_counter()) for stride in model.engine.strides_of(sequence)]
        seconds = time.perf_counter() - started
        strides, stats = [stride for stride, _ in came], sequence.stats
        drafted, accepted = by_depth([stride.trace for stride in strides if stride.trace is not None])
        return Answer(
            tokens=tuple(sequence.output),
            text="".join(stride.text for stride in strides),
            stride_tokens=tuple(len(stride.tokens) for stride in strides),
            stride_seconds=tuple(moment - started for _, moment in came),
            seconds=seconds,
            prompt_tokens=stats.prompt_tokens,
            forwards=stats.forwards,
            own_forwards=stats.own_forwards,
            backend=model.engine.forward.backend,
            rows=stats.rows - (stats.prompt_tokens - stats.reused),
            drafted_by_depth=drafted,
            accepted_by_depth=accepted,
            phases=watch.phases(seconds, self._head_cost),
            memory_peak=memory_peak(),
        )

    def close(self) -> None:
        """Nothing to close: other subjects share the model."""


def by_depth(traces: Iterable[Trace]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By depth, from 1: how many drafts had an accepted parent, and how many were accepted themselves."""
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for trace in traces:
        tree, stood = trace.block.tree, {row - trace.block.pending for row in trace.kept}
        for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
            if parent == ROOT or parent in stood:
                drafted[depth] += 1
                accepted[depth] += node in stood
    depths = range(1, max(drafted, default=0) + 1)
    return tuple(drafted[depth] for depth in depths), tuple(accepted[depth] for depth in depths)
