"""Where the time of a forward goes on the native backend: products, attention, waiting and the rest.

    python bench/cpu/parts.py [--tree before=FOLDER ...] [--rows 1 8] [--forwards 1500] [--threads 2] [--context 200]
                              [--json FILE]

`perf` (Debian: linux-perf) samples a process that does nothing but forwards. A sample belongs to the innermost function
that is listed here, inlined ones included: the kernels are compiled with line numbers, which changes no instruction.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from stridelm.backends.native import library as native_library

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu.forward import add_trees, load_trials, start_with, trees_of
from bench.measured import machine, script_parser, table, write

PARTS = {
    "waiting": r"Team|wait_for_all",
    "attention": r"attend|VisibleKeys",
    "rotary, storing": r"rotate|store_key|store_value",
    "norms": r"normalise",
    "quantising": r"quantise",
    "gating": r"::gate\(",
    "log-sums": r"LogSum",
    "products": r"Tile|product",
}
OTHER, OUTSIDE = "other", "outside the kernels"
SAMPLES = 4000
"""A second."""


def work(activations: str, threads: int, context: int) -> None:
    """In a process of its own: lines of a shape and a number of forwards; answers with the seconds they took."""
    native_library.FLAGS = (*native_library.FLAGS, "-g1")
    trials = load_trials(activations, threads, context)
    print("ready", flush=True)
    for line in sys.stdin:
        shape, count = line.split()
        before = time.perf_counter()
        for _ in range(int(count)):
            trials[shape]()
        print(time.perf_counter() - before, flush=True)


def sampled(tree: Path, rows: list[str], forwards: int, threads: int, context: int) -> dict[str, dict[str, float]]:
    """By rows, then by part: milliseconds of a forward, the mean of its threads."""
    command = [sys.executable, __file__, "--work", "int8", "--threads", str(threads), "--context", str(context)]
    process = start_with(tree, command)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline().strip() == "ready", "a process that measures has ended: its message is above"
    found: dict[str, dict[str, float]] = {}
    for shape in rows:
        with tempfile.NamedTemporaryFile() as file:
            for count in (forwards // 10, forwards):  # the first warms up, and starts the threads
                recorder = _record(process.pid, file.name) if count == forwards else None
                process.stdin.write(f"{shape} {count}\n")
                process.stdin.flush()
                seconds = float(process.stdout.readline())
                if recorder:
                    recorder.send_signal(signal.SIGINT)
                    recorder.wait()
            counts = count_parts(Path(file.name), process.pid)
        parts = {name: 1e3 * counts[name] / SAMPLES / forwards / threads for name in (*PARTS, OTHER, OUTSIDE)}
        found[shape] = {"whole": 1e3 * seconds / forwards, **parts}
    process.terminate()
    process.wait()
    return found


def _record(pid: int, file: str) -> subprocess.Popen[bytes]:
    command = ["perf", "record", "-q", "-e", "cpu-clock:u", "-F", str(SAMPLES), "-p", str(pid), "-o", file]
    recorder = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    time.sleep(1)
    return recorder


def count_parts(recorded: Path, pid: int) -> Counter[str]:
    """Samples by part. The process must still run: where it has the kernels is asked of it."""
    mapped = Path(f"/proc/{pid}/maps").read_text()
    found = re.search(r"^([0-9a-f]+)-\S+ \S+ 0+ .* (/\S*/native/forward-\S+)$", mapped, flags=re.MULTILINE)
    assert found, "the process has no kernels"
    start, library = int(found[1], 16), found[2]
    command = ["perf", "script", "-i", str(recorded), "-F", "ip,dso"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    places = re.findall(r"^\s*([0-9a-f]+) \((\S+)\)", said, flags=re.MULTILINE)
    by_offset = Counter(hex(int(address, 16) - start) for address, name in places if name == library)
    counts = Counter({OUTSIDE: len(places) - by_offset.total()})
    for offset, functions in zip(by_offset, functions_at(library, list(by_offset)), strict=True):
        counts[part_of(functions)] += by_offset[offset]
    return counts


def functions_at(library: str, offsets: list[str]) -> list[list[str]]:
    """The functions that each instruction belongs to, innermost first."""
    command = ["addr2line", "-a", "-f", "-i", "-C", "-e", library, *offsets]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    blocks = re.split(r"^0x[0-9a-f]+\n", said, flags=re.MULTILINE)[1:]
    return [block.splitlines()[::2] for block in blocks]


def part_of(functions: list[str]) -> str:
    for function in functions:
        for name, pattern in PARTS.items():
            if re.search(pattern, function):
                return name
    return OTHER


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    add_trees(parser)
    parser.add_argument("--rows", nargs="+", default=["1", "8"], help="real rows of a forward, or real + masks: 1+4")
    parser.add_argument("--forwards", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=200, help="tokens in the cache")
    parser.add_argument("--work", default="", help="internal")
    options = parser.parse_args(arguments)
    if options.work:
        return work(options.work, options.threads, options.context)
    figures: dict[str, dict[str, float]] = {}
    for name, tree in trees_of(options).items():
        found = sampled(tree, options.rows, options.forwards, options.threads, options.context)
        figures |= {f"{name}, rows: {shape}": parts for shape, parts in found.items()}
    parts = list(next(iter(figures.values())))
    print(table(["ms a forward", *parts], [[name, *(f"{by[p]:.3f}" for p in parts)] for name, by in figures.items()]))
    about = {"machine": machine(options.threads), "context": options.context}
    write(options.json, {**about, "milliseconds": figures})
    return None


if __name__ == "__main__":
    main()
