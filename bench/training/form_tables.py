"""Tables of docs/training.md: what forms of the drafter and settings of its training brought, run by run."""

from typing import Any

from bench.measured import read, table
from bench.training.acceptance_tables import forms_table


def _rates(rates: list[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)


def _rate(entry: dict[str, Any]) -> str:
    return f"{entry['failure_rate']:.2f} ({entry['share_of_failures']:.2f})"


def forms() -> str:
    """Short runs that differ in one thing each. The second part began anew, with other texts and a higher rate."""
    content = read("drafter-forms.json")
    lines = ["| changed | GSM8K | twelve kinds | before loops | acceptance by depth, GSM8K |", "|---|---|---|---|---|"]
    for part in ("first", "second"):
        for run in content[part]["runs"]:
            apart = [run.get(f"{name}_before_loops") for name in ("gsm8k", "kinds")]
            apart_words = "" if apart[0] is None else f"{apart[0]:.2f}, {apart[1]:.2f}"
            rates = _rates(run["acceptance_by_depth"])
            lines.append(f"| {run['changed']} | {run['gsm8k']:.3f} | {run['kinds']:.3f} | {apart_words} | {rates} |")
    machine = content["machine"]
    lines.append(f"\nTokens per forward. {machine['device']}, torch {machine['torch']}, {machine['date']}.")
    return "\n".join(lines)


def long_runs() -> str:
    """The shipped conversion and a longer run in the new form: chains and trees, greedy and sampled."""
    measured: list[dict[str, Any]] = []
    for name, run in read("drafter-forms.json")["long"].items():
        for texts, forms_of in run["forms"].items():
            file, temperature = texts.split(", ")
            entry = {"adapter": name, "prompts": file, "context": None, "temperature": float(temperature)}
            measured.append(entry | {"forms": forms_of})
    measured.sort(key=lambda entry: (entry["prompts"], entry["temperature"]))
    return forms_table({"measured": measured})


def draft_failures() -> str:
    """How often drafts that were checked are wrong, and the share of all wrong ones, by what they are told apart by."""
    content = read("draft-failures.json")
    reports = {report["prompts"]: report["failures"] for report in content["reports"]}
    first = next(iter(reports.values()))
    told_apart = [
        (name, value)
        for name, values in first.items()
        for value, entry in values.items()
        if name != "category" and entry["drafts"]
    ]
    rows = []
    for name, value in told_apart:
        rows.append([name, value, *(_rate(failures[name][value]) for failures in reports.values())])
    for report in content["reports"]:
        categories = report["failures"]["category"]
        rows += [
            ["category", value, *(_rate(categories[value]) if name == report["prompts"] else "" for name in reports)]
            for value in categories
            if len(categories) > 1
        ]
    machine = content["machine"]
    said = f"{machine['device']}, torch {content['versions']['torch']}, {content['date']}, commit {content['commit']}."
    return f"{table(['', '', *reports], rows)}\n\n{said}"


def draft_choices() -> str:
    """What a perfect choice among a mask's candidates would bring, and what a head over a shortlist would cost."""
    reports = read("draft-failures.json")["reports"]
    rows = [
        [way, *(f"{report['tokens_per_forward'][way]['mean_over_categories']:.2f}" for report in reports)]
        for way in reports[0]["tokens_per_forward"]
    ]
    return table(["chosen", *(report["prompts"] for report in reports)], rows)


def sweep(file: str) -> str:
    """The runs of a sweep."""
    lines = ["| changed | tokens per forward | acceptance by depth |", "|---|---|---|"]
    for run in read(file)["runs"]:
        changed = ", ".join(f"`{name}` {value}" for name, value in run["changes"].items())
        lines.append(f"| {changed or 'nothing'} | {run['tokens_per_forward']:.2f} | {_rates(run['acceptance'])} |")
    return "\n".join(lines)
