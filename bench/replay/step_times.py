"""Measures what a step costs, for bench/replay/run.py: forwards by real rows and masks, and what surrounds them.

    python bench/replay/step_times.py [--rounds 30] [--threads 2] [--context 200]
                                      [--json bench/results/replay-times.json]

Forwards by bench/cpu/forward.py. Around a forward: a step of plain decoding beyond its forward. Drafting: per depth,
as whole steps find it. A decision about drafts and masks: the average over answers by `auto`. To be run on a machine
that does nothing else.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu import forward
from bench.measured import machine, script_parser, table, write
from bench.replay.play import LOOK_UP_K
from stridelm import LanguageModel, LoadSettings, SamplingParams
from stridelm import load as load_model
from stridelm.backends.native.forward import NativeForward
from stridelm.backends.native.stepper import NativeStepper
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Shape, Trial
from stridelm.draft.ngram import NgramDrafter
from stridelm.settings import AUTO, PLAIN
from stridelm.types import Sequence

REAL = ("1", "2", "3", "4", "5", "6", "8", "9", "12", "16")
WITH_MASKS = ("1+1", "1+2", "1+3", "1+4", "1+8", "2+2", "3+2", "3+3", "4+3", "5+4", "3+2x3", "4+4x2")
DEFERRED = ("1+4-", "1+8-", "4+3-", "4+4x2-")
"""The output head leaves these masks out: what a second stage for them would have to beat."""
SHAPES = (*REAL, *WITH_MASKS, *DEFERRED)
_PROMPT = "Explain in a few sentences how a bicycle stays upright."
_TOKENS = 128


def beside(model: LanguageModel, rounds: int, context: int) -> dict[str, float]:
    """Milliseconds of all that is no forward: the fields of `StepTimes`."""
    gate, zeros = model.loaded.forward.gate, model.loaded.forward.zeros
    assert gate is not None
    text = Sequence(list(range(context)) * 2, SamplingParams(), Autoregressive(), frozenset(), 4 * context)
    drafter = NgramDrafter(LOOK_UP_K)
    taken = _medians(
        {
            "head": lambda: gate.score(zeros(1)),
            "head on 8": lambda: gate.score(zeros(8)),
            "look-up": lambda: drafter.propose([text]),
        },
        rounds,
    )
    return {
        "around": _around(model, rounds),
        "level": _level(model),
        "head": taken["head"],
        "head_row": (taken["head on 8"] - taken["head"]) / 7,
        "look_up": taken["look-up"],
    }


def _level(model: LanguageModel) -> float:
    """As whole steps find it while they write."""
    return 1e3 * max(stepper.seconds_of_level for stepper in _after_answers(model, "self"))


def decision(model: LanguageModel) -> float:
    """Milliseconds; solving for the worth of masks, once per length of texts, included."""
    return 1e3 * max(stepper.seconds_of_decision for stepper in _after_answers(model, AUTO))


def _after_answers(model: LanguageModel, decoder: str) -> list[NativeStepper]:
    for _ in range(3):
        model.generate(_PROMPT, SamplingParams(max_tokens=_TOKENS), decoder=decoder)
    forward = model.loaded.forward
    assert isinstance(forward, NativeForward)
    return list(forward.steppers)


def _around(model: LanguageModel, rounds: int) -> float:
    """A step of plain decoding less its forward, which is timed in turn with the answers, over as long a text."""
    prompt = len(model.encode(_PROMPT))
    trial = Trial(model.loaded.forward.with_cache(1024), Shape(1, 1, context=prompt + _TOKENS // 2))
    steps: list[float] = []
    forwards: list[float] = []
    for _ in range(max(2, rounds // 6)):
        before = 0.0
        for number, _stride in enumerate(model.stream(_PROMPT, SamplingParams(max_tokens=_TOKENS), decoder=PLAIN)):
            now = time.perf_counter()
            if number > 1:
                steps.append(1e3 * (now - before))
            before = now
        forwards += _times(trial, _TOKENS)
    return max(0.0, statistics.median(steps) - statistics.median(forwards))


def _times(run: Callable[[], object], count: int) -> list[float]:
    found: list[float] = []
    for _ in range(count):
        before = time.perf_counter()
        run()
        found.append(1e3 * (time.perf_counter() - before))
    return found


def _medians(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """They take turns; the first turn warms up."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            taken[name] += _times(run, 4)[1:]
    return {name: statistics.median(times[3:]) for name, times in taken.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """By activations."""
    forwards = forward.measure(options, {"now": Path(__file__).parents[2]})
    found: dict[str, Any] = {}
    for activations in forward.ACTIVATIONS:
        by_shape = forwards[f"now, {activations}"]
        settings = LoadSettings(backend="native", threads=options.threads, activations=activations)
        decided = decision(load_model("smollm2", settings=settings))
        rest = beside(load_model("smollm2", settings=settings), options.rounds, options.context)
        found[activations] = {
            "forwards": {shape: each["median"] for shape, each in by_shape.items()},
            "beside": {name: round(each, 4) for name, each in rest.items()},
            "decision": round(decided, 4),
        }
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=200, help="tokens in the cache")
    options = parser.parse_args(arguments)
    options.shapes, options.activations, options.builds = list(SHAPES), list(forward.ACTIVATIONS), [forward.NATIVE]
    found = measure(options)
    for name in ("forwards", "beside"):
        heads = found[forward.ACTIVATIONS[0]][name]
        print(
            table(
                [name, *heads], [[kind, *(f"{each:.3f}" for each in by[name].values())] for kind, by in found.items()]
            )
        )
    for kind, by in found.items():
        print(f"{kind}: a decision takes {1e3 * by['decision']:.1f} microseconds")
    write(options.json, {"machine": machine(options.threads), "context": options.context, "milliseconds": found})


if __name__ == "__main__":
    main()
