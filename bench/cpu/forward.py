"""Milliseconds of a forward on the native backend by its rows, of several source trees or builds in turn.

    python bench/cpu/forward.py [--tree before=FOLDER ...] [--rounds 30] [--threads 2] [--context 200]
                                [--builds native avx2 ...] [--shapes 1 4+3 4+3x2 4+3x2- ...]
                                [--models smollm2 FILE.gguf ...] [--json FILE]

A shape is so many real rows, or real rows + masks off the last one; `x2`: off each of the last two; a minus at its end:
the output head leaves the masks out. Every tree has a process per kind of activations;
they take turns, shape by shape, so that a slow moment of the machine affects all alike. Without `--tree` the one that
the script belongs to is measured. `--builds`: how kernels are compiled, for the processor at hand (native) or another.
`--models`: the same for several files, for example the kinds that bench/cpu/k_quants.py makes of one model.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stridelm.backends.native import library as native_library
from stridelm.layout import lay_out, make_block
from stridelm.types import DraftTree

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import machine, script_parser, table, write

SHAPES = ("1", "2", "4", "5", "8", "9", "16", "1+2", "1+4", "3+3", "4+3")
ACTIVATIONS = ("int8", "int16")
NATIVE, NARROW = "native", "native without AVX-512"
MODEL = "smollm2"
REPEATS = 4
"""Forwards of one shape in a turn; the first warms up the caches and is left out."""


def load_trials(
    activations: str, threads: int, context: int, shapes: Sequence[str] = SHAPES, model: str = MODEL
) -> dict[str, Callable[[], object]]:
    """By shape: what does one forward of it, with the tree that this process imports."""
    from stridelm import LoadSettings, load
    from stridelm.decode import cost

    settings = LoadSettings(backend="native", threads=threads, activations=activations)
    forward = load(model, settings=settings).loaded.forward.with_cache(4 * context + 256)
    # A tree to compare with may be of a time when the two were private.
    shape_of, trial_of = (getattr(cost, name, None) or getattr(cost, f"_{name}") for name in ("Shape", "Trial"))
    trials: dict[str, Callable[[], object]] = {}
    for shape in shapes:
        real, masks, anchors, defers = parse(shape)
        trial = trials[shape] = trial_of(forward, shape_of(1, real, masks * anchors, context=context))
        if anchors > 1 or defers:
            tree = DraftTree.chain([1] * (real - 1), "trial")
            last = range(real - 1 - anchors, real - 1)  # node -1 is ROOT, the row before the drafts
            trial.rows = lay_out([make_block(context, [1], tree, anchors=last, masks=masks, defers_masks=defers)])
    return trials


def parse(shape: str) -> tuple[int, int, int, bool]:
    """Real rows, masks per anchor, anchors, and whether the output head leaves the masks out."""
    real, _, rest = shape.removesuffix("-").partition("+")
    masks, _, anchors = rest.partition("x")
    return int(real), int(masks or 0), int(anchors or 1), shape.endswith("-")


def work(activations: str, options: argparse.Namespace) -> None:
    """In a process of its own: for each shape on standard input, the times of some forwards."""
    if options.flags:
        native_library.FLAGS = tuple(options.flags.split())
    trials = load_trials(activations, options.threads, options.context, options.shapes, *options.models)
    print("ready", flush=True)
    for line in sys.stdin:
        trial, times = trials[line.strip()], []
        for _ in range(REPEATS):
            before = time.perf_counter()
            trial()
            times.append(1e3 * (time.perf_counter() - before))
        print(json.dumps(times[1:]), flush=True)


def flags_of(build: str) -> tuple[str, ...]:
    """The compiler's flags, by this tree: an older one may not name them."""
    from stridelm.backends.native.library import AVX2_FLAGS, flags_for
    from stridelm.backends.native.prebuilt import BUILDS

    narrow = flags_for(["-march=native", "-mno-avx512f", "-mno-avxvnni"])
    known = {NARROW: narrow, "avx2": AVX2_FLAGS, **{each.name: flags_for(each.target) for each in BUILDS}}
    if build not in known:
        raise SystemExit(f"there is no build {build!r}: --builds takes {NATIVE}, {', '.join(known)}")
    return known[build]


