"""The tree walk equals drawing one token at a time, for every small tree."""

import itertools

import pytest

from stridelm.types import ROOT, DraftTree
from stridelm.verify import walk

TOKENS = 3


def all_trees(nodes: int) -> list[DraftTree]:
    """Every tree of so many nodes over three tokens, siblings being different."""
    found = []
    for parents in itertools.product(*(range(ROOT, node) for node in range(nodes))):
        for tokens in itertools.product(range(TOKENS), repeat=nodes):
            if len(set(zip(parents, tokens, strict=True))) == nodes:
                found.append(DraftTree.of(tokens, parents, "small"))
    return found


def text_of(history: list[int], seed: int) -> int:
    """A stand-in for a model: the next token is a hash of all before it."""
    return hash((seed, *history)) % TOKENS


@pytest.mark.parametrize("nodes", range(5))
def test_walk_equals_sequential_draws(nodes: int) -> None:
    before = [1, 2]
    for tree in all_trees(nodes):
        for seed in range(3):
            path, emitted = walk(tree, lambda node, history, seed=seed: text_of(history, seed), before)
            expected = list(before)
            for _ in emitted:
                expected.append(text_of(expected, seed))
            assert before + emitted == expected
            assert len(emitted) == len(path) + 1
            assert [tree.tokens[node] for node in path] == emitted[:-1]
            assert all(tree.parents[node] == above for node, above in zip(path, [ROOT, *path], strict=False))
            # It ended for a reason: no child of the last node holds the last token.
            assert tree.child(path[-1] if path else ROOT, emitted[-1]) is None


def test_the_draw_is_told_which_node_it_is_at() -> None:
    asked: list[int] = []
    tree = DraftTree.of((5, 6, 7), (ROOT, 0, 1), "chain")
    walk(tree, lambda node, history: asked.append(node) or 5 + len(history), [])
    assert asked == [ROOT, 0, 1, 2]
