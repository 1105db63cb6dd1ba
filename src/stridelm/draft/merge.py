"""Several drafters' trees become one: what they share is one node, and the budget goes to what probably stands."""

import math
from collections.abc import Callable

from stridelm.types import ROOT, DraftTree

Acceptance = Callable[[str, float, int], float]
"""(drafter, its score of a node, the node's depth) -> the chance that the node stands if its parent does."""


def merge(trees: list[DraftTree], acceptance: Acceptance, nodes: int) -> DraftTree:
    """The so many nodes of all trees that most probably stand, best first.

    The result's scores are those chances, given that the parent stands. A node stands at most as often as its parent,
    so the best nodes are a tree, and no other tree of that size is expected to give more tokens.
    """
    trie = _Trie()
    for tree in trees:
        trie.add(tree, acceptance)
    chances = trie.chances()
    reached: list[float] = []
    """Per node, the chance that its whole path stands."""
    for parent, chance in zip(trie.parents, chances, strict=True):
        reached.append(chance if parent == ROOT else reached[parent] * chance)
    # Equals stay in the order of the trie, where parents come first.
    kept = sorted(range(len(reached)), key=lambda node: -reached[node])[:nodes]
    renamed = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
    return DraftTree(
        tuple(trie.tokens[node] for node in kept),
        tuple(renamed[trie.parents[node]] for node in kept),
        tuple(trie.sources[node] for node in kept),
        tuple(chances[node] for node in kept),
    )


class _Trie:
    """All proposals, parents before children, each path once."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.sources: list[str] = []
        self._estimates: list[float] = []
        self._index: dict[tuple[int, int], int] = {}
        """(parent, token) -> node."""

    def add(self, tree: DraftTree, acceptance: Acceptance) -> None:
        named = {ROOT: ROOT}
        for node, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True)):
            source = tree.sources[node]
            named[node] = self._put(named[parent], token, source, acceptance(source, tree.scores[node], depth))

    def _put(self, parent: int, token: int, source: str, estimate: float) -> int:
        """A node that several drafters propose has the best of their estimates, and its drafter.

        Not 1 - (1 - a)(1 - b): drafters read the same text and err together, so their agreement is no second witness.
        """
        node = self._index.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self.sources.append(source)
            self._estimates.append(estimate)
        elif estimate > self._estimates[node]:
            self.sources[node], self._estimates[node] = source, estimate
        return node

    def chances(self) -> list[float]:
        """The estimates, scaled down where those of siblings come to more than 1: only one of them can stand."""
        siblings: dict[int, list[float]] = {}
        for parent, estimate in zip(self.parents, self._estimates, strict=True):
            siblings.setdefault(parent, []).append(estimate)
        # fsum: whose tree came first must not show in the last bits.
        scale = {parent: max(1.0, math.fsum(estimates)) for parent, estimates in siblings.items()}
        return [estimate / scale[parent] for parent, estimate in zip(self.parents, self._estimates, strict=True)]
