"""Fill the tables of README.md and the docs: settings from the code, figures from bench/results. `make tables`.

A table stands between two marks, `<!-- name -->` and `<!-- end name -->`; nobody types figures there.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from stridelm.settings import field_docs
from stridelm.train.settings import TrainSettings

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from bench.claims_tables import own_claims, published_claims  # noqa: E402
from bench.cpu.install_tables import builds, install  # noqa: E402
from bench.cpu.tables import (  # noqa: E402
    SECOND,
    activations,
    auto,
    beside,
    cpu,
    cpu_ratios,
    drift,
    exact,
    forward_parts,
    forwards,
    llama_bench,
    other_weights,
    prompts,
    rows,
    start,
    threads,
    weight_kinds,
)
from bench.decoding.prediction_tables import prediction  # noqa: E402
from bench.decoding.unverified_tables import failure_table, quality_table  # noqa: E402
from bench.engines.custom_generate_tables import custom_generate  # noqa: E402
from bench.engines.llama_tables import gguf_logits, llama_cpp, noise_rows  # noqa: E402
from bench.engines.vllm_tables import vllm, vllm_check  # noqa: E402
from bench.frontier.tables import adaptation, frontier  # noqa: E402
from bench.gpu.tables import gpu, gpu_in_short  # noqa: E402
from bench.measured import read  # noqa: E402
from bench.quick_tables import quick  # noqa: E402
from bench.readme_tables import expectations  # noqa: E402
from bench.replay.circumstances import replay_circumstances  # noqa: E402
from bench.replay.device import device  # noqa: E402
from bench.replay.run import replay  # noqa: E402
from bench.scale.tables import in_short, inputs, memory, published, serving_8b, serving_70b, steps, training  # noqa: E402
from bench.training.form_tables import draft_choices, draft_failures, forms, long_runs, sweep  # noqa: E402

FILES = (
    ROOT / "docs" / "training.md",
    ROOT / "docs" / "decoding.md",
    ROOT / "docs" / "installing.md",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "claims.md",
    ROOT / "docs" / "bench.md",
    ROOT / "docs" / "models.md",
    ROOT / "docs" / "engines.md",
    ROOT / "docs" / "scale.md",
    ROOT / "README.md",
)


def settings() -> str:
    docs = field_docs(TrainSettings)
    lines = ["| setting | default | |", "|---|---|---|"]
    for field in dataclasses.fields(TrainSettings):
        default = "" if field.default is None else f"`{field.default}`"
        lines.append(f"| `--{field.name.replace('_', '-')}` | {default} | {docs[field.name]} |")
    return "\n".join(lines)


def _rates(rates: list[float]) -> str:
    """Acceptance by depth."""
    return " ".join(f"{rate:.2f}" for rate in rates)


def acceptance() -> str:
    lines = ["| prompts | tokens per forward | acceptance by depth |", "|---|---|---|"]
    for name, entry in read("acceptance.json").items():
        lines.append(_row(f"**{name}** ({entry['prompts_measured']} prompts)", entry))
        categories = entry["categories"] if len(entry["categories"]) > 1 else {}
        lines += [_row(category, counts) for category, counts in categories.items()]
        if categories:
            lines.append(f"| mean over the {len(categories)} kinds | **{entry['mean_over_categories']:.2f}** | |")
    return "\n".join(lines)


def _row(name: str, entry: dict[str, Any]) -> str:
    rates = _rates(entry["acceptance_by_depth"])
    return f"| {name} | {entry['tokens_per_forward']:.2f} | {rates} |"


def conversion() -> str:
    """In short, for docs/performance.md."""
    entries = read("acceptance.json")
    lines = ["| prompts | tokens per forward |", "|---|---|"]
    for name, entry in entries.items():
        if len(entry["categories"]) > 1:
            lines.append(
                f"| mean over {len(entry['categories'])} kinds of prompts | {entry['mean_over_categories']:.2f} |"
            )
        else:
            lines.append(f"| {entry['prompts_measured']} {name} | {entry['tokens_per_forward']:.2f} |")
    return "\n".join(lines)


def speed() -> str:
    entry = read("train-speed-h200.json")
    low, high = entry["spread"]
    return (
        f"**{entry['steps_per_second']} steps/s** (ten parts from {low} to {high}) on one {entry['device']}, torch "
        f"{entry['torch']}, {entry['dtype']}, rank {entry['rank']}, {entry['memory_gb']} GB; the first ten steps, with "
        f"compilation, took {entry['warm_up_seconds']:.0f} s."
    )


def decoders() -> str:
    """What `auto` does on a CPU in float32, for docs/performance.md."""
    figures = read("decoders.json")
    bars, kinds, where = figures["bars"], figures["bars"]["by_kind"], figures["machine"]
    slowest = min((kind for kind in kinds if kind != "noise"), key=lambda kind: kinds[kind]["mean"])
    rows = [
        ("maths questions", bars["maths_over_plain"], bars["maths_over_transformers"]),
        ("twelve kinds of prompts, mean", bars["general_over_plain"], bars["general_over_transformers"]),
        (f"the slowest of them, {slowest}", kinds[slowest]["mean"], None),
        ("noise", kinds["noise"]["mean"], None),
    ]
    lines = ["| prompts | over one token at a time | over transformers' `generate` |", "|---|---|---|"]
    lines += [f"| {name} | {plain:.2f}x | {f'{peer:.2f}x' if peer else ''} |" for name, plain, peer in rows]
    lines.append(
        f"\n`auto`, greedy, up to {figures['tokens']} tokens, {figures['rounds']} interleaved rounds; "
        f"{bars['auto_identical_to_plain']} of {bars['auto_runs']} answers identical to plain decoding. "
        f"{where['processor']}, {where['threads']} threads, float32, torch {where['torch']}, transformers "
        f"{where['transformers']}, {where['date']}."
    )
    return "\n".join(lines)


def dial() -> str:
    """From exact to fast: means over the kinds of prompts."""
    kinds = {kind: part for kind, part in read("decoders.json")["kinds"].items() if kind != "noise"}
    names = ["autoregressive", "auto"]
    names += [name for name in next(iter(kinds.values())) if name.startswith(("auto,", "adaptive", "static"))]
    lines = ["| | tokens per forward | speed | agreement | log-likelihood |", "|---|---|---|---|---|"]
    for name in names:
        mean = {
            field: sum(part[name][field] for part in kinds.values()) / len(kinds)
            for field in ("tokens_per_forward", "speed_up", "agreement", "log_likelihood")
        }
        lines.append(
            f"| {name} | {mean['tokens_per_forward']:.2f} | {mean['speed_up']:.2f}x | {mean['agreement']:.2f} | "
            f"{mean['log_likelihood']:.2f} |"
        )
    return "\n".join(lines)


def coupling() -> str:
    lines = ["| temperature | coupled drafts | argmax drafts |", "|---|---|---|"]
    for temperature, entry in read("coupling.json")["tokens_per_forward"].items():
        lines.append(f"| {temperature} | {entry['coupled']:.2f} | {entry['argmax']:.2f} |")
    return "\n".join(lines)


def objectives() -> str:
    """Verified: what each objective is worth in tokens per forward."""
    lines = ["| objective | loss at the end | tokens per forward | acceptance by depth |", "|---|---|---|---|"]
    for name, entry in read("objectives.json").items():
        found = entry["verified"]
        rates = _rates(found["acceptance_by_depth"])
        lines.append(f"| {name} | {entry['loss']:.2f} | {found['tokens_per_forward']:.2f} | {rates} |")
    return "\n".join(lines)


def objectives_cut_short() -> str:
    """Runs whose last word is their own measurement at the end of training."""
    lines = ["| objective | tokens per forward, own held-out prompts | acceptance by depth |", "|---|---|---|"]
    for name, entry in read("objectives-cut-short.json").items():
        rates = _rates(entry["acceptance"])
        lines.append(f"| {name} | {entry['tokens_per_forward']:.2f} | {rates} |")
    return "\n".join(lines)


def unverified() -> str:
    """ConfAdapt at several thresholds; the static settings are in the table of failures."""
    content = read("unverified.json")
    for subject in content["subjects"].values():
        subject["settings"] = [entry for entry in subject["settings"] if entry["decoder"] == "adaptive"]
    return quality_table([content])


def failures() -> str:
    return failure_table([read("unverified.json")])


def drafters() -> str:
    prompts = read("drafters.json")["prompts"]
    heads = [f"{name} ({next(iter(part.values()))['answers']} answers)" for name, part in prompts.items()]
    lines = [
        f"| drafter | {' | '.join(heads)} | acceptance by depth, {heads[0]} |",
        "|---|" + "---|" * (len(heads) + 1),
    ]
    first = next(iter(prompts.values()))
    for drafter, entry in first.items():
        figures = " | ".join(f"{part[drafter]['tokens_per_forward']:.2f}" for part in prompts.values())
        rates = _rates(entry["acceptance"])
        lines.append(f"| `{drafter}` | {figures} | {rates} |")
    return "\n".join(lines)


def serving() -> str:
    """The server under load, for docs/performance.md."""
    figures = read("serving.json")
    where = figures["machine"]
    lines = [
        "| users | one token at a time | `auto` | ratio (95 %) | tokens per forward |",
        "|---|---|---|---|---|",
    ]
    for line in figures["summary"]:
        lines.append(
            f"| {line['users']} | {line['plain tokens/s']:.0f} tokens/s | {line['auto tokens/s']:.0f} tokens/s | "
            f"{line['ratio']:.2f} ({line['low']:.2f} to {line['high']:.2f}) | {line['tokens per forward']:.2f} |"
        )
    rounds = max(entry["round"] for entry in figures["measured"]) + 1
    same, compared = (sum(entry[name] for entry in figures["measured"]) for name in ("same", "compared"))
    lines.append(
        f"\nThe built-in model, greedy, {rounds} rounds; medians, and the mean ratio within a round. {same} of "
        f"{compared} answers that both finished are identical. {where['processor']}, {where['threads']} threads, "
        f"native backend, {where['date']}."
    )
    return "\n".join(lines)


TABLES = {
    "objectives": objectives, "objectives cut short": objectives_cut_short, "unverified": unverified,
    "failures": failures, "drafters": drafters,
    "sweep 500": lambda: sweep("sweep-500-h200.json"), "forms": forms, "forms long": long_runs,
    "draft failures": draft_failures, "draft choices": draft_choices,
    "settings": settings, "sweep": lambda: sweep("sweep-h200.json"),
    "acceptance": acceptance, "conversion": conversion, "speed": speed,
    "decoders": decoders, "dial": dial, "coupling": coupling, "serving": serving,
    "cpu": cpu, "cpu ratios": cpu_ratios, "rows": rows, "threads": threads, "start": start, "drift": drift,
    "activations": activations, "forwards": forwards, "kinds": weight_kinds, "forward parts": forward_parts,
    "prompts": prompts,
    "beside": beside, "cpu q4_1": lambda: cpu(SECOND), "cpu q4_1 ratios": lambda: cpu_ratios(SECOND),
    "llama bench": llama_bench, "other weights": other_weights,
    "exact": exact, "published claims": published_claims, "own claims": own_claims,
    "quick": quick, "frontier": frontier, "adaptation": adaptation, "custom generate": custom_generate,
    "scale in short": in_short, "scale inputs": inputs, "scale steps": steps, "scale memory": memory,
    "scale 8B": serving_8b, "scale 70B": serving_70b, "scale published": published, "scale training": training,
    "llama.cpp": llama_cpp, "gguf logits": gguf_logits, "noise rows": noise_rows,
    "vllm": vllm, "vllm check": vllm_check,
    "gpu": gpu, "gpu in short": gpu_in_short, "prediction": prediction, "expectations": expectations,
    "install": install, "builds": builds, "auto": auto, "replay": replay, "replay gpu": device,
    "replay circumstances": replay_circumstances,
}  # fmt: skip


def filled(text: str) -> str:
    for name, make in TABLES.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        if start in text:
            before, rest = text.split(start)
            text = f"{before}{start}{make()}\n{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    stale = [file for file in FILES if filled(file.read_text(encoding="utf-8")) != file.read_text(encoding="utf-8")]
    if "--check" in sys.argv:
        sys.exit(f"out of date, run `make tables`: {', '.join(str(file) for file in stale)}" if stale else 0)
    for file in stale:
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
