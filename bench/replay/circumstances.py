"""What the host's controllers are for, by replay: its planner with each of them switched off, where a step takes other
times than the cost curve says (a busy machine, another one), and where a drafter costs more than a look-up does.

    python bench/replay/circumstances.py [--traces FILE.npz] [--times FILE.json] [--activations int8] [--json FILE]

A controller that gains nothing in any of them has no place in the planner.
"""

import sys
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import read, script_parser, table, write
from bench.replay.play import fixed_choices, play
from bench.replay.run import TIMES, TRACES, total
from bench.replay.times import StepTimes, load_times
from bench.replay.todays import ABLATIONS, play_all
from bench.replay.trace import Trace, load

ROWS = (0.5, 1.0, 2.0, 3.0)
"""What rows beyond the first cost, over what the curve says."""
DRAFTERS = (0.3, 1.0, 3.0)
"""Milliseconds that asking the second drafter takes: a draft model's, say."""
Figures = dict[str, dict[str, float]]
"""By circumstances and controller that is switched off: tokens per second over plain decoding's."""


def with_dearer_rows(times: StepTimes, factor: float) -> StepTimes:
    one = times.real[1]
    real = {rows: one + factor * (each - one) for rows, each in times.real.items()}
    return replace(times, real=real, masks=factor * times.masks, mask_row=factor * times.mask_row)


def circumstances(times: StepTimes) -> dict[str, tuple[StepTimes, StepTimes]]:
    """What the planner thinks that steps take, and what they take."""
    rows = {f"rows cost {factor:g} x the curve's": (times, with_dearer_rows(times, factor)) for factor in ROWS}
    asked = {each: replace(times, look_up=each) for each in DRAFTERS}
    return rows | {f"a second drafter of {each:g} ms": (changed, changed) for each, changed in asked.items()}


def measure(traces: Items[Trace], times: StepTimes) -> Figures:
    found: Figures = {}
    for name, (thought, real) in circumstances(times).items():
        plain = total(play(trace, fixed_choices()["plain"], real) for trace in traces).pace
        without: Iterable[tuple[str, ...]] = ((), *((each,) for each in ABLATIONS))
        found[name] = {
            ", ".join(ablated): round(total(play_all(traces, thought, ablated, real)).pace / plain, 3)
            for ablated in without
        }
        print(name, found[name], flush=True)
    return found


def replay_circumstances() -> str:
    """For docs/decoding.md."""
    content = read("replay-circumstances.json")
    rows = [[name, *(f"{each:.2f}" for each in by.values())] for name, by in content["figures"].items()]
    head = ["", "host", *(f"without {name}" for name in ABLATIONS)]
    return f"{table(head, rows)}\n\nTokens per second over plain decoding's, {content['activations']}, greedy."


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES, help="made by bench/replay/record.py")
    parser.add_argument("--times", type=Path, default=TIMES, help="made by bench/replay/step_times.py")
    parser.add_argument("--activations", default="int8")
    options = parser.parse_args(arguments)
    found = measure(load(options.traces), load_times(options.times, options.activations))
    about = {"traces": options.traces.name, "times": options.times.name, "activations": options.activations}
    write(options.json, {**about, "figures": found})


if __name__ == "__main__":
    main()
