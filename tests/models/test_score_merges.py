"""Merges from scores against the rule that they stand for: the highest score first, and among equals the leftmost."""

import random

import pytest
from tokenizers import Tokenizer, models

from stridelm.models.vocabulary.score_merges import NoOrder, merges_by_score

Scores = dict[str, float]


def by_rule(text: str, scores: Scores) -> list[str]:
    """llama.cpp's rule, one merge at a time."""
    parts = list(text)
    while True:
        unions = [
            (-scores[union], at) for at in range(len(parts) - 1) if (union := parts[at] + parts[at + 1]) in scores
        ]
        if not unions:
            return parts
        _, at = min(unions)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def by_merges(text: str, scores: Scores) -> list[str]:
    vocabulary = {token: index for index, token in enumerate(scores)}
    return Tokenizer(models.BPE(vocabulary, merges_by_score(scores))).encode(text).tokens


def made_up(draw: random.Random, letters: str, *, ties: bool) -> Scores:
    """Tokens of tokens, as training makes them, or of any letters, with scores in any order."""
    tokens = list(letters)
    for _ in range(draw.randint(4, 12)):
        grown = draw.choice(tokens) + draw.choice(tokens)
        token = grown if draw.random() < 0.7 else "".join(draw.choices(letters, k=draw.randint(2, 6)))
        if token not in tokens and len(token) <= 16:
            tokens.append(token)
    ranks = list(range(len(tokens)))
    draw.shuffle(ranks)
    return {token: -float(rank // 2 if ties else rank) for token, rank in zip(tokens, ranks, strict=True)}


@pytest.mark.parametrize("letters", ["a", "ab", "abc"])
@pytest.mark.parametrize("ties", [False, True])
def test_merges_give_what_the_rule_gives(letters: str, ties: bool) -> None:
    draw, compared, refused = random.Random(7), 0, 0
    while compared < 2000:
        scores = made_up(draw, letters, ties=ties)
        try:
            merges_by_score(scores)
        except NoOrder:
            refused += 1
            continue
        for _ in range(10):
            text = "".join(draw.choices(letters, k=draw.randint(1, 24)))
            assert by_merges(text, scores) == by_rule(text, scores), (text, scores)
            compared += 1
    assert bool(refused) == (ties and letters != "a")


def test_runs_of_equal_score_grow_from_the_left() -> None:
    """As runs of spaces do in Llama's vocabulary."""
    scores: Scores = {"▁" * size: -1e9 for size in (1, 2, 3, 4, 7)} | {"a": -3.0, "▁a": -1.0}
    for size in range(1, 30):
        for text in ("▁" * size, "▁" * size + "a", "a" + "▁" * size):
            assert by_merges(text, scores) == by_rule(text, scores)
    assert by_merges("▁" * 9 + "a", scores) == ["▁" * 7, "▁", "▁a"]


@pytest.mark.parametrize(
    ("tied", "said"),
    [
        (("ab", "ba"), "'ab' and 'ba' have the same score"),
        (("ab", "bc"), "'ab' and 'bc' have the same score"),
        (("ab", "abc"), "'ab' and 'abc' have the same score"),
    ],
)
def test_tokens_that_compete_are_refused(tied: tuple[str, ...], said: str) -> None:
    letters: Scores = {"a": -9.0, "b": -9.0, "c": -9.0}
    with pytest.raises(NoOrder, match=said):
        merges_by_score(letters | dict.fromkeys(tied, -1.0))
    assert merges_by_score(letters | {token: -1.0 - place for place, token in enumerate(tied)})


def test_equal_scores_that_cannot_meet_are_taken() -> None:
    scores: Scores = dict.fromkeys("abcd", 0.0) | {"ab": -1.0, "cd": -1.0}
    assert by_merges("abcdcdab", scores) == ["ab", "cd", "cd", "ab"]


def test_letter_that_is_no_token_is_refused_where_it_could_be_merged() -> None:
    with pytest.raises(NoOrder, match="'éa' can be merged from 'é', which is no token"):
        merges_by_score({"a": 0.0, "éa": -1.0})
    assert merges_by_score({"a": 0.0, "b": 0.0, "ab": -2.0, "é": 0.0, "éa": -1.0}) == [("é", "a"), ("a", "b")]
    assert merges_by_score({"a": 0.0, "<éa>": -1.0}) == []
