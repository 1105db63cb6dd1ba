"""How far ours and llama.cpp are from float32 of the same file: what is lost by rounding activations, keys and values.

    python bench/cpu/activations.py [--only drift | sums] [--gguf FILE ...] [--texts 60] [--tokens 200] [--sums 200]
                                    [--threads 2] [--json FILE]

Drift: prompts of bench/prompts with the model's own seeded answers, all positions of the first tokens. Sums: those of
the frontier's task (bench/frontier/task.py), greedy. A model that has not learnt the task solves no problem of it as a
whole, so each sum is asked for by itself, after a few worked problems and the right text up to it. Intervals are of
95 %, by resampling texts or sums. With `--only`, the other part of FILE stays as it is. Without `--gguf`: the built-in
Q4_1 file and the Q4_0 one of bench/cpu/requantise.py.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stridelm import LoadSettings, SamplingParams, load
from stridelm.api import LanguageModel
from stridelm.arrays import log_softmax
from stridelm.layout import lay_out, make_block
from stridelm.prompts import read_prompts
from stridelm.settings import ACTIVATIONS

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu import setup as cpu_setup
from bench.cpu.peers import LLAMA, SUBJECTS, Process, command
from bench.cpu.requantise import q4_0_file, weights_of
from bench.frontier.task import problems
from bench.measured import PROMPTS, machine, script_parser, write

OURS: dict[str, dict[str, Any]] = {
    "int16": {"activations": "int16"},
    "int8": {"activations": "int8"},
    "int8, int8 cache": {"activations": "int8", "kv_cache": "int8"},
}
PARTS = ("drift", "sums")
EXAMPLES = 3
"""Worked problems before the one that is asked."""
SUM_TOKENS = 6
"""A space, four digits, and what follows them."""
Logits = Callable[[list[int]], np.ndarray]


@dataclass(frozen=True, slots=True)
class Sum:
    ids: list[int]
    """All that comes before the result."""
    result: int

    def is_right(self, text: str) -> bool:
        """Whether what was written behind the equals sign begins with the result."""
        given = re.match(r"\s*(\d+)", text)
        return given is not None and int(given[1]) == self.result


def texts(count: int, tokens: int, threads: int) -> list[list[int]]:
    """Token ids of prompts and seeded answers."""
    model = load(settings=LoadSettings(backend="native", threads=threads))
    found: list[list[int]] = []
    lines = [line for name in ("kinds.jsonl", "gsm8k_heldout.jsonl") for line in read_prompts(PROMPTS / name)]
    for number, line in enumerate(lines[:: max(1, len(lines) // (2 * count))]):
        ids = model.encode(str(line.prompt))
        answer = model.generate(str(line.prompt), SamplingParams(max_tokens=tokens, temperature=0.7, seed=number))
        whole = [*ids, *answer.token_ids][:tokens]
        if len(whole) == tokens and len(found) < count:
            found.append(whole)
    return found


def reference(gguf: Path) -> Logits:
    """Float32 on torch, of the file's own weights."""
    model = load(str(gguf), adapter="none", settings=LoadSettings(backend="torch", dtype="float32", device="cpu"))
    return logits_of(model)


def logits_of(model: LanguageModel) -> Logits:
    def logits(ids: list[int]) -> np.ndarray:
        forward = model.loaded.forward
        table = forward.cache.open(len(ids))
        (output,) = forward(lay_out([make_block(0, ids, reads_all=True)]), [table])
        forward.cache.free(table)
        return np.asarray(output.logits_WV, np.float64)

    return logits


def drift(expected_TV: np.ndarray, actual_TV: np.ndarray) -> tuple[float, float, float]:
    """Of one text: KL, the share of positions with the same likeliest token, the largest difference of a logit."""
    expected, actual = log_softmax(expected_TV), log_softmax(actual_TV)
    divergence = (np.exp(expected) * (expected - actual)).sum(axis=-1).mean()
    agreement = (expected_TV.argmax(axis=-1) == actual_TV.argmax(axis=-1)).mean()
    return float(divergence), float(agreement), float(np.abs(expected_TV - actual_TV).max())


