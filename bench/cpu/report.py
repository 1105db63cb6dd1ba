"""What bench/cpu/run.py found: ratios, tables and the picture. Pure: from runs to figures."""

import random
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.cpu.peers import LLAMA, NGRAMS, OPENVINO, TRANSFORMERS, VARIANTS, Answer
from stridelm.bench import quality

ALL = "all"
MEASURES: dict[str, Callable[[Answer], float]] = {
    "decoding": lambda answer: answer.decoding,
    "whole": lambda answer: answer.whole,
}
"""Tokens per second after the first token, and of the whole answer."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one subject."""

    subject: str
    prompt: int
    category: str
    round: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median over same-round pairs, and its 95 % interval."""

    median: float
    low: float
    high: float
    pairs: int


def ratio(runs: Iterable[Run], over: str, under: str, category: str = ALL, measure: str = "decoding") -> Ratio | None:
    """How many times the speed of `under` the subject `over` has; None where they never met.

    A pair is the same prompt in the same round. The interval resamples prompts, and rounds within a prompt: the rounds
    of one prompt are alike, and to take them for independent would make it too narrow.
    """
    speed = MEASURES[measure]
    found: dict[tuple[int, int], dict[str, float]] = {}
    for run in runs:
        if run.subject in (over, under) and category in (ALL, run.category):
            found.setdefault((run.prompt, run.round), {})[run.subject] = speed(run.answer)
    by_prompt: dict[int, list[float]] = {}
    for (prompt, _), speeds in found.items():
        if over in speeds and under in speeds:
            by_prompt.setdefault(prompt, []).append(speeds[over] / speeds[under])
    if not by_prompt:
        return None
    groups = list(by_prompt.values())
    pairs = [each for group in groups for each in group]
    low, high = _bootstrap(groups)
    return Ratio(statistics.median(pairs), low, high, len(pairs))


def _bootstrap(groups: list[list[float]]) -> tuple[float, float]:
    dice = random.Random(0)
    medians = sorted(
        statistics.median(
            each for group in dice.choices(groups, k=len(groups)) for each in dice.choices(group, k=len(group))
        )
        for _ in range(RESAMPLES)
    )
    return medians[round(0.025 * (RESAMPLES - 1))], medians[round(0.975 * (RESAMPLES - 1))]


def ratios(runs: list[Run], variant: str, measure: str = "decoding") -> dict[str, Ratio]:
    """Of one variant of ours, by name: `multi_vs_llamacpp_maths` and the like. Those that nobody ran are left out."""
    plain, multi = f"plain {variant}", f"multi {variant}"
    (ngram, ngram_mod), categories = (f"{LLAMA} {name}" for name in NGRAMS[:2]), categories_of(runs)
    wanted: dict[str, tuple[str, str, str]] = {
        "plain_vs_llamacpp": (plain, LLAMA, ALL),
        "plain_vs_openvino": (plain, OPENVINO, ALL),
        "plain_vs_transformers": (plain, TRANSFORMERS, ALL),
        "multi_vs_plain": (multi, plain, ALL),
        "multi_vs_llamacpp": (multi, LLAMA, ALL),
        "multi_vs_llamacpp_ngram": (multi, ngram, ALL),
        "multi_vs_llamacpp_ngram_mod": (multi, ngram_mod, ALL),
        "multi_vs_openvino": (multi, OPENVINO, ALL),
        "multi_vs_transformers": (multi, TRANSFORMERS, ALL),
        "llamacpp_ngram_vs_llamacpp": (ngram, LLAMA, ALL),
    }
    for category in categories:
        wanted[f"multi_vs_plain_{category}"] = (multi, plain, category)
        wanted[f"multi_vs_llamacpp_{category}"] = (multi, LLAMA, category)
        wanted[f"multi_vs_llamacpp_ngram_{category}"] = (multi, ngram, category)
    found = {name: ratio(runs, *pair, measure) for name, pair in wanted.items()}
    return {name: each for name, each in found.items() if each is not None}


def ratio_figures(runs: list[Run], subjects: list[str]) -> dict[str, Any]:
    """All ratios, for JSON; those without a variant's name are of the headline's decoding."""
    variants = [each for each in VARIANTS if any(name.endswith(f" {each}") for name in subjects)]
    found = {measure: {variant: ratios(runs, variant, measure) for variant in variants} for measure in MEASURES}
    chosen = headline(subjects)
    chief = found["decoding"].get(chosen or "", {})
    return {
        "headline": chosen,
        "ratios": {name: round(each.median, 4) for name, each in chief.items()},
        "ratio_intervals": {name: [round(each.low, 4), round(each.high, 4)] for name, each in chief.items()},
        "ratios_by_variant": {
            measure: {
                variant: {name: asdict(each) for name, each in by_name.items()}
                for variant, by_name in by_variant.items()
            }
            for measure, by_variant in found.items()
        },
    }


def categories_of(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(run.category for run in runs))


def subjects_of(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(run.subject for run in runs))


def headline(subjects: Iterable[str]) -> str | None:
    """The variant of ours that the ratios without a name are about: the first that took part."""
    present = set(subjects)
    return next((each for each in VARIANTS if f"plain {each}" in present or f"multi {each}" in present), None)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def figures(runs: list[Run]) -> dict[str, Any]:
    """Per category and subject: speeds, the time to the first token, tokens per forward."""
    return {category: _by_subject(runs, category) for category in [*categories_of(runs), ALL]}


def _by_subject(runs: list[Run], category: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for subject in subjects_of(runs):
        answers = [run.answer for run in runs if run.subject == subject and category in (ALL, run.category)]
        found[subject] = {
            "answers": len(answers),
            "decoding_tokens_per_s": _spread([answer.decoding for answer in answers]),
            "whole_tokens_per_s": _spread([answer.whole for answer in answers]),
            "first_token_ms": _spread([1e3 * answer.first_seconds for answer in answers]),
            "tokens_per_forward": round(
                sum(len(answer.ids) for answer in answers) / sum(answer.forwards for answer in answers), 3
            ),
        }
    return found


def _spread(values: list[float]) -> dict[str, float]:
    return dict(zip(("low", "median", "high"), (round(value, 2) for value in quartiles(values)), strict=True))


def same_answers(runs: list[Run]) -> dict[str, dict[str, int]]:
    """Per variant of ours: in how many same-round pairs plain and multi-token decoding wrote the same tokens."""
    ids = {(run.subject, run.prompt, run.round): run.answer.ids for run in runs}
    found: dict[str, dict[str, int]] = {}
    for variant in VARIANTS:
        pairs = [
            (own, ids[f"multi {variant}", prompt, number])
            for (subject, prompt, number), own in ids.items()
            if subject == f"plain {variant}" and (f"multi {variant}", prompt, number) in ids
        ]
        if pairs:
            found[variant] = {"compared": len(pairs), "identical": sum(a == b for a, b in pairs)}
    return found


def agreement(runs: list[Run], reference: str) -> dict[str, float]:
    """Per subject, the mean share of the reference's answer that it wrote before the first other token: a peer that
    runs another model, or another prompt, shows here."""
    answers = {run.prompt: run.answer.ids for run in reversed(runs) if run.subject == reference}
    shares: dict[str, list[float]] = {}
    for run in runs:
        if expected := answers.get(run.prompt):
            shares.setdefault(run.subject, []).append(quality.agreement(expected, run.answer.ids))
    return {subject: round(statistics.mean(each), 3) for subject, each in shares.items()}


def speed_table(found: dict[str, Any]) -> Table:
    heads = ("prompts", "subject", "tokens/s, decoding", "tokens/s, whole answer", "first token, ms", "tokens a pass")
    table = Table(*heads, title="Speed: medians (and quartiles)", title_justify="left", box=None, pad_edge=False)
    for category, subjects in found.items():
        for subject, each in subjects.items():
            decoding, whole, first = (
                each[name] for name in ("decoding_tokens_per_s", "whole_tokens_per_s", "first_token_ms")
            )
            table.add_row(category, subject, _cell(decoding), _cell(whole), f"{first['median']:.0f}",
                          f"{each['tokens_per_forward']:.2f}")  # fmt: skip
        table.add_section()
    return table


def _cell(spread: dict[str, float]) -> str:
    return f"{spread['median']:.1f} ({spread['low']:.1f} to {spread['high']:.1f})"


def ratio_table(found: dict[str, dict[str, Ratio]]) -> Table:
    """`found`: variant -> name -> ratio."""
    table = Table("ratio", *found, title="Ratios of decoding speeds: median (95 % interval)", title_justify="left",
                  box=None, pad_edge=False)  # fmt: skip
    for name in dict.fromkeys(name for each in found.values() for name in each):
        cells = [each.get(name) for each in found.values()]
        table.add_row(name, *(f"{r.median:.2f} ({r.low:.2f} to {r.high:.2f})" if r else "" for r in cells))
    return table


def rows_table(times: dict[str, dict[int, list[float]]], context: int) -> Table:
    """`times`: process -> width -> seconds."""
    widths = list(dict.fromkeys(width for each in times.values() for width in each))
    table = Table("rows", *map(str, widths), title=f"One forward over so many rows, context {context}: median ms",
                  title_justify="left", box=None, pad_edge=False)  # fmt: skip
    for name, each in times.items():
        table.add_row(name, *(f"{1e3 * statistics.median(each[width]):.1f}" for width in widths))
    return table


def draw(times: dict[str, dict[int, list[float]]], context: int, where: str, file: Path) -> None:
    """T(q): on the left in milliseconds, on the right as a multiple of one row's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Okabe and Ito's colours, which colour-blind people can tell apart.
    colours = ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7")
    curves = {
        name: {width: 1e3 * statistics.median(each) for width, each in sorted(found.items())}
        for name, found in times.items()
    }
    shown, axes = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    panels = (
        ("ms", curves),
        ("times one row", {name: {q: ms / each[1] for q, ms in each.items()} for name, each in curves.items()}),
    )
    for axis, (unit, lines) in zip(axes, panels, strict=True):
        # transformers is so slow that in its scale the others are one line; its figures are in the table.
        drawn = {name: line for name, line in lines.items() if name != TRANSFORMERS or len(lines) == 1}
        ends = [line[max(line)] for line in drawn.values()]
        highest = 1.05 * max(ms for line in drawn.values() for ms in line.values())
        heights = apart(ends, highest / 18)
        for (name, line), colour, height in zip(drawn.items(), cycle(colours), heights, strict=False):
            axis.plot(list(line), list(line.values()), color=colour, marker="o", markersize=3, linewidth=1.6)
            label = f"StrideLM, {name}" if name in VARIANTS else name
            axis.annotate(label, (max(line), height), xytext=(6, 0), textcoords="offset points", color=colour,
                          va="center", fontsize=9, annotation_clip=False)  # fmt: skip
        axis.set(xlabel="rows of a forward", ylabel=unit, xlim=(0, None), ylim=(0, highest))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
    shown.suptitle(f"What a forward costs, context {context}: {where}", fontsize=10)
    shown.savefig(file, dpi=150)
    pyplot.close(shown)


def apart(heights: list[float], gap: float) -> list[float]:
    """The heights, raised where they must be so that no two labels are closer than the gap."""
    raised = list(heights)
    for below, above in pairwise(sorted(range(len(heights)), key=heights.__getitem__)):
        raised[above] = max(raised[above], raised[below] + gap)
    return raised
