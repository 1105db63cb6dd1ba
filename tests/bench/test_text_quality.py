"""The metrics of unverified text, on texts made by hand."""

import math

from bench.decoding.text_quality import Judged, as_strides, misfits, repeated_tokens, repetition_by_depth, total
from stridelm.bench.quality import Share, repeated_ngrams


def judged(*tokens: tuple[float, int]) -> Judged:
    probabilities, ranks = zip(*tokens, strict=True)
    return Judged(tuple(map(math.log, probabilities)), probabilities, ranks)


def test_shares_add_up() -> None:
    whole = total([Share(1, 2), Share(0, 5), Share(3, 3)])
    assert (whole, whole.share) == (Share(4, 10), 0.4)
    assert Share().share == 0
    assert Share(1, 3).entry() == {"count": 1, "of": 3, "share": 0.33333}


def test_repeated_ngrams_are_those_that_occurred_before() -> None:
    assert repeated_ngrams([1, 2, 3, 4, 5, 6]) == Share(0, 3)
    assert repeated_ngrams([1, 2, 3, 4, 1, 2, 3, 4, 1]) == Share(2, 6)  # 1 2 3 4 and 2 3 4 1
    assert repeated_ngrams([7] * 10) == Share(6, 7)
    assert repeated_ngrams([1, 2, 1, 2], size=2) == Share(1, 3)
    assert repeated_ngrams([1, 2, 3]) == repeated_ngrams([]) == Share(0, 0)


def test_repeated_tokens_equal_the_one_before() -> None:
    assert repeated_tokens([1, 1, 2, 1, 1, 1]) == Share(3, 5)
    assert repeated_tokens([1]) == repeated_tokens([]) == Share(0, 0)


def test_a_text_is_cut_into_strides() -> None:
    assert as_strides([1, 2, 3, 4, 5], 2) == [(1, 2), (3, 4), (5,)]


def test_repetition_is_counted_by_depth_and_within_a_stride() -> None:
    strides = [(1, 2, 2, 1), (1, 3), (4, 4, 5, 4), (4,)]
    at_once, in_stride = repetition_by_depth(strides, 4)
    assert at_once == [Share(1, 3), Share(1, 2), Share(0, 2)]
    assert in_stride == [Share(1, 3), Share(1, 2), Share(2, 2)]


def test_a_pair_does_not_fit_if_its_first_token_is_plausible_and_its_second_is_not() -> None:
    likely, doubtful, odd = (0.5, 1), (0.005, 80), (0.0001, 900)
    assert misfits([(1, 2)], judged(likely, odd)) == (Share(1, 1), [1])
    assert misfits([(1, 2)], judged(likely, doubtful)) == (Share(0, 1), [])
    assert misfits([(1, 2)], judged(likely, (0.0001, 50))) == (Share(0, 1), [])  # nothing else was likely either
    assert misfits([(1, 2)], judged(doubtful, odd)) == (Share(0, 0), [])
    assert misfits([(1, 2)], judged((0.01, 9), (0.0009, 51))) == (Share(1, 1), [1])


def test_pairs_do_not_reach_from_one_stride_into_the_next() -> None:
    likely, odd = (0.5, 1), (0.0001, 900)
    # The third token begins a stride; the fifth follows an odd one.
    assert misfits([(1, 2), (3, 4, 5), (6,)], judged(likely, likely, odd, odd, likely, odd)) == (Share(0, 1), [])
    assert misfits([(1, 2), (3, 4, 5)], judged(odd, likely, likely, likely, odd)) == (Share(1, 2), [4])
