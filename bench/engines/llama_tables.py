"""The tables about llama.cpp in docs/engines.md and docs/models.md, from bench/results."""

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


def gguf_logits() -> str:
    """How far our logits are from llama.cpp's, by architecture."""
    figures = read("gguf-logits.json")
    lines = [
        "| file | float32 | K-quants, dequantised by llama.cpp | K-quants as llama.cpp runs them |",
        "|---|---|---|---|",
    ]
    for name, entry in figures["files"].items():
        shown = []
        for kind in ("F32", "K in F32"):
            alike = entry.get(f"{kind}, half GELU")
            shown.append(f"{entry[kind]:.0e}" + (f" ({alike:.0e})" if alike is not None else ""))
        lines.append(f"| {name} | {shown[0]} | {shown[1]} | {entry['K']:.2f} |")
    least, most = (pick(entry["deviation"] for entry in figures["files"].values()) for pick in (min, max))
    lines.append(
        f"\nLargest difference of a logit, at positions before and behind the sliding windows of 5 tokens; the logits' "
        f"standard deviation is {least:.1f} to {most:.1f}. In brackets: with GELU rounded to half precision as in "
        f"llama.cpp's table. {figures['engine']}."
    )
    return "\n".join(lines)
