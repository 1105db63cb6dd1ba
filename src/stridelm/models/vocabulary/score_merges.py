"""Merges for a SentencePiece vocabulary, which has scores instead.

llama.cpp merges the two neighbours whose union is the token with the highest score, and among equals the leftmost. BPE
merges by a fixed order of pairs. The two agree if the order is by score, and if no two pairs of equal score can
compete for the same piece of text in a way that only their places decide. So pairs of equal score are ordered here
where an order says the same as the places do, and a vocabulary where none would is refused. Pairs with the same union
need no order among themselves: whichever comes first, the leftmost occurrence is merged first
(tests/models/test_score_merges.py compares random vocabularies with the rule itself).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

Split = tuple[str, str]
_TIED = "its tokens {!r} and {!r} have the same score, so that only their places in a text say which comes first"


class NoOrder(ValueError):
    """No order of merges gives llama.cpp's tokens."""


def merges_by_score(scores: Mapping[str, float]) -> list[Split]:
    """All pairs of tokens whose union is a token, in the order in which they are merged. `scores`: those of all tokens
    that a text may be merged to. Raises `NoOrder`."""
    splits = {token: found for token in scores if len(token) > 1 and (found := list(_splits(token, scores)))}
    tied: defaultdict[float, list[str]] = defaultdict(list)
    for token in splits:
        tied[scores[token]].append(token)
    for tokens in tied.values():
        if len(tokens) > 1 and not _is_one_run(tokens):
            _check(tokens, splits, scores)
    # In a run of one letter the leftmost pair is always one that gives the longest token.
    order = sorted(splits, key=lambda token: (-scores[token], -len(token)))
    return [pair for token in order for pair in splits[token]]


def _splits(token: str, known: Mapping[str, float]) -> Iterator[Split]:
    for at in range(1, len(token)):
        if token[:at] in known and token[at:] in known:
            yield token[:at], token[at:]
    for letter, rest in ((token[0], token[1:]), (token[-1], token[:-1])):
        if letter not in known and (rest in known or len(rest) == 1):
            raise NoOrder(f"its token {token!r} can be merged from {letter!r}, which is no token")


def _is_one_run(tokens: list[str]) -> bool:
    """Whether all tokens are repetitions of one and the same letter, as runs of spaces are."""
    return len({letter for token in tokens for letter in token}) == 1


def _check(tokens: list[str], splits: Mapping[str, list[Split]], scores: Mapping[str, float]) -> None:
    """Check that tokens of equal score do not compete."""
    by_left: defaultdict[str, set[str]] = defaultdict(set)
    for token in tokens:
        for left, _ in splits[token]:
            by_left[left].add(token)
    for token in tokens:
        for _, right in splits[token]:
            if others := by_left[right] - {token}:
                raise NoOrder(_TIED.format(token, min(others)))
    equal = set(tokens)
    for token, pairs in splits.items():
        for part in {part for pair in pairs for part in pair if part in equal}:
            if scores[token] >= scores[part]:
                raise NoOrder(_TIED.format(part, token))
