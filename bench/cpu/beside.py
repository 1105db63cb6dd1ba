"""How fast the native backend is beside other work: busy processes on the same cores, several source trees in turn.

    python bench/cpu/beside.py [--tree before=FOLDER ...] [--busy 0 1 2 4] [--rounds 5] [--tokens 64] [--threads 2]
                               [--json FILE]

A busy process counts without end. Every tree has a process with `--threads` threads; the first has one with a single
thread, too: what one that runs beside nothing makes is the measure of the others.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stridelm.settings import ACTIVATIONS, PLAIN

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu import setup as cpu_setup
from bench.cpu.forward import add_trees, trees_of
from bench.cpu.peers import Process, command
from bench.measured import machine, script_parser, table, write

PROMPT = list(range(1000, 1064))
BUSY = [sys.executable, "-c", "while True: pass"]


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    started = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(subjects: dict[str, Process], busy: list[int], rounds: int, tokens: int) -> dict[str, dict[str, Any]]:
    """By subject and number of busy processes: the median speed after the first token, and the time to that."""
    found: dict[str, dict[str, Any]] = {name: {} for name in subjects}
    for count in busy:
        answers: dict[str, list[Any]] = {name: [] for name in subjects}
        with busy_processes(count):
            for number in range(-1, rounds):  # round -1 warms up
                for name, process in subjects.items():
                    answer = process.answer(PROMPT, tokens, [], PLAIN)
                    if number >= 0:
                        answers[name].append(answer)
        for name, given in answers.items():
            speeds = [answer.decoding for answer in given]
            found[name][str(count)] = {
                "tokens_per_s": round(statistics.median(speeds), 2),
                "spread": [round(min(speeds), 2), round(max(speeds), 2)],
                "first_seconds": round(statistics.median(answer.first_seconds for answer in given), 4),
            }
        print(f"beside {count}: done", file=sys.stderr, flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    add_trees(parser)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    trees = trees_of(options)
    wanted = {name: (tree, options.threads) for name, tree in trees.items()}
    wanted[f"{next(iter(trees))}, one thread"] = next(iter(trees.values())), 1
    subjects = {
        name: Process(
            ["env", f"PYTHONPATH={tree / 'src'}", *command(ACTIVATIONS[0], cpu_setup.builtin_gguf(), threads)]
        )
        for name, (tree, threads) in wanted.items()
    }
    found = measure(subjects, options.busy, options.rounds, options.tokens)
    for process in subjects.values():
        process.close()
    rows = [
        [name, *(f"{each['tokens_per_s']:.1f} ({each['first_seconds']:.2f} s)" for each in by.values())]
        for name, by in found.items()
    ]
    print(table(["tokens/s (first token) beside", *map(str, options.busy)], rows))
    write(options.json, {"machine": machine(options.threads), "figures": found})


if __name__ == "__main__":
    main()
