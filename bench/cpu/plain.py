"""Our decoding, plain and `auto`, against transformers' `generate`: same model, float32, interleaved in one process.

    python bench/cpu/plain.py [--tokens 96] [--rounds 5] [--threads 2] [--json FILE]

Every subject writes the same number of tokens, so no answer may end early. The ratio is that of the times of one prompt
in one round, and its median over all of them is what counts: the machine's own speed wanders more than that.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from stridelm import LoadSettings, SamplingParams, load
from stridelm.models.builtin import ensure_builtin

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import compare, machine, spread, summary

PROMPTS = {
    "general": (
        "Explain to a child why the sky is blue.",
        "A train travels 60 miles in 1.5 hours. What is its average speed? Show your steps.",
        "Write a short story about a lighthouse keeper and a lost dog.",
    ),
    "editing": (
        "Correct the spelling and change nothing else: Yesterday we walkd along the river until the old bridge, where "
        "the fisherman mended his nets and told us about the storm that had taken two boats from the harbour. He said "
        "that nobdy had seen the sea so high since his grandfather was a boy.",
        "Rewrite this code with the variable x renamed to total:\n\ndef add(numbers):\n    x = 0\n    for number in "
        "numbers:\n        x = x + number\n    return x\n\ndef mean(numbers):\n    x = add(numbers)\n    return x / "
        "len(numbers)\n",
    ),
}
SUBJECTS = ("transformers", "ours, plain", "ours, auto")


def subjects(tokens: int, threads: int) -> dict[str, Callable[[str], tuple[list[int], float]]]:
    """Per subject, a call that answers a prompt with token ids and says how many tokens a forward made."""
    ours = load(settings=LoadSettings(device="cpu", threads=threads))
    theirs: Any = AutoModelForCausalLM.from_pretrained(ensure_builtin(), dtype=torch.float32).eval()
    eos = sorted(ours.target.eos_ids)
    params = SamplingParams(max_tokens=tokens, logit_bias=dict.fromkeys(eos, float("-inf")))

    def run_ours(prompt: str, decoder: str) -> tuple[list[int], float]:
        ours.forget()
        result = ours.generate(prompt, params, decoder=decoder)
        return list(result.token_ids), result.stats.tokens_per_forward

    def run_theirs(prompt: str) -> tuple[list[int], float]:
        ids = torch.tensor([ours.encode(prompt)])
        with torch.inference_mode():
            output = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                suppress_tokens=eos,
                pad_token_id=eos[0],
            )
        return output[0, ids.shape[1] :].tolist(), 1.0

    calls = (run_theirs, lambda prompt: run_ours(prompt, "autoregressive"), lambda prompt: run_ours(prompt, "auto"))
    return dict(zip(SUBJECTS, calls, strict=True))


def measure(tokens: int, rounds: int, threads: int) -> dict[str, Any]:
    calls = subjects(tokens, threads)
    kinds: dict[str, Any] = {}
    for kind, prompts in PROMPTS.items():
        seconds: dict[str, list[float]] = {name: [] for name in SUBJECTS}
        strides: dict[str, list[float]] = {name: [] for name in SUBJECTS}
        same = 0
        for round_number in range(-1, rounds):  # round -1 warms up
            for prompt in prompts:
                answers = []
                for name, call in calls.items():
                    started = time.perf_counter()
                    ids, tokens_per_forward = call(prompt)
                    elapsed = time.perf_counter() - started
                    answers.append(ids)
                    if round_number >= 0:
                        seconds[name].append(elapsed)
                        strides[name].append(tokens_per_forward)
                same += round_number >= 0 and all(ids == answers[0] for ids in answers)
        kinds[kind] = {"runs": rounds * len(prompts), "identical": same} | {
            name: {
                "tokens_per_s": summary([tokens / each for each in seconds[name]]),
                "speed_up": summary([b / a for a, b in zip(seconds[name], seconds[SUBJECTS[0]], strict=True)]),
                "tokens_per_forward": round(statistics.mean(strides[name]), 2),
            }
            for name in SUBJECTS
        }
    return {"machine": machine(threads), "tokens": tokens, "rounds": rounds, "kinds": kinds}


def table(figures: dict[str, Any]) -> str:
    """The figures as Markdown, with the machine they come from."""
    lines = ["| prompts | subject | tokens/s | against transformers | tokens per forward |", "|---|---|---|---|---|"]
    for kind, figure in figures["kinds"].items():
        for name in SUBJECTS:
            speed, ratio = spread(figure[name]["tokens_per_s"], 1), spread(figure[name]["speed_up"], unit="x")
            lines.append(f"| {kind} | {name} | {speed} | {ratio} | {figure[name]['tokens_per_forward']:.2f} |")
    where, kinds = figures["machine"], figures["kinds"].values()
    runs, identical = (sum(kind[name] for kind in kinds) for name in ("runs", "identical"))
    lines.append(
        f"\nMedians (and spread) of {runs} interleaved runs of {figures['tokens']} tokens; all three wrote the same "
        f"tokens in {identical} of them. {where['processor']}, {where['threads']} threads, float32, "
        f"torch {where['torch']}, transformers {where['transformers']}, commit {where['commit']}, {where['date']}."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    compare(__doc__, measure, table)
