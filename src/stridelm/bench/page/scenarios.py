"""What the suites `agent` and `voice` are for, as tables of the page."""

from typing import Any

from stridelm.bench.page.parts import element, joined, said, table
from stridelm.bench.records import Report
from stridelm.bench.scenarios import BUDGET, FIRST_TOKENS, PATIENT, PROMPT
from stridelm.bench.wording import NOTHING, number, share


def scenarios(report: Report) -> str:
    """Nothing where neither was asked."""
    return joined([_agent(report.extra.get("agent", {})), _voice(report.extra.get("voice", {}))])


def _agent(figures: dict[str, dict[str, Any]]) -> str:
    titles = ("subject", "calls", "parsed", "right", "whole chain s", "speed-up", f"tokens to think in {BUDGET:.0f} s")
    rows = [
        (
            name,
            str(each["calls"]),
            str(each["parsed"]),
            str(each["right"]),
            number(each["seconds"]),
            NOTHING if each["speed_up"] is None else f"{each['speed_up']:.2f}x",
            number(each["reasoning_tokens"], ".0f"),
        )
        for name, each in figures.items()
    ]
    caption = "An agent: ten calls, each of which needs the results of those before, and the time of the whole chain"
    return _table(caption, titles, rows)


def _voice(figures: dict[str, dict[str, Any]]) -> str:
    titles = ("subject", "replies", "first words s", f"within {PROMPT * 1e3:.0f} ms", f"within {PATIENT * 1e3:.0f} ms")
    rows = [
        (name, str(each["replies"]), number(each["first_words"], ".3f"), share(each["prompt"]), share(each["patient"]))
        for name, each in figures.items()
    ]
    return _table(f"A voice: the time until {FIRST_TOKENS} tokens are there, about two words", titles, rows)


def _table(caption: str, titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    body = "".join(
        element("tr", element("th", said(name), scope="row") + "".join(element("td", said(each)) for each in cells))
        for name, *cells in rows
    )
    return table(caption, titles, [element("tbody", body)])