def mean_with_interval(values: list[float]) -> dict[str, float]:
    draw, sample = np.random.default_rng(0), np.array(values)
    means = sample[draw.integers(len(sample), size=(2000, len(sample)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": float(sample.mean()), "low": float(low), "high": float(high)}


def measure_drift(gguf: Path, of: list[list[int]], threads: int) -> dict[str, dict[str, Any]]:
    subjects: dict[str, Logits] = {
        name: logits_of(load(str(gguf), settings=LoadSettings(backend="native", threads=threads, **choice)))
        for name, choice in OURS.items()
    }
    peer = Process(command(LLAMA, gguf, threads))
    subjects[LLAMA] = lambda ids: peer.logits(ids).astype(np.float64)
    expected = reference(gguf)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in subjects}
    with torch.inference_mode():
        for number, ids in enumerate(of):
            right = expected(ids)
            for name, logits in subjects.items():
                found[name].append(drift(right, logits(ids)))
            print(f"{gguf.name}: text {number + 1} of {len(of)}", file=sys.stderr, flush=True)
    peer.close()
    return {
        name: {
            "divergence": mean_with_interval([each[0] for each in values]),
            "agreement": mean_with_interval([each[1] for each in values]),
            "largest": max(each[2] for each in values),
        }
        for name, values in found.items()
    }


def sums(model: LanguageModel, count: int) -> list[Sum]:
    worked: list[dict[str, Any]] = []
    for problem in problems(0, EXAMPLES, "train"):
        worked += [{"role": "user", "content": problem.prompt}, {"role": "assistant", "content": problem.answer}]
    found: list[Sum] = []
    for problem in problems(2, count, "test"):
        asked = model.encode([*worked, {"role": "user", "content": problem.prompt}])
        found += [Sum([*asked, *model.encode(text, raw=True)], result) for text, result in problem.sums()]
    return found[:count]


def measure_sums(gguf: Path, count: int, threads: int) -> dict[str, dict[str, float]]:
    """The share of sums that each gets right."""
    model = load(str(gguf), settings=LoadSettings(backend="native", threads=threads))
    asked, banned = sums(model, count), sorted(model.target.eos_ids)
    found: dict[str, dict[str, float]] = {}
    for name in (*ACTIVATIONS, LLAMA):
        subject = SUBJECTS.get(f"plain {name}") or SUBJECTS[name]
        process = Process(command(subject.process, gguf, threads))
        answers = [process.answer(each.ids, SUM_TOKENS, banned, subject.mode).ids for each in asked]
        process.close()
        texts = map(model.target.tokenizer.decode, answers)
        found[name] = mean_with_interval([float(each.is_right(text)) for each, text in zip(asked, texts, strict=True)])
        print(f"{gguf.name}: sums, {name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--gguf", type=Path, nargs="*")
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--sums", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    files, threads = options.gguf or [cpu_setup.builtin_gguf(), q4_0_file()], options.threads
    if options.only != "sums":
        of = texts(options.texts, options.tokens, threads)
        drifts = {weights_of(gguf): measure_drift(gguf, of, threads) for gguf in files}
        about = {"machine": machine(threads), "texts": len(of), "tokens": options.tokens}
        write_part(options.json, "drift", {**about, "files": drifts})
    if options.only != "drift":
        solved = {weights_of(gguf): measure_sums(gguf, options.sums, threads) for gguf in files}
        write_part(options.json, "solved", {"machine": machine(threads), "sums": options.sums, "files": solved})


def write_part(file: Path | None, part: str, figures: dict[str, Any]) -> None:
    """Print it, and write it beside the other part, which may have been measured elsewhere."""
    print(part, json.dumps(figures, indent=2))
    known = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.exists() else {}
    write(file, known | {part: figures})


if __name__ == "__main__":
    main()
