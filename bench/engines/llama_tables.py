"""The tables of docs/engines.md, from bench/results."""

from bench.measured import read

QUIET = 1.0
"""A load below which nobody else used the machine."""


def llama_cpp() -> str:
    """Our draft model in llama.cpp's server, against the same server without it."""
    figures = read("llama-cpp.json")
    lines = [
        "| prompts | drafted at once | tokens/s (quartiles) | over plain (quartiles) | drafts accepted | same tokens |",
        "|---|---|---|---|---|---|",
    ]
    for kind, subjects in figures["kinds"].items():
        for name, entry in subjects.items():
            (low, high), (least, most) = entry["quartiles"], entry["ratio_quartiles"]
            is_plain = not entry["drafted"]
            speed = f"{entry['tokens_per_second']:.1f} ({low:.1f} to {high:.1f})"
            ratio = "" if is_plain else f"**{entry['ratio']:.2f}x** ({least:.2f} to {most:.2f})"
            accepted = "" if is_plain else f"{entry['accepted'] / entry['drafted']:.0%}"
            same = "" if is_plain else f"{entry['identical']} of {entry['answers']}"
            lines.append(f"| {kind} | {'none' if is_plain else name} | {speed} | {ratio} | {accepted} | {same} |")
    where = figures["machine"]
    least, most = min(where["load"]), max(where["load"])
    busy = (
        ""
        if most < QUIET
        else f" The machine was busy (load {least:.1f} to {most:.1f}): read the ratios, not the speeds."
    )
    lines.append(
        f"\nThe built-in model's own 4-bit file, the draft in 8 bits, greedy, up to {figures['tokens']} tokens, "
        f"{figures['rounds']} interleaved rounds; medians. {where['engine']}, {where['processor']}, "
        f"threads: {where['threads']}, {where['date']}.{busy}"
    )
    return "\n".join(lines)


def noise_rows() -> str:
    """What random tokens in place of masks, and no sequential head, do to tokens per forward."""
    figures = read("noise-rows.json")
    own, headless = (figures[name]["tokens_per_forward"] for name in ("own", "without head"))
    noise = sorted(entry["tokens_per_forward"] for entry in figures["noise"])
    return (
        f"| drafts come from | tokens per forward |\n|---|---|\n| masks, with the sequential head | {own:.2f} |\n"
        f"| masks, without it | {headless:.2f} |\n| random tokens, without it, {len(noise)} draws | "
        f"{figures['noise median']:.2f} ({noise[0]:.2f} to {noise[-1]:.2f}) |\n\n"
        f"{figures['prompts']} held-out GSM8K questions, {figures['tokens']} tokens each, in our own decoder, which "
        f"drafts and verifies in one pass. {figures['machine']['date']}."
    )
