"""How likely drafts are accepted before a text has shown anything: by their score and depth, by how easy the text has
been lately, and by what look-up says. Logistic regressions, learned from recorded answers by `bench/replay/priors.py`.
"""

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from stridelm.stepper import Weights

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, slots=True)
class DraftPrior:
    """Implements `stepper.StepPrior`: weights on log-odds."""

    ease: float
    scored: Weights
    unscored: Weights
    found: Weights
    agreed: Weights
    chain_against: Weights
    found_against: Weights


@cache
def draft_priors() -> tuple[DraftPrior, DraftPrior]:
    """Of greedy and of sampled answers."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    return _prior(kept["greedy"]), _prior(kept["sampled"])


def _prior(kept: dict[str, float | list[float]]) -> DraftPrior:
    values = (kept[each.name] for each in fields(DraftPrior))
    return DraftPrior(*(tuple(each) if isinstance(each, list) else each for each in values))  # type: ignore[arg-type]
