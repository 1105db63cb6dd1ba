"""How fast we are on one GPU, and whether the text stays the same: the figures of docs/performance.md.

    python bench/gpu/run.py decode steps compile attention batches rollouts exact large --out FILE
    python bench/gpu/run.py decode steps --out FILE --smoke        # everything small: does it run?

Parts, run in the order given, and what they measure, in bfloat16, greedy (in brackets what each should take on an
H200, the loading of kernels and models apart):

    decode     one user: plain decoding, `self` and `auto` through the public API, transformers' `generate` beside them;
               each answer timed after its first token, all ways in turn for each prompt (90 s)
    steps      forwards of 1 to 128 rows, with and without masks, whole steps of 0 to 8 drafts, and a step's parts, all
               replayed from CUDA graphs, in turn (60 s)
    compile    our plain step against transformers' network under torch.compile "reduce-overhead" (90 s, most of them
               compiling)
    batches    1 to 64 users, each of whom asks the next question when one is answered: plain and `auto`, in turn
               (60 s)
    arrivals   1 to 64 users who come one every 50 ms, ask on and leave at random, greedy and sampled: every answer
               compared with the same request alone (180 s, half of them capturing steps)
    agreement  `stridelm bench` and `decode` in turn over the same prompts (60 s)
    attention  one layer's attention: our kernels, FlexAttention and a dense mask (60 s, most of them compiling)
    rollouts   1,024 texts at once: the engine that training uses, and transformers' `generate` (90 s)
    exact      200 prompts x 256 tokens: `self` against plain decoding, every departure with its margin (90 s)
    large      steps of a model shaped as Llama-3.1-8B with random weights, and a projection from them (60 s); with
               `decode` in the same file, its acceptance is the one projected with

Each part is written to FILE as soon as it has something, beside what the file holds of other parts; what a part that
breaks has found so far stays, and the others are run. Progress goes to stderr, the table to stdout. STRIDELM_COMMIT
names the commit where there is no git.
"""

import argparse
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from stridelm.files import write_json
from stridelm.params import InputError
from stridelm.settings import DEFAULT_MODEL
from stridelm.train.record import circumstances

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.gpu.answers import decode
from bench.gpu.arrivals import agreement, arrivals
from bench.gpu.attention import attention
from bench.gpu.large import large
from bench.gpu.rollouts import rollouts
from bench.gpu.steps import compiled, steps
from bench.gpu.subject import DTYPES, SMOKE, Sizes, Subject, default_settings
from bench.gpu.tables import gpu_tables
from bench.gpu.users import batches, exact

Figures = dict[str, Any]
PARTS: dict[str, Callable[[Subject], Iterator[Figures]]] = {
    "decode": decode,
    "steps": steps,
    "compile": compiled,
    "attention": attention,
    "batches": batches,
    "arrivals": arrivals,
    "agreement": agreement,
    "rollouts": rollouts,
    "exact": exact,
    "large": large,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, required=True, help="the JSON, made or added to")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="the built-in one, or a folder")
    parser.add_argument("--adapter", help="its folder, if the model is not the built-in one")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--seconds", type=float, default=180.0, help="a part begins nothing new after so long (180)")
    parser.add_argument("--smoke", action="store_true", help="everything small: the figures mean nothing")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here: --device cpu runs what needs none")
    try:
        results = read_results(options.out)
    except InputError as error:
        parser.error(str(error))
    settings = default_settings(options.device, options.dtype)
    sizes = SMOKE if options.smoke else Sizes()
    subject = Subject(options.model, settings, sizes, adapter=options.adapter, seconds=options.seconds, results=results)
    made = machine(subject, ["bench/gpu/run.py", *(sys.argv[1:] if arguments is None else arguments)])
    made["smoke"] = options.smoke
    broken = [part for part in options.parts if not run_part(part, subject, made, options.out)]
    print(gpu_tables(results))
    return 1 if broken else 0


def run_part(part: str, subject: Subject, made: Figures, out: Path) -> bool:
    """Whether it came to its end. Whatever it found is in the results and in the file."""
    results = subject.results
    subject.begin(part)
    found: Figures = {}
    error: str | None = None
    try:
        for figures in PARTS[part](subject):
            found = figures
            results[part] = found | _how_it_went(subject, made, is_complete=False)
            write_results(out, results)
    except Exception as failure:  # the next part may well run, and time on such a machine is short
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}"[:500]
    if found or part not in results:  # a part that found nothing this time does not wipe out what it found before
        results[part] = found | _how_it_went(subject, made, is_complete=error is None, error=error)
        write_results(out, results)
    subject.say("done" if error is None else f"broke off: {error}")
    return error is None


def _how_it_went(subject: Subject, made: Figures, *, is_complete: bool, error: str | None = None) -> Figures:
    return {
        "is_complete": is_complete and not subject.left_out,
        "left_out": list(subject.left_out),
        "seconds": round(subject.elapsed, 1),
        "error": error,
        "circumstances": made,
    }


def machine(subject: Subject, command: list[str]) -> Figures:
    """What the figures come from; the clock's part of it is beside each part."""
    is_gpu = subject.settings.device == "cuda"
    made = circumstances(torch.cuda.get_device_name() if is_gpu else "CPU")
    made["command"] = shlex.join(["python", *command])
    made["commit"] = os.environ.get("STRIDELM_COMMIT") or made["commit"]
    made["versions"] |= {"triton": triton.__version__, "cuda": torch.version.cuda}
    return made | {"model": subject.name, "dtype": subject.settings.dtype}


def read_results(file: Path) -> Figures:
    if not file.exists():
        return {}
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as JSON ({error}); name another file with --out") from error
    if not isinstance(results, dict) or set(results) - set(PARTS):
        raise InputError(f"{file}: is not a file of bench/gpu/run.py; name another one with --out")
    return results


def write_results(file: Path, results: Figures) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {name: results[name] for name in PARTS if name in results})


if __name__ == "__main__":
    sys.exit(main())
