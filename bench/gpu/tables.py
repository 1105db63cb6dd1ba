"""Tables of what bench/gpu/run.py has measured: beside their goals, then in detail.

python bench/gpu/tables.py [FILE]        prints them
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stridelm.settings import PLAIN

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import RESULTS, read, spread, table

SHARE, OVER_PEER, OVER_COMPILED, WIDE, WIDE_LARGE = 0.75, 10.0, 1.35, 1.3, 1.2
"""Goals: share of the tokens per forward; over transformers' `generate`; over a compiled step; 64 rows over one."""
WITHIN = 1.1
"""How far `stridelm bench` may be from `decode`."""
_NAMES = {PLAIN: "one token at a time", "self": "`self`", "auto": "`auto`", "transformers": "transformers `generate`"}
_PARTS = {"layers": "layers", "head": "output head", "settle": "walk", "drafts": "drafts", "whole": "all in one graph"}
Figures = dict[str, Any]
Row = list[str]


def gpu() -> str:
    """For docs/fill_tables.py."""
    return gpu_tables(read("gpu.json"))


def gpu_in_short() -> str:
    """One user, for docs/performance.md."""
    results = read("gpu.json")
    groups, compiled, exact = results["decode"]["groups"], results["compile"], results["exact"]["comparisons"][0]
    rows = [
        [name, *(f"{ways[way]['tokens_per_second']['median']:,.0f}" for ways in groups.values())]
        for way, name in _NAMES.items()
        if way != "self"
    ]
    rows.append(
        [
            "`auto` over one token at a time, all text",
            *(f"{ways['auto']['speed_up_over_all']:.2f}x" for ways in groups.values()),
        ]
    )
    rows.append(["tokens per forward", *(f"{ways['auto']['tokens_per_forward']:.2f}" for ways in groups.values())])
    shown = table(["one user, tokens/s", *groups], rows)
    made = results["decode"]["circumstances"]
    return (
        f"{shown}\n\nGreedy, up to {results['decode']['tokens']} tokens, medians. {exact['identical_tokens']:,} of "
        f"{exact['tokens']:,} tokens of {exact['prompts']} answers are identical to plain decoding's. A plain step "
        f"takes {compiled['our_step']['median']:.2f} ms; transformers' network under `torch.compile` takes "
        f'{compiled["compiled"]["median"]:.2f} ms ("reduce-overhead", static cache). {made["machine"]["device"]}, '
        f"{made['dtype']}, torch {made['versions']['torch']}, transformers {made['versions']['transformers']}."
    )


def gpu_tables(results: Figures) -> str:
    """Everything that the results hold, part by part; what they do not hold is left out."""
    bars = list(_bars(results))
    tables = [table(["", "measured", "goal", "reached"], bars)] if bars else []
    for part, make in _DETAILS.items():
        if _has_figures(results, part):
            tables.append(make(results[part]))
    return "\n\n".join([*tables, *_notes(results)])


def _has_figures(results: Figures, part: str) -> bool:
    return bool(results.get(part, {}).keys() - {"is_complete", "left_out", "seconds", "error", "circumstances"})


def _bars(results: Figures) -> Iterator[Row]:
    """Every figure that has a goal, and whether it was reached."""
    parts = {part: results[part] for part in results if _has_figures(results, part)}
    if "decode" in parts:
        yield from _decode_bars(parts["decode"])
    if "compile" in parts:
        found = parts["compile"]
        name = f"plain step over torch.compile's, context {found['context']}"
        if found["is_replayed"]:
            yield _bar(name, found["ratio"], OVER_COMPILED, most=True)
        else:
            yield [name, f"{spread(found['ratio'])}x", f"at most {OVER_COMPILED}x",
                   "not judged: their step was not replayed from a graph"]  # fmt: skip
    for part, model, asked in (("steps", "135M", WIDE), ("large", "8B-shaped", WIDE_LARGE)):
        for name, ratio in parts.get(part, {}).get("over_one_row", {}).items():
            yield _bar(f"{model}: forward over {name} / over one", ratio, asked, most=True)
    if "exact" in parts:
        for each in parts["exact"]["comparisons"]:
            if not each["prompts"]:
                continue
            same, tokens = each["identical_tokens"], each["tokens"]
            found = f"{same:,} of {tokens:,} tokens of {each['prompts']} prompts"
            yield [f"identical: {each['of']}, with {each['with']}", found, "all", _verdict(same == tokens)]
    for count, found in parts.get("batches", {}).get("users", {}).items():
        yield _bar(f"`auto` over plain, {_users(count)}", found["ratio"], 1.0)
    for count, found in parts.get("arrivals", {}).get("users", {}).items():
        is_met = found["is_healthy"] and not (
            found["wrong"] or found["errors"] or found["blocks_left"] or found["own_step_failures"]
        )
        right = f"{found['compared'] - len(found['wrong']):,} of {found['compared']:,} answers as alone"
        rest = f"{len(found['errors'])} errors, {found['blocks_left']} blocks left"
        yield [f"{_users(count)}, arriving and leaving", f"{right}, {rest}", "all, none, none", _verdict(is_met)]
    for group, ways in parts.get("agreement", {}).get("groups", {}).items():
        for way, found in ways.items():
            ratio = found["ratio"]
            verdict = _verdict(1 / WITHIN <= ratio["median"] <= WITHIN)
            name = f"{group}, {_NAMES[way]}: `stridelm bench` over `decode`"
            yield [name, f"{spread(ratio)}x", f"within {WITHIN - 1:.0%}", verdict]
    if "ratio" in parts.get("rollouts", {}):
        found = parts["rollouts"]
        name = f"rollouts, {found['sequences']:,} sequences, over {found['ratio']['over']}"
        yield [name, f"{spread(found['ratio'])}x", "well above 1x", _verdict(found["ratio"]["median"] > 1)]


