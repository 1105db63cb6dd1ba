"""Predicted text: where an answer stands in it, what is drafted from it, what is counted."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactness import READERS
from hashing_model import CONTEXT, END, HashForward, letters
from predictions import ENDLESS, FLAT, right_answer, strides_of, with_answer
from reference import reference
from stridelm.api import LanguageModel
from stridelm.contracts import Policy
from stridelm.decode.planned import Planned
from stridelm.decode.speculative import Speculative
from stridelm.draft.ngram import LONGEST_PREDICTION, NgramDrafter
from stridelm.draft.prediction import LONGEST_MATCH, Follower
from stridelm.engine.engine import Engine
from stridelm.params import SamplingParams
from stridelm.settings import DECODERS, DecodeSettings
from stridelm.types import PREDICTION, DraftTree, Sequence
from tiny import plain_network

TOKENS = st.lists(st.integers(0, 3), max_size=30)
FILE = tuple(range(100, 200))
"""No two places look alike."""


def drafts_after(prediction: tuple[int, ...], text: list[int], prompt: list[int] | None = None) -> list[int]:
    follower = Follower(prediction, prompt or [])
    follower.follow([*(prompt or []), *text])
    return follower.propose(longest=LONGEST_PREDICTION)[0]


# The place


def place_by_trying(prediction: list[int], text: list[int]) -> int | None:
    """Written out: token by token, where the next one is expected; None where nobody knows."""
    place, last = 0, 0
    is_known = True
    for length in range(1, len(text) + 1):
        if is_known and place < len(prediction) and prediction[place] == text[length - 1]:
            place = last = place + 1
            continue
        is_known = False
        for size in range(min(length, LONGEST_MATCH), 1, -1):
            ending = text[length - size : length]
            places = [at for at in range(size, len(prediction)) if prediction[at - size : at] == ending]
            if places:
                place = last = min((at for at in places if at > last), default=places[-1])
                is_known = True
                break
    return place if is_known else None


@given(TOKENS.filter(len), TOKENS)
def test_the_place_is_the_one_that_trying_all_finds(prediction: list[int], text: list[int]) -> None:
    place, drafts = place_by_trying(prediction, text), drafts_after(tuple(prediction), text)
    if place is None:
        assert not drafts
    else:
        assert drafts == prediction[place : place + len(drafts)] and bool(drafts) == (place < len(prediction))


@given(TOKENS.filter(len), TOKENS, st.lists(st.integers(1, 6), min_size=30, max_size=30))
def test_the_steps_that_tokens_came_in_do_not_matter(prediction: list[int], text: list[int], parts: list[int]) -> None:
    """So a sequence that is read again, after it has made room for others, goes on as before."""
    at_once, by_and_by = Follower(tuple(prediction), []), Follower(tuple(prediction), [])
    at_once.follow(text)
    read = 0
    for part in parts:
        read += part
        by_and_by.follow(text[:read])
        by_and_by.propose(4)
    assert at_once.propose(48) == by_and_by.propose(48)


@given(st.integers(3, 80), st.integers(0, 3), st.lists(st.integers(0, 50), max_size=5))
def test_the_place_is_found_again_two_tokens_behind_an_edit(at: int, deleted: int, inserted: list[int]) -> None:
    behind = at + deleted
    written = [*FILE[:at], *inserted, *FILE[behind : behind + 2]]
    drafts = drafts_after(FILE, written)
    assert drafts and drafts == list(FILE[behind + 2 :][: len(drafts)])


def test_of_places_that_look_alike_the_next_one_is_meant() -> None:
    """Records of a table begin alike; an edit keeps their order."""
    records = [(1, 2, 10 + number, 3, 4, 30 + number) for number in range(8)]
    table = tuple(token for record in records for token in record)
    for number in range(1, 7):
        written = [*table[: 6 * number], 99, 1, 2]  # something is inserted before the record
        assert drafts_after(table, written)[:1] == [10 + number]


def test_an_answer_begins_with_the_prediction_or_goes_on_where_the_prompt_ends() -> None:
    assert drafts_after(FILE, []) == list(FILE[:8])
    begun = [1, 2, *FILE[:LONGEST_MATCH]]
    assert drafts_after(FILE, [], begun)[0] == FILE[LONGEST_MATCH]
    assert drafts_after(FILE, [], begun[:-1])[0] == FILE[0]  # shorter, it may be chance
    assert drafts_after(FILE, [], [1, 2, *FILE])[0] == FILE[0]  # the prompt ends with the whole of it


# The drafts


@given(TOKENS.filter(len), TOKENS, st.integers(1, 48))
def test_drafts_are_no_more_than_have_stood(prediction: list[int], text: list[int], longest: int) -> None:
    """So what a wrong prediction costs is bounded by what a right one has saved before."""
    follower = Follower(tuple(prediction), [])
    follower.follow(text)
    tokens, scores = follower.propose(longest)
    assert len(tokens) == len(scores) <= min(longest, 8 + len(text)) and all(0 < score < 1 for score in scores)
    assert text == [] or scores == sorted(scores)


@given(TOKENS.filter(len), TOKENS, st.integers(1, 48))
def test_what_is_rejected_is_bounded_by_what_has_stood(prediction: list[int], text: list[int], longest: int) -> None:
    """And one row for each place that was found, and the first draft."""
    follower, read, rejected = Follower(tuple(prediction), []), 0, 0
    while read < len(text):
        drafts, _ = follower.propose(longest)
        pairs = zip(drafts, text[read:], strict=False)
        accepted = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        read = min(read + accepted + 1, len(text))  # the model adds one
        follower.follow(text[:read])
        rejected += len(drafts) - accepted if read < len(text) else 0
    assert rejected <= 8 + follower._stood + follower._lost


def test_a_wrong_prediction_costs_one_draft() -> None:
    """All rows of it together: after that, nothing of the answer is found in it."""
    drafter, sequence = NgramDrafter(8), predicted_sequence([50], FILE, NgramDrafter(8))
    rows = 0
    for token in range(40):
        (tree,) = drafter.propose([sequence])
        rows += len(tree)
        sequence.tokens.append(token)
    assert rows == 8


def test_a_text_that_often_leaves_its_prediction_is_trusted_less() -> None:
    """Both have followed it for the last thirty tokens."""
    scores: list[list[float]] = []
    for strays in ([], [5, 10, 15, 20, 25]):
        text = [0 if at in strays else token for at, token in enumerate(FILE[:58])]
        follower = Follower(FILE, [])
        follower.follow(text)
        tokens, found = follower.propose(4)
        assert tokens == list(FILE[58:62])
        scores.append(found)
    assert max(scores[1]) < 0.93 < 0.98 < min(scores[0])


def predicted_sequence(
    prompt: list[int], prediction: tuple[int, ...], drafter: NgramDrafter, params: SamplingParams | None = None
) -> Sequence:
    params = params or SamplingParams(max_tokens=60)
    return Sequence(list(prompt), params, Speculative(drafter), frozenset({END}), CONTEXT, prediction=prediction)


def test_the_surer_of_prediction_and_look_up_drafts_and_nobody_twice() -> None:
    """Both know the file. One chain comes of it, whoever makes it."""
    drafter = NgramDrafter(8)
    sequence = predicted_sequence([*FILE, 1, 2], FILE, drafter)
    sequence.tokens += FILE[:12]
    (tree,) = drafter.propose([sequence])
    assert tree == DraftTree.chain(FILE[12:32], PREDICTION, tree.scores)
    sequence.tokens += [7, *FILE[20:28]]  # the look-up does not know what stands before the file
    (tree,) = drafter.propose([sequence])
    assert set(tree.sources) == {PREDICTION} and tree.tokens[0] == FILE[28]
    elsewhere = predicted_sequence([9, 8, 7, 6, 5, 4, 3], (6, 5, 0, 0), drafter)
    elsewhere.tokens += [9, 8, 7, 6, 5]
    (tree,) = drafter.propose([elsewhere])
    assert set(tree.sources) == {"ngram"} and tree.tokens[0] == 4


def test_a_sequence_that_ended_is_forgotten() -> None:
    drafter = NgramDrafter(8)
    sequence = predicted_sequence([1], FILE, drafter)
    drafter.propose([sequence])
    drafter.release(sequence)
    assert not drafter._followers


# In the engine


def test_strides_say_how_many_drafts_came_from_the_prediction() -> None:
    sequence = with_answer(0, Speculative(NgramDrafter(4)))
    sequence.is_traced = True
    (strides,) = strides_of(Engine(HashForward(64), letters()), sequence).values()
    assert sequence.output == right_answer(sequence)
    for stride in strides:
        assert stride.trace is not None
        sources = stride.trace.block.tree.sources
        assert stride.predicted == sources.count(PREDICTION) <= stride.drafted == len(sources)
        assert stride.sources.count(PREDICTION) <= stride.predicted
    predicted = sum(stride.predicted for stride in strides)
    accepted = sum(stride.sources.count(PREDICTION) for stride in strides)
    assert accepted > 100 and 0 < predicted - accepted <= LONGEST_PREDICTION  # one token is wrong
    assert len(strides) < 20
    plain = with_answer(0, Speculative(NgramDrafter(4)))
    plain.prediction = ()
    (strides,) = strides_of(Engine(HashForward(64), letters()), plain).values()
    assert not any(stride.predicted or PREDICTION in stride.sources for stride in strides)


@pytest.mark.parametrize("policy", [Speculative(NgramDrafter(4)), Planned(FLAT, drafters=(NgramDrafter(4),))])
def test_choices_and_those_who_make_room_write_what_they_would_alone(policy: Policy) -> None:
    """The cache is too small for all: some are read again from their start, and go on with their predictions."""
    engine = Engine(HashForward(24), letters())
    sampled = SamplingParams(max_tokens=120, logit_bias=ENDLESS.logit_bias, temperature=1.0, seed=1)
    sequences = [with_answer(seed, policy) for seed in range(4)]
    sequences += [with_answer(9, policy, sampled, choice) for choice in range(3)]
    found = strides_of(engine, *sequences)
    assert engine.scheduler.preemptions > 0
    for sequence, strides in found.items():
        assert sequence.output == right_answer(sequence)
        assert sum(stride.sources.count(PREDICTION) for stride in strides) > 90
    assert len({tuple(sequence.output) for sequence in sequences[4:]}) == 3


def test_the_cache_spares_rows_for_predictions() -> None:
    policy = Planned(FLAT, drafters=(NgramDrafter(4),), nodes=4)
    assert policy.spare_rows >= LONGEST_PREDICTION and Planned(FLAT, nodes=4).spare_rows == 4


def test_a_prediction_that_stands_is_drafted_beyond_the_usual_nodes_but_not_beyond_those_asked_for(
    language_model: LanguageModel, tiny_folder: Callable[..., Path]
) -> None:
    ids, params = language_model.encode("abcd", raw=True), SamplingParams(max_tokens=120)
    oracle = plain_network(str(tiny_folder("llama")))
    right = [decision.token for decision in reference(oracle, ids, params, frozenset())]
    usual = language_model._policy(DecodeSettings("ensemble"))
    assert isinstance(usual, Planned)
    usual.cost = FLAT
    for settings, most in (
        (DecodeSettings("ensemble"), LONGEST_PREDICTION),
        (DecodeSettings("ensemble", nodes=6), 6),
        (DecodeSettings("ngram"), LONGEST_PREDICTION),
        (DecodeSettings("ngram", k=5), 5),
    ):
        policy = language_model._policy(settings)
        sequence = Sequence(list(ids), params, policy, frozenset(), language_model.target.context_length)
        sequence.prediction = tuple(right)
        (strides,) = strides_of(language_model.engine, sequence).values()
        assert sequence.output == right
        widest = max(stride.predicted for stride in strides)
        assert widest == most if settings != DecodeSettings("ensemble") else 16 < widest <= most


def test_who_reads_predictions_says_so(language_model: LanguageModel) -> None:
    """A server refuses a prediction where it would be ignored."""
    able = [name for name in DECODERS if name != "heads"]
    reading = [name for name in able if language_model._policy(language_model.check(name)).reads_predictions]
    assert sorted(reading) == sorted(READERS)
    assert not language_model.scoring([1, 2]).policy.reads_predictions
