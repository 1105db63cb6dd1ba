"""Judges controllers by replay: how many drafts, where masks hang, when to rest. Recorded answers times measured step
times, in virtual time: the same traces and times give the same figures.

    python bench/replay/run.py [--traces FILE.npz] [--times FILE.json] [--activations int8] [--before-loops]
                               [--json FILE]

    plain                 one token at a time
    best fixed            of all fixed choices, the best one over all texts; and the best one for each text in hindsight
    host                  the host's planner, and without each of its controllers
    expected              bench/replay/expected.py, with what it learned from the other half of the texts
    oracle                knows what will stand: no controller can be faster. With look-up and second choices, too

Figures are tokens per second over plain decoding's, by kind of prompt; the time of reading prompts is left out.
"""

import sys
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import RESULTS, read, script_parser, table, write
from bench.replay.expected import Expected
from bench.replay.oracle import least_milliseconds
from bench.replay.play import Controller, Run, fixed_choices, play
from bench.replay.prior import learn, split
from bench.replay.times import StepTimes, load_times
from bench.replay.todays import ABLATIONS, play_all
from bench.replay.trace import Trace, load
from bench.replay.worth import solve
from stridelm.train.answers import loop_start

TRACES = RESULTS / "replay-traces.npz"
TIMES = RESULTS / "replay-times.json"
ALL = "all"
Runs = list[Run]


def without_loop(trace: Trace) -> Trace:
    """The answer up to the loop that it ends in, if any: small models often end so, and every token of it is foreseen.
    A hundred tokens of it would drown the rest."""
    kept = max(2, loop_start(trace.tokens[trace.prompt_length :]))
    cut = {
        name: getattr(trace, name)[:kept]
        for name in ("sure", "first_tokens_AN", "first_scores_AN", "second_tokens_AN", "second_scores_AN")
    }
    return replace(trace, tokens=trace.tokens[: trace.prompt_length + kept], **cut)


def ways(traces: Items[Trace], times: StepTimes) -> dict[str, Runs]:
    found = {"plain": [play(trace, fixed_choices()["plain"], times) for trace in traces]}
    fixed = {name: [play(trace, each, times) for trace in traces] for name, each in fixed_choices().items()}
    best = max(fixed, key=lambda name: total(fixed[name]).pace)
    found[f"best fixed: {best}"] = fixed[best]
    found["best fixed of each text"] = [
        max(runs, key=lambda run: run.pace) for runs in zip(*fixed.values(), strict=True)
    ]
    found["host"] = play_all(traces, times)
    for name in ABLATIONS:
        found[f"host without {name}"] = play_all(traces, times, (name,))
    found["expected, masks alone"] = held_out(traces, times, lambda *known: Expected(*known, looks_up=False))
    found["expected, look-up alone"] = held_out(traces, times, lambda *known: Expected(*known, drafts_masks=False))
    found["expected"] = held_out(traces, times, Expected)
    found["oracle, masks alone"] = [oracle(trace, times) for trace in traces]
    found["oracle"] = [oracle(trace, times, branches=True, looks_up=True) for trace in traces]
    return found


def held_out(traces: Items[Trace], times: StepTimes, make: Callable[..., Controller]) -> Runs:
    """Each text with what was learned from the other half of them."""
    runs: dict[int, Run] = {}
    for others, own in split(traces):
        prior = learn(others)
        worth = solve(prior, times)
        runs |= {number: play(traces[number], make(prior, worth, times), times) for number in own}
    return [runs[number] for number in sorted(runs)]


def oracle(trace: Trace, times: StepTimes, **more: bool) -> Run:
    return Run(trace.written - 1, least_milliseconds(trace, times, **more))


def total(runs: Iterable[Run]) -> Run:
    summed = Run()
    for run in runs:
        summed.add(run)
    return summed


def figures(traces: Items[Trace], found: dict[str, Runs]) -> dict[str, dict[str, Any]]:
    """By way: tokens per second by kind, and how the speed-ups of single texts are spread."""
    kinds = [*dict.fromkeys(trace.kind for trace in traces), ALL]
    shown: dict[str, dict[str, Any]] = {}
    for way, runs in found.items():
        speed_ups = [run.pace / plain.pace for run, plain in zip(runs, found["plain"], strict=True)]
        by_kind = {
            kind: [run for run, trace in zip(runs, traces, strict=True) if kind in (ALL, trace.kind)] for kind in kinds
        }
        whole = total(runs)
        shown[way] = {
            "tokens_per_second": {kind: round(total(each).pace, 1) for kind, each in by_kind.items()},
            "tenth_text": round(float(np.quantile(speed_ups, 0.1)), 3),
            "worst_text": round(min(speed_ups), 3),
            "tokens_per_step": round(whole.tokens / whole.steps, 3) if whole.steps else None,
        }
    return shown


def speed_ups(shown: dict[str, dict[str, Any]]) -> str:
    """A table: tokens per second of plain decoding, then how many times that."""
    plain = shown["plain"]["tokens_per_second"]
    rows = [["plain, tokens/s", *(f"{pace:.0f}" for pace in plain.values()), "", ""]]
    for way, entry in shown.items():
        if way != "plain":
            cells = [f"{pace / plain[kind]:.2f}" for kind, pace in entry["tokens_per_second"].items()]
            rows.append([way, *cells, f"{entry['tenth_text']:.2f}", f"{entry['worst_text']:.2f}"])
    return table(["", *plain, "a tenth of texts below", "worst text"], rows)


def replay() -> str:
    """For docs/decoding.md."""
    content = read("replay.json")
    times = read(TIMES.name)["milliseconds"][content["activations"]]
    around, decision = times["beside"]["around"], 1e3 * times["decision"]
    beside = f"{around:.2f} ms around the forward of a plain step, {decision:.0f} microseconds per decision"
    about = f"Tokens per second over plain decoding's, {content['activations']}, greedy. Measured: {beside}."
    return f"{speed_ups(content['ways'])}\n\n{about}"


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES, help="made by bench/replay/record.py")
    parser.add_argument("--times", type=Path, default=TIMES, help="made by bench/replay/step_times.py")
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--before-loops", action="store_true", help="cut answers off where they begin to loop")
    options = parser.parse_args(arguments)
    traces = load(options.traces)
    if options.before_loops:
        traces = [without_loop(trace) for trace in traces]
    times = load_times(options.times, options.activations)
    shown = figures(traces, ways(traces, times))
    print(speed_ups(shown))
    about = {"traces": options.traces.name, "times": options.times.name, "activations": options.activations}
    write(options.json, {**about, "before_loops": options.before_loops, "ways": shown})


if __name__ == "__main__":
    main()
