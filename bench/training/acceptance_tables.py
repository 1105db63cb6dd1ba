"""Tables of what bench/training/acceptance.py has measured.

python bench/training/acceptance_tables.py FILE        prints them
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import table

Figures = dict[str, Any]


def forms_table(report: Figures) -> str:
    """Tokens per forward by form, before loops in brackets; of sets with several categories, the mean over these."""
    entries: list[Figures] = report["measured"]
    forms = list(entries[0]["forms"])
    rows = [
        [entry["adapter"], f"{entry['prompts']}{_behind(entry)}", _drawn(entry), *map(_mean, entry["forms"].values())]
        for entry in entries
    ]
    return table(["adapter", "prompts", "drawn", *forms], rows)


def categories_table(entry: Figures) -> str:
    """One setting by category."""
    forms: Figures = entry["forms"]
    categories = next(iter(forms.values())).get("categories", {})
    rows = [[name, *(_of(form["categories"][name]) for form in forms.values())] for name in categories]
    return table(["category", *forms], [*rows, ["mean", *map(_mean, forms.values())]])


def _behind(entry: Figures) -> str:
    if entry["context"] is None:
        return ""
    return f", behind earlier turns: {entry['mean_prompt_tokens']:.0f} tokens"


def _drawn(entry: Figures) -> str:
    return f"temperature {entry['temperature']:g}" if entry["temperature"] else "greedy"


def _mean(form: Figures) -> str:
    if len(form.get("categories", {})) < 2:
        return _of(form)
    return f"{form['mean_over_categories']:.2f} ({form['mean_over_categories_before_loops']:.2f})"


def _of(figures: Figures) -> str:
    return f"{figures['tokens_per_forward']:.2f} ({figures['before_loops']['tokens_per_forward']:.2f})"


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(forms_table(report))
    for entry in report["measured"]:
        if len(next(iter(entry["forms"].values())).get("categories", {})) > 1:
            print(f"\n{entry['adapter']}, {entry['prompts']}{_behind(entry)}, {_drawn(entry)}\n")
            print(categories_table(entry))


if __name__ == "__main__":
    main()
