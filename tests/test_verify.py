"""The tree walk equals drawing one token at a time, for every small tree and many seeds."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
import pytest
import torch

from stridelm.sampling import gumbel_rows
from stridelm.types import ROOT, DraftTree
from stridelm.verify import grammatical, walk

TOKENS = 3
MOST_NODES = 6
SEEDS = 10_000
BEFORE = [1, 2]

Path = tuple[int, ...]
"""The tokens from a tree's root to a node."""


def trees(nodes: int) -> Iterator[tuple[Path, ...]]:
    """Every tree of so many nodes over three tokens, once: its paths, the shorter first, every one after its parent."""
    if nodes == 0:
        yield ()
        return
    for paths in trees(nodes - 1):
        for path in sorted(((*above, token) for above in ((), *paths) for token in range(TOKENS)), key=number):
            if not paths or number(path) > number(paths[-1]):
                yield (*paths, path)


def number(path: Path) -> int:
    """Paths counted from the empty one, the shorter first: the children of path n are 3n + 1, 3n + 2 and 3n + 3."""
    count = 0
    for token in path:
        count = TOKENS * count + token + 1
    return count


def as_draft(paths: tuple[Path, ...]) -> DraftTree:
    nodes = {(): ROOT} | {path: node for node, path in enumerate(paths)}
    return DraftTree.of([path[-1] for path in paths], [nodes[path[:-1]] for path in paths], "small")


@dataclass(frozen=True)
class Draws:
    """What many seeds draw behind each path, and the texts that this makes. Sets of seeds are bits of an int."""

    tokens: list[list[int]]
    """Path -> seed -> token."""
    seeds_by_token: list[list[int]]
    """Path -> token -> the seeds that draw it."""
    seeds_by_text: list[int]
    """Path -> the seeds whose text, drawn one token at a time, begins with it."""


@cache
def all_draws() -> Draws:
    """Of a model with random logits behind every path, with the noise that decoding has."""
    firsts = [number((0,) * length) for length in range(MOST_NODES + 3)]  # of the paths of each length
    logits_PV = torch.randn(firsts[MOST_NODES + 1], TOKENS, generator=torch.Generator().manual_seed(0))
    tokens_PS = np.empty((len(logits_PV), SEEDS), dtype=np.int64)
    seeds_S = torch.arange(SEEDS)
    for length, (first, after) in enumerate(itertools.pairwise(firsts[:-1])):
        noise_SV = gumbel_rows(seeds_S, torch.full_like(seeds_S, len(BEFORE) + length), TOKENS)
        for path in range(first, after):
            tokens_PS[path] = (logits_PV[path] + noise_SV).argmax(dim=-1)
    seeds_by_text = [0] * firsts[MOST_NODES + 2]
    texts_S = np.zeros(SEEDS, dtype=np.int64)
    for length in range(MOST_NODES + 2):
        for path in range(firsts[length], firsts[length + 1]):
            seeds_by_text[path] = as_bits(texts_S == path)
        if length <= MOST_NODES:
            texts_S = TOKENS * texts_S + tokens_PS[texts_S, np.arange(SEEDS)] + 1
    seeds_by_token = [[as_bits(tokens_S == token) for token in range(TOKENS)] for tokens_S in tokens_PS]
    return Draws(tokens_PS.tolist(), seeds_by_token, seeds_by_text)


def as_bits(chosen_S: np.ndarray) -> int:
    return int.from_bytes(np.packbits(chosen_S, bitorder="little").tobytes(), "little")


