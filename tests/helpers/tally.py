"""What tests count and measure, for the end of a run; each process of a run hands its own to the one that reports."""

from collections import Counter
from typing import Any

counts: Counter[str] = Counter()
"""Of comparisons with the naive reference: cases, tokens and near-ties."""
figures: dict[str, float] = {}
"""Tokens per forward, by decoder and text."""


def collected() -> dict[str, Any]:
    """All of it, in types that one process can send to another."""
    return {"counts": dict(counts), "figures": figures}


def add(other: dict[str, Any]) -> None:
    """What another process has collected."""
    counts.update(other["counts"])
    figures.update(other["figures"])


def lines() -> list[str]:
    told = [f"tokens per forward, {name}: {figure:.2f}" for name, figure in sorted(figures.items())]
    if counts:
        told.append(
            f"exactness: {counts['cases']} cases, {counts['tokens']} tokens, {counts['near-tie']} ended by a near-tie"
        )
    return told
