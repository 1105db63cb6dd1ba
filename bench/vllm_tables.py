"""The table of our conversions in vLLM, from bench/results/vllm.json."""

import json
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "vllm.json"


def vllm() -> str:
    figures = json.loads(RESULT.read_text(encoding="utf-8"))
    lines = [
        "| path | prompts | tokens per step | speed over plain | identical answers | memory |",
        "|---|---|---|---|---|---|",
    ]
    for entry in figures["paths"]:
        is_plain = entry["path"] == "plain"
        ratio = "" if is_plain else f"**{entry['over_plain']:.2f}x** ({entry['least']:.2f} to {entry['most']:.2f})"
        same = "" if is_plain else f"{entry['identical']} of {entry['answers']}"
        lines.append(
            f"| {entry['path']} | {entry['prompts']} | {entry['tokens_per_step']:.2f} | {ratio} | {same} | "
            f"{entry['megabytes']:,} MB |"
        )
    machine = figures["machine"]
    lines.append(
        f"\nThe built-in model, float32, greedy, one request at a time, up to {figures['max_tokens']} tokens, "
        f"{figures['rounds']} rounds in turns; medians, and the slowest and fastest round against the median of plain "
        f"decoding. vLLM {machine['vllm']}, {machine['processor']}, {machine['cores']} cores, {machine['date']}; load "
        f"average {machine['load_before']:.1f} before."
    )
    return "\n".join(lines)
