"""The tables of docs/scale.md, from what bench/scale/project.py has written."""

import re
from typing import Any

from bench.measured import read, table

_ROWS = (1, 2, 4, 5, 9, 16, 25, 36, 64, 81)


def in_short() -> str:
    """Of each model's first layout, with the fewest and the most users."""
    content, lines = read("scale.json"), []
    for name, model in content["models"].items():
        first = model["serving"][0]["layout"]
        entries = [entry for entry in _serving(content, name) if entry["layout"] == first]
        for entry in (entries[0], entries[-1]):
            plain = entry["plain"]
            told = [
                f"{each['over_plain']:.2f} times that on {kind} (${_dollars(each)})"
                for kind, each in entry["exact"].items()
            ]
            lines.append(
                f"- **{name}, {first}, {_users(entry)}**: one token at a time "
                f"{plain['tokens_per_second_per_user']:,.0f} tokens/s a user (${_dollars(plain)} a million); with "
                f"drafts {', '.join(told)}."
            )
    return "\n".join(lines)


def inputs() -> str:
    """What is assumed, and where the rest was measured."""
    content = read("scale.json")
    given, links, where = content["inputs"], content["inputs"]["links"], content["step_costs"]
    rows = [
        ["price of a GPU", f"${given['price']:.2f} an hour"],
        ["memory of a GPU", f"{given['gpu_bytes'] / 1e9:.0f} GB, {100 * given['usable']:.0f} % of it for us"],
        ["adapter", f"rank {given['rank']}, {given['masks']} masks, sequential head of {given['sequential_size']}"],
        ["sequential head", f"{given['head_milliseconds']} ms a draft"],
        ["all-reduce in a machine", _link(links["node_bytes_per_second"], links["node_latency"])],
        ["between machines", _link(links["network_bytes_per_second"], links["network_latency"])],
    ]
    told = (
        f"\n\nSteps were measured on one {where['machine']}, torch {where['torch']}, {where['dtype']}, CUDA graphs, "
        f"medians of {where['replays']} replays, commit {where['commit'][:12]}. In {where['steady_points']} of "
        f"{where['points']} points the middle four fifths of the replays lie within a band of "
        f"{100 * where['steady']:.0f} % of the median"
    )
    missing = "" if where["complete"] else f". Not measured: {'; '.join(map(left_out, where['left_out']))}"
    return table(["assumed", ""], rows) + told + missing + "."


def left_out(told: str) -> str:
    """A group of bench/scale/step_cost.py, or what was still to come of one, in words."""
    group, _, rest = told.partition(": ")
    named = re.fullmatch(r"(.+) / (\d+), (\d+) layers, rank (\d+)", group)
    point = re.fullmatch(r"from \((\d+), (\d+), (\d+)\)", rest)
    if named is None or (rest and point is None):
        return told
    model, ranks, layers, rank = named.groups()
    shard = f", a rank of TP {ranks}" if int(ranks) > 1 else ""
    adapter = f" with an adapter of rank {rank}" if int(rank) else ""
    words = f"{layers} layers of {model}{shard}{adapter}"
    if point is None:
        return words
    batch, rows, context = map(int, point.groups())
    return f"{words}, from {batch} sequences of {rows} rows at a context of {context:,} on"


def _link(pace: float, latency: float) -> str:
    return f"{pace / 1e9:.0f} GB/s, {1e6 * latency:.0f} µs"


def steps() -> str:
    """T(q), by rows per sequence."""
    rows = []
    for curve in read("scale.json")["step_costs"]["curves"]:
        times = curve["milliseconds"]
        shard = f", a rank of TP {curve['ranks']}" if curve["ranks"] > 1 else ""
        cells = [f"{times[str(row)]:.2f}" if str(row) in times else "" for row in _ROWS]
        rows.append([f"{curve['model']}{shard}", str(curve["batch"]), *cells])
    return table(["ms", "sequences", *(f"{row} row{'s' if row > 1 else ''}" for row in _ROWS)], rows)


def memory() -> str:
    rows = []
    for name, model in read("scale.json")["models"].items():
        held = model["memory"]
        rooms = ", ".join(f"{layout}: {count:,}" for layout, count in held["sequences_of_2048"].items())
        rows.append(
            [
                name, f"{held['parameters'] / 1e9:.2f} B", f"{held['weight_bytes'] / 1e9:.1f} GB",
                f"{held['kv_bytes_per_token'] / 1024:.0f} KiB", f"{held['adapter_bytes'] / 1e6:,.0f} MB", rooms,
            ]
        )  # fmt: skip
    heads = ["", "parameters", "weights", "KV cache a token", "adapter", "sequences of 2,048 tokens that fit"]
    return table(heads, rows)