def _decode_bars(decode: Figures) -> Iterator[Row]:
    for group, ways in decode["groups"].items():
        for way in ("self", "auto"):
            found = ways[way]
            asked, over_all = SHARE * found["tokens_per_forward"], found["speed_up_over_all"]
            yield [
                f"{group}, {_NAMES[way]}: speed-up over plain, {found['tokens_per_forward']:.2f} tokens per forward",
                f"{over_all:.2f}x ({found['share']:.2f} of the tokens per forward)",
                f"at least {SHARE} of them: {asked:.2f}x",
                _verdict(over_all >= asked),
            ]
        if "over_transformers" in ways["auto"]:
            yield _bar(f"{group}, `auto` over transformers `generate`", ways["auto"]["over_transformers"], OVER_PEER)


def _bar(name: str, found: Figures, asked: float, *, most: bool = False) -> Row:
    is_met = found["median"] <= asked if most else found["median"] >= asked
    return [name, f"{spread(found)}x", f"{'at most' if most else 'at least'} {asked:g}x", _verdict(is_met)]


def _verdict(is_met: bool) -> str:
    return "yes" if is_met else "no"


# In detail


def _decode(found: Figures) -> str:
    rows: list[Row] = []
    for group, ways in found["groups"].items():
        for way, name in _NAMES.items():
            if way not in ways:
                continue
            each = ways[way]
            up = "" if "speed_up" not in each else f"{spread(each['speed_up'])}x"
            over = f"{spread(each['over_transformers'])}x" if "over_transformers" in each else ""
            same = "" if "identical_tokens" not in each else f"{each['identical_tokens']:,} of {each['all_tokens']:,}"
            rows.append(
                [
                    group, name, spread(each["tokens_per_second"], 0), spread(each["milliseconds_per_token"], 3),
                    f"{each['tokens_per_forward']:.2f}", up, over, same,
                ]
            )  # fmt: skip
    heads = ["one user", "", "tokens/s", "ms per token", "tokens per forward", "over plain", "over transformers"]
    return table([*heads, "tokens identical to plain decoding"], rows)


def _steps(found: Figures) -> str:
    masks = found["forward_with_masks"]
    rows = [
        [count, spread(each, 3), spread(masks[count], 3) if count in masks else ""]
        for count, each in found["forward"].items()
    ]
    name = f"{found['shape']} with random weights, " if "shape" in found else ""
    forward = table([f"{name}rows per forward, context {found['context']}", "ms", "with masks, ms"], rows)
    whole = [
        [drafts, str(each["rows"]), spread(each, 3), *_parts_of_step(found.get("parts", {}).get(drafts, {}))]
        for drafts, each in found["steps"].items()
    ]
    return f"{forward}\n\n{table([f'{name}drafts per step', 'rows', 'step, ms', *_PARTS.values()], whole)}"


def _parts_of_step(parts: Figures) -> Row:
    return [spread(parts[name], 3) if name in parts else "" for name in _PARTS]


def _compile(found: Figures) -> str:
    names = {
        "our_step": "our plain step, tokens read by the host",
        "our_forward": "our forward over one row, one graph",
        "compiled": 'transformers\' network, static cache, torch.compile "reduce-overhead"',
        "eager": "the same, not compiled",
    }
    rows = [[text, spread(found[name], 3)] for name, text in names.items()]
    return table([f"one token a step, context {found['context']}", "ms"], rows)