def start_with(tree: Path, command: list[str]) -> subprocess.Popen[str]:
    """A process that imports this tree, to be talked to by lines."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "HF_HUB_OFFLINE": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


class Worker:
    def __init__(self, tree: Path, options: Any, activations: str, build: str, model: str) -> None:
        command = [sys.executable, __file__, "--work", activations, "--threads", str(options.threads)]
        command += ["--context", str(options.context), "--shapes", *options.shapes, "--models", model]
        if build != NATIVE:
            command += [f"--flags={' '.join(flags_of(build))}"]
        self._process = start_with(tree, command)
        assert self._read() == "ready"

    def times(self, shape: str) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{shape}\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("a process that measures has ended: its message is above")
        return line


def measure(options: Any, trees: dict[str, Path]) -> dict[str, dict[str, dict[str, float]]]:
    """By tree, build and activations, then by shape: the median and the 10th percentile."""
    workers = {
        f"{_subject(options, name, build, model)}, {activations}": Worker(tree, options, activations, build, model)
        for activations in options.activations
        for name, tree in trees.items()
        for build in options.builds
        for model in options.models
    }
    taken: dict[str, dict[str, list[float]]] = {name: {shape: [] for shape in options.shapes} for name in workers}
    for number in range(options.rounds):
        for shape in options.shapes:
            for name in sorted(workers, key=lambda name: (list(workers).index(name) + number) % len(workers)):
                taken[name][shape] += workers[name].times(shape)
    for worker in workers.values():
        worker.close()
    return {name: {shape: _figures(times) for shape, times in by.items()} for name, by in taken.items()}


def _subject(options: Any, tree: str, build: str, model: str) -> str:
    """What there are several of."""
    if len(options.models) > 1:
        return Path(model).stem
    return tree if len(options.builds) == 1 else build


def _figures(times: list[float]) -> dict[str, float]:
    tenth = statistics.quantiles(times, n=10)[0]
    return {"median": round(statistics.median(times), 3), "tenth": round(tenth, 3)}


def add_trees(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER", help="a checkout; repeatable")


def trees_of(options: argparse.Namespace) -> dict[str, Path]:
    """Checkouts by name; if none is named, the one of this script."""
    named = dict(each.split("=", 1) for each in options.tree) or {"now": str(Path(__file__).parents[2])}
    return {name: Path(folder).resolve() for name, folder in named.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    add_trees(parser)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=200, help="tokens in the cache")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--activations", nargs="+", default=list(ACTIVATIONS), choices=ACTIVATIONS)
    parser.add_argument("--builds", nargs="+", default=[NATIVE], help=f"{NATIVE}, avx2, or one that a wheel brings")
    parser.add_argument("--models", nargs="+", default=[MODEL], help="a model, or GGUF files to be compared")
    for name in ("--work", "--flags"):
        parser.add_argument(name, default="", help="internal")
    options = parser.parse_args(arguments)
    if sum(len(each) > 1 for each in (options.builds, options.tree, options.models)) > 1:
        parser.error("a table shows several trees, builds or models, not two of these")
    if options.work:
        return work(options.work, options)
    figures = measure(options, trees_of(options))
    cells = [[name, *(f"{by[shape]['median']:.2f}" for shape in options.shapes)] for name, by in figures.items()]
    print(table(["rows", *options.shapes], cells))
    cells = [[name, *(f"{by[shape]['tenth']:.2f}" for shape in options.shapes)] for name, by in figures.items()]
    print("\n10th percentiles\n\n" + table(["rows", *options.shapes], cells))
    about = {"machine": machine(options.threads), "context": options.context, "builds": options.builds}
    write(options.json, {**about, "milliseconds": figures})
    return None


if __name__ == "__main__":
    main()
