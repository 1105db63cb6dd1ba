"""The table of transformers' `generate` with what we export, from bench/results/custom-generate.json."""

from bench.measured import read

NAMES = {"custom_generate": "`custom_generate`", "assistant_model": "`assistant_model`"}


def custom_generate() -> str:
    figures = read("custom-generate.json")
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
    where, (before, after), rounds = figures["machine"], figures["load"], figures["rounds"]
    lines.append(
        f"\nThe built-in model, float32, greedy, up to {figures['tokens']} tokens, interleaved, rounds: {rounds}; "
        f"medians, and the slowest and fastest answer. {where['processor']}, threads: {where['threads']}, transformers "
        f"{where['transformers']}, {where['date']}; load average {before:.1f} before and {after:.1f} after, which is "
        "above the number of threads where other programs ran beside it."
    )
    return "\n".join(lines)
