"""The table of transformers' `generate` with what we export, from bench/results/custom-generate.json."""

import json
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "custom-generate.json"
NAMES = {"custom_generate": "`custom_generate`", "assistant_model": "`assistant_model`"}


def custom_generate() -> str:
    figures = json.loads(RESULT.read_text(encoding="utf-8"))
    lines = [
        "| prompts | | tokens per step | speed over plain `generate` | identical answers |",
        "|---|---|---|---|---|",
    ]
    for kind, subjects in figures["prompts"].items():
        for subject, part in subjects.items():
            lines.append(
                f"| {kind} | {NAMES[subject]} | {part['tokens_per_step']:.2f} | {part['speed_up']:.2f}x "
                f"({part['slowest']:.2f} to {part['fastest']:.2f}) | {part['identical']} of {part['answers']} |"
            )
    where, (before, after) = figures["machine"], figures["load"]
    lines.append(
        f"\nThe built-in model, float32, greedy, up to {figures['tokens']} tokens, {figures['rounds']} interleaved "
        f"rounds; medians, and the slowest and fastest answer. {where['processor']}, {where['threads']} "
        f"{'thread' if where['threads'] == 1 else 'threads'}, transformers {where['transformers']}, {where['date']}; "
        f"load average {before:.1f} before and {after:.1f} after, so other programs ran beside it where that is above "
        "the number of threads."
    )
    return "\n".join(lines)