def walk_with_all_seeds(paths: tuple[Path, ...]) -> int:
    """Hold the walk over one tree against every seed's text; returns how many different walks there were.

    All that a walk knows of a seed are the draws that it asks for, so seeds that answer alike walk alike: one of them
    walks, and what it emits must be the beginning of the text of every one of them.
    """
    draws, tree, walks = all_draws(), as_draft(paths), 0
    nodes = {path: node for node, path in enumerate(paths)}
    left = 2**SEEDS - 1
    while left:
        seed = (left & -left).bit_length() - 1
        alike = left

        def draw(node: int, history: list[int], seed: int = seed) -> int:
            nonlocal alike
            assert history[: len(BEFORE)] == BEFORE
            path = tuple(history[len(BEFORE) :])
            assert path == (() if node == ROOT else paths[node]), "the draw must see its own node's path"
            token = draws.tokens[number(path)][seed]
            alike &= draws.seeds_by_token[number(path)][token]
            return token

        accepted, emitted = walk(tree, draw, BEFORE)
        text = tuple(emitted)
        assert alike & ~draws.seeds_by_text[number(text)] == 0, f"{paths}: seed {seed} emits {text}"
        assert accepted == [nodes[text[: depth + 1]] for depth in range(len(text) - 1)]
        assert text not in nodes, "the walk ended although a child held the token"
        left &= ~alike
        walks += 1
    return walks


@pytest.mark.parametrize("nodes", range(MOST_NODES + 1))
def test_the_walk_over_every_tree_emits_the_text_of_every_seed(nodes: int) -> None:
    walks = [walk_with_all_seeds(paths) for paths in trees(nodes)]
    # As many as there are ternary trees of one node more, the root.
    assert len(walks) == comb(3 * (nodes + 1), nodes + 1) // (2 * (nodes + 1) + 1)
    # A tree of n nodes can be left at 2n + 3 places; with so many seeds nearly all of them are.
    assert max(walks) == 2 * nodes + 3
    assert sum(walks) > 0.95 * len(walks) * (2 * nodes + 3)


@pytest.mark.parametrize("nodes", range(5))
def test_the_numbering_of_nodes_does_not_matter(nodes: int) -> None:
    """All numberings of all trees that have parents before children."""
    draws = all_draws()
    for parents in itertools.product(*(range(ROOT, node) for node in range(nodes))):
        for tokens in itertools.product(range(TOKENS), repeat=nodes):
            if len(set(zip(parents, tokens, strict=True))) < nodes:
                continue  # two siblings alike: no tree
            tree = DraftTree.of(tokens, parents, "small")
            for seed in range(3):
                accepted, emitted = walk(
                    tree, lambda node, history, seed=seed: draws.tokens[number(tuple(history))][seed], []
                )
                assert draws.seeds_by_text[number(tuple(emitted))] >> seed & 1
                assert [tokens[node] for node in accepted] == emitted[:-1]
                assert [parents[node] for node in accepted] == [ROOT, *accepted][: len(accepted)]
                assert tree.child(accepted[-1] if accepted else ROOT, emitted[-1]) is None


def test_nothing_is_drawn_behind_an_end() -> None:
    tree = DraftTree.of((5, 6, 7), (ROOT, 0, 1), "chain")
    for ends, accepted, emitted in (
        ((6,), [0, 1], [5, 6]),
        ((7,), [0, 1, 2], [5, 6, 7]),
        ((8,), [0, 1, 2], [5, 6, 7, 8]),
    ):
        assert walk(tree, lambda node, history: 5 + len(history), [], ends) == (accepted, emitted)


@pytest.mark.parametrize("nodes", range(5))
def test_what_is_grammatical_of_every_tree(nodes: int) -> None:
    """A grammar that never lets a token follow itself, and forbids 0 at the beginning."""

    def accepts(tokens: list[int]) -> int:
        pairs = zip([0, *tokens], tokens, strict=False)
        return next((count for count, (before, token) in enumerate(pairs) if before == token), len(tokens))

    for paths in trees(nodes):
        kept = {path for path in paths if accepts(list(path)) == len(path)}
        tree = grammatical(as_draft(paths), accepts)
        assert len(tree) == len(kept)
        assert {tuple(tree.tokens[node] for node in path_to(tree, node)) for node in range(len(tree))} == kept


def path_to(tree: DraftTree, node: int) -> list[int]:
    return [] if node == ROOT else [*path_to(tree, tree.parents[node]), node]


def test_the_draw_is_told_which_node_it_is_at() -> None:
    asked: list[int] = []
    tree = DraftTree.of((5, 6, 7), (ROOT, 0, 1), "chain")
    walk(tree, lambda node, history: asked.append(node) or 5 + len(history), [])
    assert asked == [ROOT, 0, 1, 2]
