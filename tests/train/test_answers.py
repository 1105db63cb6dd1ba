"""Where answers begin to repeat themselves, and which seeds they are drawn with."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counting import Conversion
from stridelm.prompts import PromptLine
from stridelm.train.answers import LOOP_TIMES, MAX_PERIOD, answered, greedy_answers, rollout_prompts
from stridelm.train.answers import loop_start as loop_start_of


def loop_start(tokens: list[int]) -> int:
    return loop_start_of(np.array(tokens, dtype=np.int32))


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ([], 0),
        ([1], 1),
        ([1, 1], 2),
        ([1, 1, 1], 0),
        ([2, 1, 1, 1], 1),
        ([1, 2, 1, 2], 4),
        ([9, 1, 2, 1, 2, 1, 2], 1),
        ([9, 2, 1, 2, 1, 2, 1, 2], 1),
        ([9, 1, 2, 1, 2, 1, 2, 5], 8),
        ([1, 2, 3, 1, 2, 3, 1, 2], 8),
        ([1, 1, 2] * 3, 0),
        ([7, 8, *[5, 6] * 4, 5], 2),
        ([*range(100, 100 + MAX_PERIOD)] * 3, 0),
        ([*range(100, 101 + MAX_PERIOD)] * 3, 3 * (MAX_PERIOD + 1)),
    ],
    ids=[
        "nothing", "one token", "twice", "three times", "behind something else", "a pair twice", "a pair three times",
        "it begins in the middle of what it repeats", "something comes after it", "the third time is cut off",
        "a shorter loop at its end begins later", "the fifth time is cut off", "the longest", "too long",
    ],
)  # fmt: skip
def test_where_a_loop_begins(tokens: list[int], start: int) -> None:
    assert loop_start(tokens) == start


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=5), st.integers(0, 5))
def test_a_loop_begins_where_a_search_finds_it(before: list[int], period: list[int], times: int) -> None:
    tokens = before + period * times
    found = [
        start
        for start in range(len(tokens))
        for size in range(1, MAX_PERIOD + 1)
        if len(tokens) - start >= LOOP_TIMES * size
        and all(tokens[place] == tokens[place + size] for place in range(start, len(tokens) - size))
    ]
    assert loop_start(tokens) == min(found, default=len(tokens))


def test_answers_are_drawn_with_seeds_of_their_own(counting: Callable[..., Conversion]) -> None:
    checkpoint = counting().checkpoint
    lines = [PromptLine(f"line {number}", "ABC", "ones") for number in range(6)]
    greedy = greedy_answers(checkpoint, lines, 12, 4, lambda what, done, of: None)
    assert {(text.temperature, text.seed, text.category) for text in greedy.values()} == {(0.0, 0, "ones")}
    prompts = rollout_prompts(checkpoint, lines, 12, temperature=1.5, seed=3)
    drawn = [answered(checkpoint, prompts, lines, batch, lambda what, done, of: None) for batch in (2, 6)]
    assert [drawn[0][number].seed for number in range(6)] == [3 * 2**32 + number for number in range(6)]
    assert all(np.array_equal(drawn[0][number].tokens, drawn[1][number].tokens) for number in range(6))
    assert len({text.tokens.tobytes() for text in drawn[0].values()}) > 1
