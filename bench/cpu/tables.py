"""The tables of docs/performance.md, from what run.py, threads.py and start.py have written."""

import statistics

from bench.measured import read, spread

_SUBJECTS = {
    "plain int16": "ours, one token at a time",
    "multi int16": "ours, `auto`",
    "plain int8": "ours, one at a time, int8",
    "multi int8": "ours, `auto`, int8",
    "llama.cpp": "llama.cpp",
    "llama.cpp ngram-cache": "llama.cpp, n-gram speculation",
    "openvino": "OpenVINO GenAI",
    "transformers": "transformers, float32",
}


def cpu() -> str:
    """Tokens per second after the first, by category."""
    content = read("cpu.json")
    figures, where = content["figures"], content["machine"]
    categories = list(figures)
    lines = [f"| tokens/s | {' | '.join(categories)} |", "|---|" + "---|" * len(categories)]
    for subject, name in _SUBJECTS.items():
        if subject in figures["all"]:
            speeds = (figures[category][subject]["decoding_tokens_per_s"]["median"] for category in categories)
            lines.append(f"| {name} | {' | '.join(f'{speed:.0f}' for speed in speeds)} |")
    same = content["identical_plain_and_multi"]
    pairs = ", ".join(f"{each['identical']} of {each['compared']} in {name}" for name, each in same.items())
    lines.append(
        f"\nMedians, greedy, 128 tokens, all on one Q4_1 file. Identical answers with and without `auto`: {pairs}. "
        f"{where['processor']}, {where['threads']} threads, llama.cpp {content['versions']['llama.cpp']['version']}, "
        f"{where['date']}."
    )
    return "\n".join(lines)


def cpu_ratios() -> str:
    content = read("cpu.json")
    by_variant = content["ratios_by_variant"]["decoding"]
    names = [name for name in by_variant["int16"] if "ngram" not in name or name.endswith("ngram")]
    lines = ["| ratio of decoding speeds | int16 | int8 |", "|---|---|---|"]
    for name in names:
        found = (by_variant[variant].get(name) for variant in ("int16", "int8"))
        cells = [spread(each) if each else "" for each in found]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rows() -> str:
    """T(q)."""
    content = read("cpu.json")["rows"]
    widths = list(next(iter(content["seconds"].values())))
    lines = [f"| ms by number of rows | {' | '.join(widths)} |", "|---|" + "---|" * len(widths)]
    for name, seconds in content["seconds"].items():
        lines.append(
            f"| {name} | {' | '.join(f'{statistics.median(seconds[width]) * 1000:.1f}' for width in widths)} |"
        )
    return "\n".join(lines)


def threads() -> str:
    """By threads, on two machines."""
    content = {name: read(f"{name}.json") for name in ("threads", "threads-16-cores")}
    widths = list(content["threads"]["int16, 1 threads"])
    lines = [f"| cores | threads | ms by number of rows: {' | '.join(widths)} |", "|---|---|" + "---|" * len(widths)]
    for entry in content.values():
        for count in (1, 2, 4, 8, 16):
            for activations in ("int16", "int8"):
                times = entry.get(f"{activations}, {count} threads")
                if times is not None:
                    cells = " | ".join(f"{times[width]:.1f}" for width in widths)
                    lines.append(f"| {entry['cores']} | {count}, {activations} | {cells} |")
    return "\n".join(lines)


def exact() -> str:
    """Several tokens at a time against one, token for token."""
    lines = ["| | prompts | tokens | forwards | answers that differ |", "|---|---|---|---|---|"]
    for name, entry in read("exact-auto.json").items():
        numbers = (f"{entry[each]:,}" for each in ("prompts", "tokens", "forwards", "different"))
        lines.append(f"| `auto`, {name} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def start() -> str:
    content = read("start.json")
    lines = ["| backend | start to first token | resident memory |", "|---|---|---|"]
    for name in ("native", "torch"):
        entry = content[name]
        low, high = entry["spread"]
        lines.append(f"| {name} | {entry['seconds']:.2f} s ({low:.2f} to {high:.2f}) | {entry['megabytes']:.0f} MB |")
    return "\n".join(lines)


def drift() -> str:
    lines = ["| weights | activations | KL from float32, nats | largest difference of a logit | same likeliest token |"]
    lines.append("|---|---|---|---|---|")
    for weights, kinds in read("drift.json").items():
        for activations, entry in kinds.items():
            lines.append(
                f"| {weights} | {activations} | {entry['divergence']:.1e} | {entry['largest']:.2g} | "
                f"{entry['agreement']:.1%} |"
            )
    return "\n".join(lines)
