"""The decoder self as `stridelm acceptance` counts it: one chain, masks off every node, whatever it costs."""

from stridelm.api import LanguageModel
from stridelm.decode.commit import next_block
from stridelm.decode.cost import Cost
from stridelm.decode.planned import Planned
from stridelm.decode.planner import Plan
from stridelm.draft.mask import MaskDrafter
from stridelm.settings import DecodeSettings
from stridelm.types import ROOT, Block, DraftTree, Sequence


class EveryNode(Planned):
    """Plans nothing: all drafts are run, and wherever the path ends fresh masks lie."""

    def _block(self, sequence: Sequence, tree: DraftTree, plan: Plan) -> Block:
        return next_block(sequence, tree, anchors=range(ROOT, len(tree)), masks=self.longest)

    def _floor(self) -> float:
        return 0.0


def self_at_every_node(model: LanguageModel, k: int) -> DecodeSettings:
    """Settings that decode in this way."""
    assert model.gate is not None
    settings = DecodeSettings("self", k=k)
    model._policies[settings] = EveryNode(Cost((1,), (1.0,)), masks=MaskDrafter(model.gate, branches=1), k=k, nodes=64)
    return settings
