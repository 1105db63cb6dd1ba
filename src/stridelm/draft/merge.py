"""Merges several drafters' trees into one: shared paths become one, and the budget goes to the likeliest nodes."""

import math
from collections.abc import Callable

from stridelm.types import ROOT, DraftTree

Acceptance = Callable[[str, float, int], float]
"""(drafter, its score of a node, the node's depth) -> the probability that the node is accepted if its parent is."""


def merge(trees: list[DraftTree], acceptance: Acceptance, nodes: int) -> DraftTree:
    """The `nodes` nodes of all trees that are likeliest to be accepted, best first.

    The result's scores are these probabilities, given that the parent is accepted. A node is at most as likely as its
    parent, so the best nodes form a tree, and no other tree of that size has a larger expected number of tokens.
    """
    trie = _Trie()
    for tree in trees:
        trie.add(tree, acceptance)
    chances = trie.chances()
    reached: list[float] = []
    """Per node, the probability that its whole path is accepted."""
    for parent, chance in zip(trie.parents, chances, strict=True):
        reached.append(chance if parent == ROOT else reached[parent] * chance)
    # Equal nodes stay in the order of the trie, in which parents come first.
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
        """A node that several drafters propose gets the highest of their estimates, and that drafter as its source.

        Not 1 - (1 - a)(1 - b): drafters read the same text and err together, so their agreement is no independent
        evidence.
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
        """The estimates, scaled down if those of siblings sum to more than 1: only one of them can be accepted."""
        siblings: dict[int, list[float]] = {}
        for parent, estimate in zip(self.parents, self._estimates, strict=True):
            siblings.setdefault(parent, []).append(estimate)
        # fsum: the result must not depend on the order of the trees, not even in the last bits.
        scale = {parent: max(1.0, math.fsum(estimates)) for parent, estimates in siblings.items()}
        return [estimate / scale[parent] for parent, estimate in zip(self.parents, self._estimates, strict=True)]
