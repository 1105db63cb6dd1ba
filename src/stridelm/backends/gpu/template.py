"""The shape of a step that the device runs by itself: a tree of ranked nodes, and a chain of masks off each node.

Node 0 is the pending token. A node's children are its likeliest continuation, the second likeliest, and so on. So the
shape is known beforehand; which tokens the nodes hold is decided on the device.

    chain of 2, 2 masks    0-1-2         rows  0 1 2  m m  m m  m m
                           | | |               nodes  of 0 of 1 of 2
                           m m m
                           m m m
"""

from dataclasses import dataclass

from stridelm.layout import make_block
from stridelm.types import MASKS, ROOT, Block, DraftTree


@dataclass(frozen=True, slots=True)
class Template:
    """Hashable: a step is captured once for each."""

    parents: tuple[int, ...]
    """The parent of every node, the pending token included: a smaller node, or ROOT for the first. A node's earlier
    children are the likelier ones."""
    masks: int
    """Masks per chain; a chain hangs off every node. 0: no drafts either."""

    def __post_init__(self) -> None:
        assert self.parents[0] == ROOT and all(0 <= parent < node for node, parent in enumerate(self.parents) if node)
        assert self.deepest <= self.masks, "a draft needs a mask that proposes it"

    @classmethod
    def chain(cls, drafts: int) -> "Template":
        """As many masks as drafts, so that a step that accepts nothing still drafts as much as one that accepts all."""
        return cls(tuple(range(ROOT, drafts)), drafts)

    @property
    def nodes(self) -> int:
        return len(self.parents)

    @property
    def rows(self) -> int:
        return self.nodes * (1 + self.masks)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(ROOT, self.nodes - 1))

    @property
    def depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def deepest(self) -> int:
        return max(self.depths)

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def by_depth(self) -> list[list[int]]:
        """The nodes of each depth, starting with the pending token's."""
        return [[node for node, own in enumerate(self.depths) if own == depth] for depth in range(self.deepest + 1)]

    @property
    def block(self) -> Block:
        """The rows that are run for a text of length 0. Their tokens are filled in on the device."""
        tree = DraftTree.of([0] * (self.nodes - 1), [parent - 1 for parent in self.parents[1:]], MASKS)
        return make_block(0, [0], tree, anchors=range(ROOT, len(tree)) if self.masks else (), masks=self.masks)
