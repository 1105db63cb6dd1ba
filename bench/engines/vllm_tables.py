"""The tables of our conversions in vLLM, from bench/results/vllm.json and vllm-check.json."""

from bench.measured import read

NAMES = {"gated": "gated, with the plugin", "ungated": "ungated, as vLLM comes"}


def vllm_check() -> str:
    """What `make test-vllm` saw."""
    figures = read("vllm-check.json")
    lines = [
        "| path | identical answers | near-ties | tokens per step: vLLM, ours | acceptance by position: vLLM, ours |",
        "|---|---|---|---|---|",
    ]
    for path, name in NAMES.items():
        entry = figures[path]
        rates, ours = (" ".join(f"{rate:.2f}" for rate in entry[key]) for key in ("rates", "ours"))
        lines.append(
            f"| {name} | {entry['answers'] - entry['near_ties']} of {entry['answers']} | {entry['near_ties']} | "
            f"{entry['tokens_per_step']:.2f}, {entry['ours_tokens_per_step']:.2f} | {rates}<br>{ours} |"
        )
    entry = figures["gated"]
    lines.append(
        "\nThe built-in model, float32, greedy, 25 maths questions and 25 prompts of all kinds, up to "
        f"{entry['tokens']} tokens, four at once. {entry['processor']}, {entry['date']}."
    )
    return "\n".join(lines)


def vllm() -> str:
    """Speed and memory."""
    figures = read("vllm.json")
    lines = [
        "| path | prompts | tokens per step | speed over plain | identical answers |",
        "|---|---|---|---|---|",
    ]
    for entry in figures["paths"]:
        is_plain = entry["path"] == "plain"
        ratio = "" if is_plain else f"**{entry['over_plain']:.2f}x** ({entry['least']:.2f} to {entry['most']:.2f})"
        same = "" if is_plain else f"{entry['identical']} of {entry['answers']}"
        lines.append(f"| {entry['path']} | {entry['prompts']} | {entry['tokens_per_step']:.2f} | {ratio} | {same} |")
    held = figures["megabytes"]
    more = ", ".join(f"{name} {each - held['plain']:,} MB" for name, each in held.items() if name != "plain")
    machine = figures["machine"]
    lines.append(
        f"\nThe built-in model, float32, greedy, one request at a time, up to {figures['max_tokens']} tokens, "
        f"{figures['rounds']} rounds in turns; medians, and the slowest and fastest round against the median of plain "
        f"decoding. vLLM {machine['vllm']}, {machine['processor']}, {machine['cores']} cores, {machine['date']}; load "
        f"average {machine['load_before']:.1f} before. Memory beyond plain decoding's {held['plain']:,} MB: {more}."
    )
    return "\n".join(lines)
