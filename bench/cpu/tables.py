"""The tables of docs/performance.md, from what the scripts of this folder have written."""

import statistics
from typing import Any

from bench.cpu.auto import speed_ups
from bench.measured import RESULTS, read, spread
from stridelm.settings import ACTIVATIONS

_SUBJECTS = {
    "plain int8": "ours, one token at a time",
    "multi int8": "ours, `auto`",
    "plain int16": "ours, one at a time, int16",
    "multi int16": "ours, `auto`, int16",
    "llama.cpp": "llama.cpp",
    "llama.cpp ngram-cache": "llama.cpp, n-gram speculation",
    "llama.cpp ngram-mod": "llama.cpp, its default speculation",
    "openvino": "OpenVINO GenAI",
    "transformers": "transformers, float32",
}
HEADLINE, SECOND = "cpu.json", "cpu-q4_1.json"
"""What run.py found on a Q4_0 file, for which llama.cpp has repacked kernels, and on the built-in Q4_1 file."""


def cpu(file: str = HEADLINE) -> str:
    """Tokens per second after the first, by category."""
    content = read(file)
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
        f"\nMedians, greedy, 128 tokens, all on one {content['run']['weights']} file. Identical answers with and "
        f"without `auto`: {pairs}. {where['processor']}, {where['threads']} threads, llama.cpp "
        f"{content['versions']['llama.cpp']['version']}, {where['date']}."
    )
    return "\n".join(lines)


def cpu_ratios(file: str = HEADLINE) -> str:
    by_variant = read(file)["ratios_by_variant"]["decoding"]
    of_default = by_variant[ACTIVATIONS[0]]
    names = [name for name in of_default if "ngram" not in name or name.endswith(("ngram", "ngram_mod"))]
    lines = [f"| ratio of decoding speeds | {' | '.join(ACTIVATIONS)} |", "|---|---|---|"]
    for name in names:
        found = (by_variant[variant].get(name) for variant in ACTIVATIONS)
        cells = [spread(each) if each else "" for each in found]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def auto() -> str:
    """`auto` over plain decoding, by suite."""
    content = read("auto.json")
    forms, where = content["forms"], content["machine"]
    return (
        f"{speed_ups(forms)}\n\nDecoding, greedy, {content['rounds']} interleaved rounds, tokens per second; identical "
        f"answers. {_place(where)}"
    )


def forwards() -> str:
    """Milliseconds by rows before and after, of both builds."""
    lines: list[str] = []
    for file, build in (("forward-rows.json", "AVX-512"), ("forward-rows-avx2.json", "AVX2 alone")):
        content = read(file)
        by = content["milliseconds"]
        shapes = list(next(iter(by.values())))
        if not lines:
            lines = [f"| ms by rows | {' | '.join(shapes)} |", "|---|" + "---|" * len(shapes)]
        for name, times in by.items():
            cells = (f"{times[shape]['median']:.2f} ({times[shape]['tenth']:.2f})" for shape in shapes)
            lines.append(f"| {build}: {name} | {' | '.join(cells)} |")
    where = content["machine"]
    lines.append(f"\nMedians (10th percentiles), context {content['context']}. {_place(where)}")
    return "\n".join(lines)


KINDS = "forward-kinds.json"


def weight_kinds() -> str:
    """Milliseconds by rows, by kind of file."""
    if not (RESULTS / KINDS).exists():
        return "Not measured yet (`bench/cpu/k_quants.py`, then `bench/cpu/forward.py --models`)."
    content = read(KINDS)
    by = content["milliseconds"]
    shapes = list(next(iter(by.values())))
    lines = [f"| ms by rows | {' | '.join(shapes)} |", "|---|" + "---|" * len(shapes)]
    for name, times in by.items():
        cells = (f"{times[shape]['median']:.1f}" for shape in shapes)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(f"\nMedians, context {content['context']}. {_place(content['machine'])}")
    return "\n".join(lines)


def forward_parts() -> str:
    """Where the time of a forward goes."""
    content = read("forward-parts.json")
    found = content["milliseconds"]
    parts = list(next(iter(found.values())))
    lines = [f"| ms a forward | {' | '.join(parts)} |", "|---|" + "---|" * len(parts)]
    for name, by in found.items():
        lines.append(f"| {name} | {' | '.join(f'{by[part]:.2f}' for part in parts)} |")
    lines.append(f"\nint8, context {content['context']}, sampled by `perf`. {_place(content['machine'])}")
    return "\n".join(lines)


