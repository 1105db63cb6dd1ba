"""How fast prompts are read: ours and llama.cpp on the same file, by the prompt's length.

    python bench/cpu/prompts.py [--gguf FILE] [--lengths 128 512 2048 8191] [--rounds 7] [--threads 2] [--json FILE]

The time is that from the prompt's ids to the first token. Subjects take turns, length by length; without `--gguf` the
file is the Q4_0 one of bench/cpu/requantise.py. The built-in model's context is 8,192 tokens, of which one is written.
"""

import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from stridelm.settings import ACTIVATIONS

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu.peers import LLAMA, SUBJECTS, Absent, Process, command
from bench.cpu.requantise import q4_0_file
from bench.measured import machine, script_parser, table, write

NAMES = (*(f"plain {kind}" for kind in ACTIVATIONS), LLAMA)
PAUSE = 0.1
"""Seconds before a turn, so that the threads of the one before sleep."""


def measure(gguf: Path, lengths: list[int], rounds: int, threads: int) -> dict[str, dict[int, list[float]]]:
    """By subject and length: prompt tokens per second, one figure a round."""
    processes = {name: Process(command(SUBJECTS[name].process, gguf, threads)) for name in NAMES}
    draw = random.Random(0)
    found: dict[str, dict[int, list[float]]] = {name: {length: [] for length in lengths} for name in NAMES}
    for number in range(-1, rounds):  # round -1 warms up
        for length in lengths:
            ids = [draw.randrange(1000, 40000) for _ in range(length)]
            for place in range(len(NAMES)):
                name = NAMES[(place + number) % len(NAMES)]
                time.sleep(PAUSE)
                answer = processes[name].answer(ids, 1, [], SUBJECTS[name].mode)
                if number >= 0:
                    found[name][length].append(length / answer.first_seconds)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    for process in processes.values():
        process.close()
    return found


def figures(found: dict[str, dict[int, list[float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Medians, 10th percentiles, and the median ratio to llama.cpp in the same round."""
    return {
        name: {
            str(length): {
                "median": round(statistics.median(speeds), 1),
                "tenth": round(statistics.quantiles(speeds, n=10, method="inclusive")[0], 1),
                "over_llama": round(
                    statistics.median(a / b for a, b in zip(speeds, found[LLAMA][length], strict=True)), 3
                ),
            }
            for length, speeds in by.items()
        }
        for name, by in found.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048, 8191])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    gguf = options.gguf.resolve() if options.gguf else q4_0_file()
    try:
        found = figures(measure(gguf, options.lengths, max(2, options.rounds), options.threads))
    except Absent as reason:
        print(f"prompts.py: {reason}", file=sys.stderr)
        return 2
    rows = [
        [name, *(f"{each['median']:,.0f} ({each['over_llama']:.2f}x)" for each in by.values())]
        for name, by in found.items()
    ]
    print(table(["prompt tokens/s (over llama.cpp)", *(f"{length:,}" for length in options.lengths)], rows))
    about: dict[str, Any] = {"machine": machine(options.threads), "gguf": gguf.name, "rounds": options.rounds}
    write(options.json, {**about, "tokens_per_s": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