def _serving(content: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """At the longer context."""
    return [entry for entry in content["models"][model]["serving"] if entry["context"] == 2048]


def serving(model: str) -> str:
    content = read("scale.json")
    names = list(next(iter(content["models"].values()))["serving"][0]["exact"])
    heads = ["", "users", "one at a time: tokens/s a user", "a GPU", "$ a million"]
    for name in names:
        heads += [f"{name}: drafts", "tokens/s a user", "$ a million", "times"]
    heads += [f"vLLM, plugin, {name}" for name in names if _serving(content, model)[0]["plugin"]]
    heads.append("vLLM, `full`, maths")
    rows = []
    for entry in _serving(content, model):
        row = [entry["layout"], str(entry["users"]), *_paces(entry["plain"])]
        for name in names:
            exact = entry["exact"][name]
            user, _, dollars = _paces(exact)
            row += [_way(exact), user, dollars, f"**{exact['over_plain']:.2f}x**"]
        row += [_times(each) for each in entry["plugin"].values()]
        row.append(_times(entry["two_models"]) if "two_models" in entry else _without(entry))
        rows.append(row)
    return table(heads, rows)


def _paces(entry: dict[str, Any]) -> list[str]:
    told = [f"{entry[f'tokens_per_second_per_{whom}']:,.0f}" for whom in ("user", "gpu")]
    return [*told, _dollars(entry)]


def _dollars(entry: dict[str, Any]) -> str:
    dollars = entry["dollars_per_million_tokens"]
    return f"{dollars:.2f}" if dollars >= 1 else f"{dollars:.3f}"


def _times(entry: dict[str, Any]) -> str:
    """With the number of drafts that is best there."""
    return f"{entry['over_plain']:.2f}x ({entry['drafts']})"


def _without(entry: dict[str, Any]) -> str:
    """Why vLLM has no second model there."""
    return "not with PP" if "PP" in entry["layout"] else "no room"


def _users(entry: dict[str, Any]) -> str:
    return f"{entry['users']} user{'s' if entry['users'] > 1 else ''}"


def _way(entry: dict[str, Any]) -> str:
    return f"{entry['drafts']}, {entry['way']}" if entry["drafts"] else "plain"


def serving_8b() -> str:
    return serving("8B")


def serving_70b() -> str:
    return serving("70B")


def published() -> str:
    """ConfAdapt of the 8B model at the published tokens per forward."""
    entries = _serving(read("scale.json"), "8B")
    heads = ["threshold", "accuracy there", "tokens per forward there"]
    heads += [_users(entry) for entry in entries]
    rows = []
    for place, point in enumerate(entries[0]["published"]):
        times = [f"{entry['published'][place]['over_plain']:.2f}x" for entry in entries]
        rows.append([f"{point['threshold']}", f"{point['accuracy']} %", f"{point['tokens_per_forward']}", *times])
    return table(heads, rows)


def training() -> str:
    rows = []
    for name, model in read("scale.json")["models"].items():
        made = model["training"]
        needs = f"{made['bytes'] / 1e9:,.0f} GB; with one text {made['bytes_one_text'] / 1e9:,.0f}"
        fits = "yes" if made["fits_one_gpu"] else "with fewer texts" if made["one_text_fits_one_gpu"] else "no"
        full = made["full_bytes_per_process"]
        hours = made["hours_by_gpus"]
        rows.append(
            [
                name, needs, fits, f"{made['gpu_hours']:.1f} + {made['rollout_gpu_hours']:.1f}",
                " / ".join(f"{hours[count]:.1f}" for count in ("1", "8", "16")), f"${made['dollars']:,.0f}",
                " / ".join(f"{full[count] / 1e9:,.0f}" for count in ("8", "16", "64")),
            ]
        )  # fmt: skip
    heads = ["", "adapter: memory a GPU", "fits", "GPU hours: steps + rollouts", "hours of steps on 1 / 8 / 16 GPUs"]
    heads += ["cost", "`full`: GB a process of 8 / 16 / 64, without activations"]
    return table(heads, rows)
