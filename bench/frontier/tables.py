"""Tables of what `h200.py` found: accuracy against tokens per forward, and domain adaptation.

python bench/frontier/tables.py        draws docs/frontier.png and docs/adaptation.png
"""

import sys
from pathlib import Path

from stridelm.bench.page.plot_style import as_png

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.frontier import plots
from bench.measured import read


def frontier() -> str:
    found = read("frontier.json")
    points, problems = found["frontier"]["points"], found["frontier"]["baseline"]["problems"]
    lines = [
        "| conversion | decoder | right (95 %) | tokens per forward | the same text as plain |",
        "|---|---|---|---|---|",
    ]
    for each in points:
        name = f"`{each['decoder']}`" + (f", {each['setting']}" if each["setting"] else "")
        lines.append(
            f"| {each['conversion']} | {name} | {each['accuracy']:.1%} ({each['low']:.1%} to {each['high']:.1%}) | "
            f"{each['tokens_per_forward']:.2f} | {each['identical']:.1%} |"
        )
    published = "; ".join(
        f"{each['name']}: {100 * each['accuracy_change']:+.1f} points at {each['tokens_per_forward']}"
        for each in found["frontier"]["published"]
    )
    lines.append(
        f"\n{problems} problems, greedy, {found['machine']['machine']['device']}, torch "
        f"{found['machine']['versions']['torch']}. Published, on other models and GSM8K: {published}."
    )
    return "\n".join(lines)


def adaptation() -> str:
    lines = ["| prompts | shipped adapter | trained on the tickets | made-up prompts, as long |", "|---|---|---|---|"]
    for each in read("frontier.json")["adaptation"]["domains"]:
        name = f"**{each['domain']}**" if each["trained_on"] else each["domain"]
        lines.append(f"| {name} | {each['before']:.2f} | {each['after']:.2f} | {each['general']:.2f} |")
    return "\n".join(lines)


def draw(folder: Path) -> None:
    found = read("frontier.json")
    (folder / "frontier.png").write_bytes(as_png(plots.frontier(found["frontier"])))
    (folder / "adaptation.png").write_bytes(as_png(plots.adaptation(found["adaptation"])))


if __name__ == "__main__":
    draw(Path(__file__).parents[2] / "docs")
