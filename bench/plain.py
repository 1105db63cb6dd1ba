"""Our plain decoding against transformers' `generate`: same model, float32, two threads, interleaved in one process.

python bench/plain.py [--tokens 96] [--rounds 5] [--json FILE]
"""

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from stridelm import LoadSettings, SamplingParams, load
from stridelm.model.builtin import ensure_builtin

PROMPTS = (
    "Explain to a child why the sky is blue.",
    "A train travels 60 miles in 1.5 hours. What is its average speed? Show your steps.",
    "Write a short story about a lighthouse keeper and a lost dog.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per answer")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds over all prompts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()

    ours = load(settings=LoadSettings(device="cpu", threads=options.threads))
    theirs: Any = AutoModelForCausalLM.from_pretrained(ensure_builtin(), dtype=torch.float32).eval()
    eos = sorted(ours.target.eos_ids)
    # Both write the same number of tokens: neither may end the text.
    params = SamplingParams(max_tokens=options.tokens, logit_bias=dict.fromkeys(eos, float("-inf")))

    def run_ours(prompt: str) -> tuple[float, list[int]]:
        started = time.perf_counter()
        result = ours.generate(prompt, params, decoder="autoregressive")
        return time.perf_counter() - started, list(result.token_ids)

    def run_theirs(ids: torch.Tensor) -> tuple[float, list[int]]:
        started = time.perf_counter()
        with torch.inference_mode():
            output = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=options.tokens,
                suppress_tokens=eos, pad_token_id=eos[0],
            )  # fmt: skip
        return time.perf_counter() - started, output[0, ids.shape[1] :].tolist()

    seconds: dict[str, list[float]] = {"ours": [], "transformers": []}
    same = total = 0
    for round_number in range(-1, options.rounds):  # round -1 warms up
        for prompt in PROMPTS:
            ids = torch.tensor([ours.encode(prompt)])
            (our_time, our_ids), (their_time, their_ids) = run_ours(prompt), run_theirs(ids)
            if round_number >= 0:
                seconds["ours"].append(our_time)
                seconds["transformers"].append(their_time)
                same += our_ids == their_ids
                total += 1

    speed = {name: [options.tokens / each for each in times] for name, times in seconds.items()}
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["transformers"], strict=True)]
    figures = {
        "machine": f"{platform.processor() or platform.machine()}, {options.threads} threads",
        "versions": {name: version(name) for name in ("stridelm", "torch", "transformers")},
        "tokens": options.tokens,
        "runs": total,
        "tokens_per_s": {name: round(statistics.median(each), 2) for name, each in speed.items()},
        "spread": {name: [round(min(each), 2), round(max(each), 2)] for name, each in speed.items()},
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "identical_answers": f"{same} of {total}",
    }
    for name in speed:
        low, high = figures["spread"][name]
        print(f"{name:13} {figures['tokens_per_s'][name]:6.2f} tokens/s ({low} to {high})")
    low, high = figures["ratio_spread"]
    print(f"ratio         {figures['ratio_median']:6.2f}x ({low} to {high}), same tokens in {same} of {total} answers")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