def prompts() -> str:
    """How fast prompts are read."""
    content = read("prompts.json")
    found = content["tokens_per_s"]
    lengths = list(next(iter(found.values())))
    lines = [
        f"| prompt tokens/s | {' | '.join(f'{int(each):,}' for each in lengths)} |",
        "|---|" + "---|" * len(lengths),
    ]
    for name, by in found.items():
        cells = (f"{by[each]['median']:,.0f} ({by[each]['over_llama']:.2f}x)" for each in lengths)
        lines.append(f"| {name.replace('plain', 'ours,')} | {' | '.join(cells)} |")
    lines.append(f"\nMedians (over llama.cpp, same round), {content['gguf']}. {_place(content['machine'])}")
    return "\n".join(lines)


def beside() -> str:
    """Speed beside busy processes."""
    content = read("beside.json")
    found = content["figures"]
    counts = list(next(iter(found.values())))
    lines = [f"| tokens/s (seconds to the first) beside busy processes: | {' | '.join(counts)} |"]
    lines.append("|---|" + "---|" * len(counts))
    for name, by in found.items():
        cells = (f"{by[each]['tokens_per_s']:.0f} ({by[each]['first_seconds']:.2f})" for each in counts)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(f"\nMedians, one token at a time. {_place(content['machine'])}")
    return "\n".join(lines)


def _place(where: dict[str, Any]) -> str:
    return f"{where['processor']}, {where['threads']} threads, {where['date']}."


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
    widths = list(content["threads"][f"{ACTIVATIONS[0]}, 1 threads"])
    lines = [f"| cores | threads | ms by number of rows: {' | '.join(widths)} |", "|---|---|" + "---|" * len(widths)]
    for entry in content.values():
        for count in (1, 2, 4, 8, 16):
            for activations in ACTIVATIONS:
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


def llama_bench() -> str:
    """llama.cpp and a fork of it by their own benchmark, beside ours."""
    content = read("llama-bench.json")
    lines = ["| tokens/s | prompt of 512 tokens | 128 tokens, one at a time |", "|---|---|---|"]
    for name, (prompt, answer) in content["tokens_per_s"].items():
        lines.append(f"| {name} | {prompt:,.0f} | {answer:,.0f} |")
    about = content["machine"]
    lines.append(f"\nMedians, {content['gguf']}. {about['processor']}, {about['threads']} threads, {about['date']}.")
    return "\n".join(lines)


def other_weights() -> str:
    """The shipped adapter's tokens per forward on the weights that it was trained on, and on others of its model."""
    content = read("other-weights.json")
    names = {"gsm8k_heldout": "GSM8K", "kinds": "twelve kinds"}
    columns = [f"{name}, {drawn}" for name in names.values() for drawn in ("greedy", "temperature 0.7")]
    lines = [f"| weights | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for weights, found in content["weights"].items():
        cells = [
            f"{each['tokens_per_forward']:.2f} ({each['before_loops']['tokens_per_forward']:.2f})"
            for file in names
            for each in (found[f"{file}, {temperature}"] for temperature in (0.0, 0.7))
        ]
        lines.append(f"| {weights} | {' | '.join(cells)} |")
    machine = content["machine"]
    lines.append(f"\nTokens per forward (before an answer begins to loop). {machine['device']}, {machine['date']}.")
    return "\n".join(lines)


def activations() -> str:
    """Ours and llama.cpp against float32 of the same file, and the sums that each gets right."""
    content = read("activations.json")
    drifts, solved = content["drift"], content["solved"]
    head = "KL from float32, nats | same likeliest token | largest difference of a logit | sums right"
    lines = [f"| file | | {head} |", "|---|---|---|---|---|---|"]
    for file, found in drifts["files"].items():
        for name, each in found.items():
            divergence, agreement, right = each["divergence"], each["agreement"], solved["files"][file].get(name)
            lines.append(
                f"| {file} | {name} | {divergence['mean']:.1e} ({divergence['low']:.1e} to {divergence['high']:.1e}) | "
                f"{_share(agreement)} | {each['largest']:.2g} | {_share(right) if right else ''} |"
            )
    lines.append(
        f"\nMeans with intervals of 95 %, over {drifts['texts']} texts of {drifts['tokens']} tokens and "
        f"{solved['sums']} sums. {drifts['machine']['processor']}, {drifts['machine']['date']}."
    )
    return "\n".join(lines)


def _share(found: dict[str, float]) -> str:
    return f"{found['mean']:.1%} ({found['low']:.1%} to {found['high']:.1%})"
