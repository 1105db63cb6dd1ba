"""The decoder self as `stridelm acceptance` counts it: a chain or a tree, masks off every node, at any cost."""

from stridelm.api import LanguageModel
from stridelm.decode.commit import next_block
from stridelm.decode.cost import Cost
from stridelm.decode.planned import Planned
from stridelm.decode.planner import Plan
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.merge import merge
from stridelm.settings import DecodeSettings
from stridelm.types import ROOT, Block, DraftTree, Sequence


class EveryNode(Planned):
    """Plans nothing: all drafts are run, and wherever the path ends fresh masks lie."""

    def _block(self, sequence: Sequence, tree: DraftTree, plan: Plan) -> Block:
        return next_block(sequence, tree, anchors=range(ROOT, len(tree)), masks=self.longest)

    def _floor(self) -> float:
        return 0.0


class WholeTree(EveryNode):
    """Runs the likeliest drafts by the masks' own estimates, which nothing corrects."""

    def _merged(self, sequence: Sequence, proposed: list[DraftTree]) -> DraftTree:
        return merge(proposed, lambda source, score, depth: score, self.nodes)


def self_at_every_node(model: LanguageModel, k: int, tree: int | None = None) -> DecodeSettings:
    """Settings that decode in this way. `tree`: number of real rows of a step; None for chains."""
    assert model.gate is not None
    settings = DecodeSettings("self", k=k)
    policy, branches, nodes = (EveryNode, 1, 64) if tree is None else (WholeTree, tree - 1, tree - 1)
    masks = MaskDrafter(model.gate, branches=branches)
    model._policies[settings] = policy(Cost((1,), (1.0,)), masks=masks, k=k, nodes=nodes)
    return settings
