"""What the sieve lets through, and that its index equals comparing with every text."""

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stridelm.train.near_duplicates import Sieve, _needed, _sketch, _words

LONG = (
    "A gardener plants three rows of salad on Monday and twice as many rows of beans on Tuesday, then waters each row "
    "for five minutes every morning before the sun stands high. Work out how long the watering takes in a week, and "
    "say what would change if half of the beans were replaced by pumpkins that need no water at all."
)


def admitted(*texts: str) -> list[bool]:
    sieve = Sieve()
    return [sieve.admit(text) for text in texts]


@pytest.mark.parametrize(
    "other",
    [
        LONG,
        LONG.upper(),
        LONG.replace(",", " -").replace(".", "!"),
        LONG.replace("pumpkins", "cucumbers"),
        LONG.removesuffix(" at all."),
        f"Please: {LONG}",
    ],
    ids=["same", "case", "punctuation", "one word changed", "end cut off", "one word more"],
)
def test_nearly_the_same(other: str) -> None:
    assert admitted(LONG, other) == [True, False]
    assert admitted(other, LONG) == [True, False], "whichever comes first stays"


@pytest.mark.parametrize("other", ["Add 21 to 34.", "Add 1,200 to 3.5", "ADD 7 TO 8!", "Add 12:30 to 43"])
def test_numbers_make_no_other_question(other: str) -> None:
    assert admitted("Add 12 to 43.", other) == [True, False]


def test_different_texts() -> None:
    texts = [
        LONG,
        "Explain why the tides come twice a day although the moon stands over one place only once.",
        "Explain why bread rises, what salt does to the dough, and how long it should rest in a cold kitchen.",
        "Write a letter to a landlord about a radiator that has not worked for three weeks.",
        "Write a limerick about a cat who runs for mayor.",
    ]
    assert admitted(*texts) == [True] * len(texts)


def test_the_order_of_words_counts() -> None:
    words = LONG.split()
    random.Random(0).shuffle(words)
    assert admitted(LONG, " ".join(words)) == [True, True]


def test_only_admitted_texts_count() -> None:
    """Small steps lead away from the first text; what was refused on the way is not remembered."""
    letters = random.Random(2)
    words = ["".join(letters.choices("abcdefgh", k=6)) for _ in range(150)]
    first, next_one, last = (" ".join(words[start : start + 100]) for start in (0, 25, 50))
    assert admitted(first, next_one) == admitted(next_one, last) == [True, False]
    assert admitted(first, next_one, last) == [True, False, True]


def test_short_texts_compare_whole() -> None:
    assert admitted("Hello", "hello!", "Hello there", "Hello, there", "Hello you", "Say it", "It, say") == [
        *(True, False, True, False, True, True, True)
    ]
    assert admitted("🙂", "🎉", "🙂", "", "") == [True, True, False, True, False]


def test_not_valid_unicode_is_no_trouble() -> None:
    assert admitted("one \ud800 two three", "one two three") == [True, False]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=24).map(" ".join), max_size=12))
def test_the_index_equals_comparing_with_all(texts: list[str]) -> None:
    known: set[object] = set()
    for text, is_new in zip(texts, admitted(*texts), strict=True):
        split = _words(text)
        mark = _sketch(split) if len(split) >= 3 else text
        if isinstance(mark, frozenset):
            near = any(
                len(mark & other) >= _needed(len(mark), len(other)) for other in known if isinstance(other, frozenset)
            )
        else:
            near = mark in known
        assert is_new == (not near)
        if is_new:
            known.add(mark)


def test_every_process_decides_alike() -> None:
    program = """
import random
from stridelm.train.near_duplicates import Sieve
draw, sieve = random.Random(0), Sieve()
texts = [" ".join(draw.choices("abcdefgh", k=draw.randint(1, 12))) for _ in range(400)]
print("".join("01"[sieve.admit(text)] for text in texts))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    (decisions,) = outputs
    assert 0 < decisions.count("0") < 400
