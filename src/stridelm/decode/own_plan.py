"""What a planned policy asks of steps that a backend plans by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stridelm.draft.ngram import NgramDrafter
from stridelm.stepper import OwnPlan

if TYPE_CHECKING:
    from stridelm.decode.planned import Planned


def own_plan(policy: Planned) -> OwnPlan | None:
    """None if the host must plan: such backends draft from masks, look-up and predictions only."""
    look_up = [drafter for drafter in policy.drafters if isinstance(drafter, NgramDrafter)]
    if not policy.exact or len(look_up) < len(policy.drafters):
        return None
    return OwnPlan(
        masks=policy.longest,
        nodes=policy.nodes,
        branches=1 if policy.masks is None else policy.masks.branches,
        look_up=max((drafter.k for drafter in look_up), default=0),
        follow=max((drafter.longest_prediction for drafter in look_up), default=0),
        costs=policy.cost,
    )
