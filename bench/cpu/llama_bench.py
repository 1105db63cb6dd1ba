"""Forks of llama.cpp by their own benchmark, beside ours on the same file: prompts and plain decoding.

    python bench/cpu/llama_bench.py --bench llama.cpp=FILE --bench "ik_llama.cpp=FILE -rtr 1" ... [--gguf FILE]
                                    [--rounds 5] [--threads 2] [--json FILE]

FILE is a `llama-bench`, perhaps with options of its own. All take turns; each turn is a process of its own, so only the
time that it reports itself counts: a prompt of 512 tokens, and 128 tokens one at a time. Ours: from the first token on.
"""

import json
import random
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from stridelm.params import InputError
from stridelm.settings import ACTIVATIONS

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu.peers import SUBJECTS, Process, command
from bench.cpu.requantise import q4_0_file
from bench.measured import machine, script_parser, table, write

PROMPT, ANSWER = 512, 128
Speeds = tuple[float, float]
"""Tokens per second: of a prompt, of an answer."""


def theirs(bench: list[str], gguf: Path, threads: int) -> Speeds:
    options = ["-m", str(gguf), "-t", str(threads), "-p", str(PROMPT), "-n", str(ANSWER), "-r", "1", "-o", "json"]
    done = subprocess.run([*bench, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{bench[0]} ended with status {done.returncode}: {done.stderr[-300:]}")
    found = {entry["n_gen"]: float(entry["avg_ts"]) for entry in json.loads(done.stdout)}
    return found[0], found[ANSWER]


def ours(activations: str, gguf: Path, threads: int, ids: list[int]) -> Speeds:
    subject = SUBJECTS[f"plain {activations}"]
    process = Process(command(subject.process, gguf, threads))
    process.answer(ids, 2, [], subject.mode)  # warms up
    answer = process.answer(ids, 1, [], subject.mode)
    prompt = PROMPT / answer.first_seconds
    decoding = process.answer(ids[:8], ANSWER, [], subject.mode).decoding
    process.close()
    return prompt, decoding


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--bench", action="append", default=[], metavar="NAME=COMMAND", help="repeatable")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    gguf, threads = options.gguf or q4_0_file(), options.threads
    benches = {name: shlex.split(given) for name, _, given in (each.partition("=") for each in options.bench)}
    draw = random.Random(0)
    ids = [draw.randrange(1000, 40000) for _ in range(PROMPT)]
    found: dict[str, list[Speeds]] = {}
    for number in range(options.rounds):
        for name, bench in benches.items():
            found.setdefault(name, []).append(theirs(bench, gguf, threads))
        for activations in ACTIVATIONS:
            found.setdefault(f"ours, {activations}", []).append(ours(activations, gguf, threads, ids))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    medians = {
        name: [round(statistics.median(each), 1) for each in zip(*by, strict=True)] for name, by in found.items()
    }
    spreads = {name: [[min(each), max(each)] for each in zip(*by, strict=True)] for name, by in found.items()}
    rows = [[name, *(f"{each:,.0f}" for each in by)] for name, by in medians.items()]
    print(table(["tokens/s", f"prompt of {PROMPT}", f"{ANSWER} tokens, one at a time"], rows))
    about = {"machine": machine(threads), "gguf": gguf.name, "commands": options.bench}
    write(options.json, {**about, "tokens_per_s": medians, "spread": spreads})


if __name__ == "__main__":
    main()