def _attention(found: Figures) -> str:
    ways = list(dict.fromkeys(way for each in found["steps"].values() for way in each if way != "ratios"))
    rows = [
        [name, *(spread({key: 1000 * each[way][key] for key in ("median", "low", "high")}, 1) if way in each else ""
                 for way in ways)]
        for name, each in found["steps"].items()
    ]  # fmt: skip
    return table(["attention of one layer, µs", *ways], rows)


def _batches(found: Figures) -> str:
    rows = [
        [
            count, spread(each[PLAIN], 0), spread(each["auto"], 0), f"{spread(each['ratio'])}x",
            f"{each['tokens_per_forward']:.2f}", f"{each['identical_answers']} of {each['answers']}",
        ]
        for count, each in found["users"].items()
    ]  # fmt: skip
    heads = ["users", "plain, total tokens/s", "`auto`", "", "tokens per forward", "answers identical to plain"]
    return table(heads, rows)


def _arrivals(found: Figures) -> str:
    rows = [
        [
            count, f"{each['asked']:,}", f"{each['whole']:,}", f"{each['left']:,}", f"{each['greedy']:,}",
            f"{each['sampled']:,}", f"{each['own forwards']:,}", f"{each['host forwards']:,}",
            f"{each['tokens_per_second']:,.0f}",
        ]
        for count, each in found["users"].items()
    ]  # fmt: skip
    heads = [f"users, one every {found['gap_milliseconds']:.0f} ms", "requests", "answered", "left early", "greedy"]
    return table([*heads, "sampled", "own forwards", "host's", "total tokens/s"], rows)


def _agreement(found: Figures) -> str:
    rows = [
        [group, _NAMES[way], spread(each["bench"], 0), spread(each["decode"], 0), found["paths"][way]]
        for group, ways in found["groups"].items()
        for way, each in ways.items()
    ]
    return table(["tokens/s after the first", "", "`stridelm bench`", "`decode`", "path"], rows)


def _rollouts(found: Figures) -> str:
    rows = [[name, spread(each, 0)] for name, each in found["tokens_per_second"].items()]
    return table([f"{found['sequences']:,} sequences, {found['tokens']} tokens each", "tokens/s"], rows)


def _exact(found: Figures) -> str:
    """Departures one by one; an empty list says so."""
    rows = [
        [each["of"], each["with"], str(one["prompt"]), str(one["position"]), f"{one['margin']:.3g}"]
        for each in found["comparisons"]
        for one in each["departures"]
    ]
    if not rows:
        return "No answer differed from plain decoding."
    return table(["departures of", "from", "prompt", "at token", "margin of the two best logits"], rows)


def _large(found: Figures) -> str:
    made = found["projection"]
    rows = [["", "one token at a time", "", "1.00", f"{made['plain_tokens_per_second']:.0f}", "1.00x"]]
    rows += [
        [
            group, f"acceptance of {each['acceptance_from']}", str(each["drafts"]), f"{each['tokens_per_forward']:.2f}",
            f"{each['tokens_per_second']:.0f}", f"{each['over_plain']:.2f}x",
        ]
        for group, each in made["groups"].items()
    ]  # fmt: skip
    heads = ["**projection**, not measured", "", "drafts", "tokens per forward", "tokens/s", "over plain"]
    return f"{_steps(found)}\n\n{table(heads, rows)}"


_DETAILS = {
    "decode": _decode,
    "steps": _steps,
    "compile": _compile,
    "attention": _attention,
    "batches": _batches,
    "arrivals": _arrivals,
    "agreement": _agreement,
    "rollouts": _rollouts,
    "exact": _exact,
    "large": _large,
}


def _notes(results: Figures) -> list[str]:
    """What was not measured, and where the rest was."""
    notes: list[str] = []
    places: dict[str, list[str]] = {}
    for part, found in results.items():
        made = found["circumstances"]
        if made["smoke"]:
            notes.append(f"`{part}` is a smoke run: its figures mean nothing.")
        if found["error"]:
            notes.append(f"`{part}` broke off: {found['error']}")
        if not found["is_complete"] and not found["error"] and not found["left_out"]:
            notes.append(f"`{part}` was stopped early: what is missing was not measured.")
        if found["left_out"]:
            notes.append(f"`{part}`, not measured (out of time): {'; '.join(found['left_out'])}.")
        versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("torch", "transformers", "triton"))
        place = f"{made['machine']['device']}, {made['dtype']}, {versions}, commit {made['commit']}"
        places.setdefault(place, []).append(part)
    for place, parts in places.items():
        notes.append(f"{', '.join(f'`{part}`' for part in parts)}: {place}.")
    if results:
        notes.append("Medians; in brackets the range of the middle 80 % of the times.")
    return notes


def _users(count: str) -> str:
    return "1 user" if count == "1" else f"{count} users"


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "gpu.json"
    print(gpu_tables(json.loads(file.read_text(encoding="utf-8"))))
