"""A forward of the built-in model on the native backend by threads and rows: interleaved, medians in ms.

    python bench/cpu/threads.py [--rounds 30] [--context 200] [--json FILE]

From one thread to one per core that this process may use.
"""

import os
import statistics
import sys
import time
from pathlib import Path

from stridelm import LoadSettings, load
from stridelm.backends.common.processor import processor_entry
from stridelm.contracts import Forward
from stridelm.layout import lay_out, make_block
from stridelm.settings import ACTIVATIONS

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import script_parser, write

ROWS = (1, 2, 4, 8, 16)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--context", type=int, default=200)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    subjects = {
        (activations, threads): _forward(activations, threads)
        for activations in ACTIVATIONS
        for threads in range(1, cores + 1)
    }
    times: dict[tuple[str, int, int], list[float]] = {}
    for number in range(options.rounds + 1):
        for (activations, threads), forward in subjects.items():
            for rows in ROWS:
                seconds = _time(forward, rows, options.context)
                if number:
                    times.setdefault((activations, threads, rows), []).append(seconds)
    figures = {
        f"{activations}, {threads} threads": {
            str(rows): statistics.median(times[activations, threads, rows]) * 1000 for rows in ROWS
        }
        for activations, threads in subjects
    }
    for name, by_rows in figures.items():
        print(name, " ".join(f"{rows}: {milliseconds:.1f}" for rows, milliseconds in by_rows.items()))
    content = {"processor": processor_entry("model name"), "cores": cores, "context": options.context, **figures}
    write(options.json, content)


def _forward(activations: str, threads: int) -> Forward:
    settings = LoadSettings(backend="native", activations=activations, threads=threads, cache_tokens=1024)
    return load(adapter="none", settings=settings).engine.forward


def _time(forward: Forward, rows: int, context: int) -> float:
    laid_out = lay_out([make_block(context, [1] * rows, reads_all=True)])
    table = forward.cache.open(context + rows)
    table.length = context  # nothing was read: for timing, any keys will do
    started = time.perf_counter()
    forward(laid_out, [table])
    seconds = time.perf_counter() - started
    forward.cache.free(table)
    return seconds


if __name__ == "__main__":
    main()
