"""Trees merged under a budget, and drafters that propose together."""

from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fake_drafters import AlwaysRight, AlwaysWrong, FakeDrafter, SomewhereRight
from reference import reference
from stepping import step_of
from stridelm.api import LanguageModel
from stridelm.decode.cost import Cost
from stridelm.decode.planned import Planned
from stridelm.draft.merge import merge
from stridelm.draft.ngram import NgramDrafter
from stridelm.params import SamplingParams
from stridelm.types import NO_DRAFT, ROOT, DraftTree, Sequence
from tiny import plain_network

Tokens = tuple[int, ...]


def taken_at_their_word(_source: str, score: float, _depth: int) -> float:
    return score


@st.composite
def draft_trees(draw: st.DrawFn, source: str, most: int = 6) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(draw(st.integers(0, most))):
        token, parent = draw(st.integers(0, 2)), draw(st.integers(ROOT, node - 1))
        if parent < len(tokens) and (token, parent) not in zip(tokens, parents, strict=True):
            tokens.append(token)
            parents.append(parent)
    scores = [draw(st.floats(0.01, 0.99)) for _ in tokens]
    return DraftTree.of(tokens, parents, source, scores)


forests = st.tuples(draft_trees("a"), draft_trees("b"), draft_trees("c")).map(list)


def paths(tree: DraftTree) -> list[Tokens]:
    """Every node's tokens from the root."""
    found: list[Tokens] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((token,) if parent == ROOT else (*found[parent], token))
    return found


def expected_chances(trees: list[DraftTree]) -> dict[Tokens, float]:
    """Written out: the best estimate of every path's last token, siblings scaled to 1 together."""
    best: dict[Tokens, float] = {}
    for tree in trees:
        for path, score in zip(paths(tree), tree.scores, strict=True):
            best[path] = max(score, best.get(path, 0.0))

    def siblings(path: Tokens) -> float:
        return sum(chance for other, chance in best.items() if other[:-1] == path[:-1])

    return {path: chance / max(1.0, siblings(path)) for path, chance in best.items()}


def standing(chances: dict[Tokens, float], path: Tokens) -> float:
    """The chance that a whole path stands."""
    product = 1.0
    for length in range(1, len(path) + 1):
        product *= chances[path[:length]]
    return product


@given(forests, st.integers(0, 12))
def test_a_merged_tree_is_a_tree_within_its_budget(trees: list[DraftTree], nodes: int) -> None:
    merged = merge(trees, taken_at_their_word, nodes)
    chances = expected_chances(trees)
    assert len(merged) == min(nodes, len(chances))
    assert all(parent < node for node, parent in enumerate(merged.parents))
    assert len(set(zip(merged.parents, merged.tokens, strict=True))) == len(merged)
    assert dict(zip(paths(merged), merged.scores, strict=True)) == pytest.approx(
        {path: chances[path] for path in paths(merged)}
    )
    reached = [standing(chances, path) for path in paths(merged)]
    assert reached == pytest.approx(sorted(reached, reverse=True))
    for parent in (ROOT, *range(len(merged))):
        siblings = [score for score, above in zip(merged.scores, merged.parents, strict=True) if above == parent]
        assert sum(siblings) <= 1 + 1e-9


@given(forests, st.integers(0, 5))
def test_no_other_tree_of_that_size_is_expected_to_give_more(trees: list[DraftTree], nodes: int) -> None:
    chances = expected_chances(trees)
    assume(len(chances) <= 10)
    merged = merge(trees, taken_at_their_word, nodes)
    best = max(
        sum(standing(chances, path) for path in chosen)
        for chosen in combinations(chances, min(nodes, len(chances)))
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )
    assert sum(standing(chances, path) for path in paths(merged)) == pytest.approx(best)


@given(forests, st.integers(0, 8), st.permutations(range(3)))
def test_whose_tree_comes_first_does_not_matter(trees: list[DraftTree], nodes: int, order: list[int]) -> None:
    chances = expected_chances(trees)
    reached = sorted(standing(chances, path) for path in chances)
    assume(all(high - low > 1e-9 for low, high in pairwise(reached)))
    one, other = (merge(each, taken_at_their_word, nodes) for each in (trees, [trees[index] for index in order]))
    assert paths(one) == paths(other)
    assert one.scores == pytest.approx(other.scores)


def test_a_shared_node_belongs_to_whom_experience_trusts_more() -> None:
    bold, timid = DraftTree.chain([1, 2], "bold", [0.9, 0.9]), DraftTree.chain([1, 3], "timid", [0.5, 0.4])
    earned = {"bold": 0.1, "timid": 0.8}
    merged = merge([bold, timid], lambda source, score, depth: earned[source], nodes=3)
    assert (merged.tokens, merged.parents) == ((1, 3, 2), (ROOT, 0, 0))
    assert merged.sources == ("timid", "timid", "bold")
    assert merged.scores == pytest.approx((0.8, 0.8, 0.1))


def test_the_acceptance_is_asked_with_source_score_and_depth() -> None:
    asked: set[tuple[str, float, int]] = set()

    def acceptance(source: str, score: float, depth: int) -> float:
        asked.add((source, score, depth))
        return 0.5

    merge([DraftTree.of([1, 2, 3], [ROOT, 0, ROOT], "a", [0.1, 0.2, 0.3])], acceptance, 3)
    assert asked == {("a", 0.1, 1), ("a", 0.2, 2), ("a", 0.3, 1)}


def test_nothing_merged_is_nothing() -> None:
    assert merge([], taken_at_their_word, 8) == merge([NO_DRAFT, NO_DRAFT], taken_at_their_word, 8) == NO_DRAFT


FLAT = Cost((1,), (1.0,))
"""Rows are free: all that there is room for is verified."""


class Boaster(AlwaysWrong):
    """Wrong, and sure of it."""

    name = "boaster"


@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=60), SamplingParams(max_tokens=60, temperature=1, seed=3)]
)
@pytest.mark.parametrize("fakes", [(AlwaysRight, Boaster), (Boaster, SomewhereRight)])
def test_an_ensemble_writes_the_same_text_and_learns_whom_to_trust(
    params: SamplingParams,
    fakes: tuple[type[FakeDrafter], ...],
    language_model: LanguageModel,
    tiny_folder: Callable[..., Path],
) -> None:
    """With room for one chain of several: the first steps are shared out, then the one that is right has them all."""
    ids = language_model.encode("abcabcabd", raw=True)
    expected = [
        decision.token for decision in reference(plain_network(str(tiny_folder("llama"))), ids, params, frozenset())
    ]
    members = [fake({tuple(ids): expected}, k=4) for fake in fakes]
    policy = Planned(FLAT, drafters=(*members, NgramDrafter(4)), nodes=4)
    calibration = policy.calibrations[params.temperature > 0]
    sequence = Sequence(list(ids), params, policy, frozenset(), language_model.target.context_length)
    language_model.engine.add(sequence)
    while sequence.finish_reason is None:
        step_of(language_model.engine)
    assert sequence.output == expected
    assert calibration.accepted("boaster", 1.0, 1) < calibration.accepted("fake", 1.0, 1)
    if AlwaysRight in fakes:
        assert sequence.stats.forwards < len(expected) // 3  # three tokens a forward if it were shared out for ever
