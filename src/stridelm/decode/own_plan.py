"""What a planned policy asks of steps that a backend plans by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stridelm.decode.cost import Cost
from stridelm.decode.draft_prior import draft_priors
from stridelm.draft.ngram import NgramDrafter
from stridelm.stepper import OwnPlan

if TYPE_CHECKING:
    from stridelm.decode.planned import Planned

_WIDE = 3.0


def own_plan(policy: Planned) -> OwnPlan | None:
    """None if the host must plan: such backends draft from masks, look-up and predictions only."""
    look_up = [drafter for drafter in policy.drafters if isinstance(drafter, NgramDrafter)]
    if not policy.exact or len(look_up) < len(policy.drafters):
        return None
    return OwnPlan(
        masks=policy.longest,
        nodes=policy.nodes,
        branches=policy.masks.branches if policy.masks is not None and _is_wide(policy.cost) else 1,
        look_up=max((drafter.k for drafter in look_up), default=0),
        follow=max((drafter.longest_prediction for drafter in look_up), default=0),
        costs=policy.cost,
        priors=draft_priors(None if policy.masks is None else policy.masks.gate.prior),
    )


def _is_wide(cost: Cost) -> bool:
    """Whether second choices pay for their rows. Where rows cost time they do not (bench/replay), and to grow two
    branches takes longer than one."""
    return cost(64) < _WIDE * cost(1)
