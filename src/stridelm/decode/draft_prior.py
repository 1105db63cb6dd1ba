"""How likely drafts are accepted before a text has shown anything: by their score and depth, by how easy the text has
been lately, and by what look-up says. Logistic regressions, learned from recorded answers by `bench/replay/priors.py`.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path

from stridelm.stepper import MaskPriors, Weights

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
def draft_priors(own: MaskPriors | None = None) -> tuple[DraftPrior, DraftPrior]:
    """Of greedy and of sampled answers. `own`: what a conversion knows of its masks, in place of the package's part."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    greedy, sampled = _prior(kept["greedy"]), _prior(kept["sampled"])
    return (greedy, sampled) if own is None else (replace(greedy, **asdict(own[0])), replace(sampled, **asdict(own[1])))


def _prior(kept: dict[str, float | list[float]]) -> DraftPrior:
    values = (kept[each.name] for each in fields(DraftPrior))
    return DraftPrior(*(tuple(each) if isinstance(each, list) else each for each in values))  # type: ignore[arg-type]
