"""The README's one table: what to expect on which machine, from bench/results/cpu.json and gpu.json."""

from typing import Any

from bench.measured import read, spread, table

PEERS = {
    "llama.cpp": "multi_vs_llamacpp",
    "llama.cpp ngram-cache": "multi_vs_llamacpp_ngram",
    "llama.cpp ngram-mod": "multi_vs_llamacpp_ngram_mod",
}
"""llama.cpp's settings that were measured, and the ratio of our `auto` over each."""
Row = tuple[str, str, str, str, str]


def expectations() -> str:
    """`auto` over plain decoding and over the peer that people use there, at its best."""
    cpu, gpu = (read(name) for name in ("cpu.json", "gpu.json"))
    heads = ("", "one token at a time", "`auto`", "over one at a time", "over the usual peer, at its best setting")
    return f"{table(heads, (_cpu(cpu), _small(gpu), _large(gpu)))}\n\n{_notes(cpu, gpu)}"


def _cpu(cpu: dict[str, Any]) -> Row:
    figures, ratios = cpu["figures"]["all"], _ratios(cpu)
    best = max(PEERS, key=lambda name: figures[name]["decoding_tokens_per_s"]["median"])
    plain, auto = (figures[f"{way} {cpu['headline']}"]["decoding_tokens_per_s"]["median"] for way in ("plain", "multi"))
    return (
        f"CPU, {cpu['machine']['cores']} cores, 4-bit, 135M", f"{plain:.0f} tokens/s", f"{auto:.0f} tokens/s",
        spread(ratios["multi_vs_plain"], unit="x"), f"{best}, same file: {spread(ratios[PEERS[best]], unit='x')}",
    )  # fmt: skip


def _small(gpu: dict[str, Any]) -> Row:
    groups = gpu["decode"]["groups"]
    speeds = {
        way: [f"{ways[way]['tokens_per_second']['median']:,.0f}" for ways in groups.values()]
        for way in ("autoregressive", "auto")
    }
    gains = [f"{ways['auto']['speed_up_over_all']:.2f}x" for ways in groups.values()]
    return (
        "GPU, bfloat16, 135M", _by_group(speeds["autoregressive"], groups), _by_group(speeds["auto"], groups),
        _by_group(gains, groups), "vLLM: not measured",
    )  # fmt: skip


def _large(gpu: dict[str, Any]) -> Row:
    made = gpu["large"]["projection"]
    groups = made["groups"]
    return (
        "GPU, bfloat16, shape of an 8B model: **projection**", f"{made['plain_tokens_per_second']:.0f}",
        _by_group([f"{each['tokens_per_second']:.0f}" for each in groups.values()], groups),
        _by_group([f"{each['over_plain']:.2f}x" for each in groups.values()], groups), "vLLM: not measured",
    )  # fmt: skip


def _ratios(cpu: dict[str, Any]) -> dict[str, Any]:
    return cpu["ratios_by_variant"]["decoding"][cpu["headline"]]


def _by_group(cells: list[str], groups: dict[str, Any]) -> str:
    return ", ".join(f"{group} {cell}" for group, cell in zip(groups, cells, strict=True))


def _notes(cpu: dict[str, Any], gpu: dict[str, Any]) -> str:
    where, made = cpu["machine"], gpu["decode"]["circumstances"]
    ratios = _ratios(cpu)
    kinds = [(ratios[f"multi_vs_plain_{kind}"]["median"], kind) for kind in cpu["figures"] if kind != "all"]
    (low, worst), (high, easiest) = min(kinds), max(kinds)
    compiled = gpu["compile"]
    return (
        f"One user, greedy, medians. CPU: the built-in model, one {cpu['run']['weights']} file for all, llama.cpp "
        f"{cpu['versions']['llama.cpp']['version']}; gain by kind of prompt from {low:.2f}x ({worst}) to {high:.2f}x "
        f"({easiest}); {where['processor']}, {where['date']}. GPU: the built-in model; a plain step takes "
        f"{compiled['our_step']['median']:.2f} ms, transformers' compiled network {compiled['compiled']['median']:.2f} "
        f"ms; 8B: measured steps with random weights, and the small model's acceptance; {made['machine']['device']}, "
        f"torch {made['versions']['torch']}, commit {made['commit']}."
    )
