"""Transformers' `generate` with what `stridelm export --to hf` writes: several tokens per step, and how fast.

    python bench/engines/custom_generate.py [--tokens 48] [--rounds 3] [--maths 3] [--threads 2] [--json FILE]

The built-in model in float32, greedy: plain, with custom_generate, and with its draft model as assistant_model.
Subjects are interleaved, who goes first rotates; a speed-up is the ratio of the times of one prompt in one round, and
its median over prompts and rounds is what counts. Only forwards of the model itself are steps.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.decoding.decoders import Prompt, choose_prompts
from bench.measured import RESULTS, machine, script_parser, write

SUBJECTS = ("plain", "custom_generate", "assistant_model")
PARTS = {"custom_generate": "model", "assistant_model": "draft"}


def main() -> None:
    parser = script_parser(__doc__, RESULTS / "custom-generate.json")
    parser.add_argument("--tokens", type=int, default=48, help="the most new tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--maths", type=int, default=3, help="questions of GSM8K beside one prompt of every kind")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load_before = os.getloadavg()[0]
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        for record in measure(Path(place), choose_prompts(options.maths), options.tokens, options.rounds):
            records.append(record)
            print(json.dumps(record), file=sys.stderr, flush=True)
    figures = report(records, options.tokens, machine(options.threads), [load_before, os.getloadavg()[0]])
    write(options.json, figures)
    for name, part in figures["prompts"].items():
        print(name, json.dumps(part))


def report(records: list[dict[str, Any]], tokens: int, where: dict[str, Any], load: list[float]) -> dict[str, Any]:
    groups = {
        "maths": [each for each in records if each["kind"] == "gsm8k"],
        "other kinds": [each for each in records if each["kind"] not in ("gsm8k", "noise")],
        "noise": [each for each in records if each["kind"] == "noise"],
    }
    return {
        "machine": where,
        "load": [round(each, 2) for each in load],
        "tokens": tokens,
        "rounds": 1 + max(each["round"] for each in records),
        "prompts": {name: summary(part) for name, part in groups.items()},
        "records": records,
    }


def measure(place: Path, prompts: list[Prompt], tokens: int, rounds: int) -> Iterator[dict[str, Any]]:
    for subject, part in PARTS.items():
        command = [sys.executable, "-m", "stridelm", "export", "--part", part, "--to", "hf", str(place / subject)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    folder = str(place / "custom_generate")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    assistant: Any = AutoModelForCausalLM.from_pretrained(place / "assistant_model", dtype="float32")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "custom_generate": {"custom_generate": folder, "trust_remote_code": True},
        "assistant_model": {"assistant_model": assistant},
    }
    steps: list[None] = []
    model.register_forward_hook(lambda *_: steps.append(None))
    for turn in range(-1, rounds):  # the first is not counted: what is read once has been read then
        for number, prompt in enumerate(prompts if turn >= 0 else prompts[:1]):
            inputs = encode(tokenizer, prompt)
            answers: dict[str, list[int]] = {}
            record: dict[str, Any] = {"kind": prompt.kind, "prompt": number, "round": turn}
            for subject in SUBJECTS[turn % 3 :] + SUBJECTS[: turn % 3]:
                steps.clear()
                started = time.perf_counter()
                found = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, **options[subject])
                seconds = time.perf_counter() - started
                answers[subject] = found[0, inputs["input_ids"].shape[1] :].tolist()
                record[subject] = {"seconds": round(seconds, 3), "steps": len(steps), "tokens": len(answers[subject])}
            for subject in PARTS:
                record[subject]["identical"] = answers[subject] == answers["plain"]
            if turn >= 0:
                yield record


def encode(tokenizer: Any, prompt: Prompt) -> Any:
    if prompt.raw:
        return tokenizer(prompt.text, return_tensors="pt")
    messages = [{"role": "user", "content": prompt.text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)


def summary(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for subject in PARTS:
        ratios = [each["plain"]["seconds"] / each[subject]["seconds"] for each in records]
        tokens, steps = (sum(each[subject][name] for each in records) for name in ("tokens", "steps"))
        found[subject] = {
            "tokens_per_step": round(tokens / steps, 3),
            "speed_up": round(statistics.median(ratios), 3),
            "slowest": round(min(ratios), 3),
            "fastest": round(max(ratios), 3),
            "identical": sum(each[subject]["identical"] for each in records),
            "answers": len(records),
        }
    return found


if __name__ == "__main__":
    main()
