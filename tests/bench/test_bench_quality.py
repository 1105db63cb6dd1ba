"""What `stridelm bench` says of a text: comparison, repetition and loops by hand; likelihood against plain forwards."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assembly import assembled
from stridelm import LanguageModel, LoadSettings, SamplingParams
from stridelm.bench.quality import judge, loops, mean_log_likelihood
from stridelm.bench.records import Answer, Question
from tiny import load_tiny, plain_network

QUESTION = Question("own", "one", ({"role": "user", "content": "?"},), 8, lambda text: "yes" in text)
STORY = (
    "The keeper climbed the stairs with a lamp in his hand. Far out, a ship answered the light. He counted the flashes "
    "and wrote them down, as he had done every night for twenty years. Then the letter fell out of the book."
)


def answer(text: str, tokens: tuple[int, ...] = ()) -> Answer:
    return Answer(tokens, text, (len(tokens),), (0.1,), 0.1)


def test_tokens_are_compared_where_both_have_them() -> None:
    plain = answer("yes it is", (1, 2, 3, 4))
    same = judge(QUESTION, answer("yes it is", (1, 2, 3, 4)), plain, -1.5)
    assert (same.identical, same.departs_at, same.agreement, same.right) == (True, None, 1, True)
    assert same.log_likelihood == -1.5
    other = judge(QUESTION, answer("no it is", (1, 2, 9, 4)), plain, None)
    assert (other.identical, other.departs_at, other.agreement, other.right) == (False, 2, 0.5, False)
    shorter = judge(QUESTION, answer("yes", (1, 2, 3)), plain, None)
    assert (shorter.identical, shorter.departs_at, shorter.agreement) == (False, 3, 0.75)
    longer = judge(QUESTION, answer("yes", (1, 2, 3, 4, 5)), plain, None)
    assert (longer.identical, longer.departs_at, longer.agreement) == (False, 4, 1)


def test_words_are_compared_where_one_has_no_tokens() -> None:
    plain = answer("one two three four", (1, 2, 3, 4))
    assert judge(QUESTION, answer("one two three four"), plain, None).identical
    other = judge(QUESTION, answer("one two  three four"), plain, None)
    assert (other.identical, other.departs_at, other.agreement) == (False, 2, 0.5)
    assert judge(QUESTION, answer("one two three four "), plain, None).departs_at == 4
    assert judge(QUESTION, answer(""), answer(""), None).identical


def test_nothing_is_said_where_nothing_can_be_compared() -> None:
    alone = judge(Question("own", "one", (), 8), answer("yes"), None, None)
    assert (alone.identical, alone.departs_at, alone.agreement, alone.right) == (None, None, None, None)


@given(st.text(), st.text())
def test_texts_are_identical_if_all_of_them_is_equal(one: str, other: str) -> None:
    found = judge(QUESTION, answer(one), answer(other), None)
    assert found.identical == (one == other) == (found.departs_at is None)
    assert judge(QUESTION, answer(one), answer(one), None).agreement == 1


def test_repetition_is_that_of_tokens_or_of_words() -> None:
    assert judge(QUESTION, answer("x", (7,) * 10), None, None).repetition == 6 / 7
    assert judge(QUESTION, answer(STORY), None, None).repetition == 0
    # With the space before it, the first word is another than when it comes again.
    assert judge(QUESTION, answer("a b c d a b c d a"), None, None).repetition == 1 / 6


@pytest.mark.parametrize(
    "text",
    [
        "the the the the the the",
        f"{STORY} " + "I like cats. " * 20,
        f"{STORY}\n" + "And so he went home.\n" * 8 + "And so he w",
        "The kettle is on and the door is open.\n" * 10,
        "I like cats. I like cats. I like cats.",
        "0, 0, 0, 0, 0, 0, 0, 0, 0,",
        "Hahahahahahahahahahaha",
    ],
)
def test_saying_one_thing_again_and_again_is_a_loop(text: str) -> None:
    assert loops(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No, no, no!",
        STORY,
        f"{STORY} {STORY}",
        "It is 1000000000000",
        ", ".join(map(str, range(1, 200))),
        "\n".join(f"{number}. item" for number in range(1, 50)),
        json.dumps([{"number": number, "square": number**2} for number in range(1, 9)]),
        json.dumps([0] * 30),
        "I like cats. I like cats. I like cats. " + STORY,
        STORY * 2 + " And he laughed: ha ha ha ha ha ha ha",
    ],
)
def test_lists_counting_and_stories_are_no_loops(text: str) -> None:
    assert not loops(text)


@given(st.text(alphabet="abcde .,", min_size=1).filter(lambda unit: unit.strip(" .")), st.data())
def test_any_period_is_a_loop_wherever_it_is_cut_off(unit: str, data: st.DataObject) -> None:
    text = f"{unit} " * 20
    assert loops(text[: len(text) - data.draw(st.integers(0, len(unit)))])


@given(st.integers(-1000, 10**6), st.integers(1, 60), st.sampled_from([", ", "\n", " and ", ","]), st.integers(1, 99))
def test_counting_is_never_a_loop(start: int, count: int, between: str, step: int) -> None:
    assert not loops(between.join(map(str, range(start, start + count * step, step))))


def naive(folder: Path, prompt: list[int], tokens: list[int]) -> float:
    """One forward per token, of the model as transformers made it."""
    logarithms: list[float] = []
    for place, token in enumerate(tokens):
        logits_V = plain_network(str(folder))(torch.tensor([prompt + tokens[:place]])).logits[0, -1]
        logarithms.append(float(logits_V.double().log_softmax(-1)[token]))
    return sum(logarithms) / len(logarithms)


@pytest.fixture
def model(tiny_folder: Callable[..., Path]) -> LanguageModel:
    return assembled(load_tiny(tiny_folder()), None, LoadSettings(cache_tokens=2048))


@pytest.mark.parametrize(("prompt", "count"), [("abc", 24), ("x", 1), ("a longer one " * 30, 8)])
def test_likelihood_is_that_of_one_token_at_a_time(
    model: LanguageModel, tiny_folder: Callable[..., Path], prompt: str, count: int
) -> None:
    ids = model.encode(prompt, raw=True)
    written = list(model.generate(prompt, SamplingParams(max_tokens=count), raw=True).token_ids)
    for tokens in (written, [(token * 7 + 3) % 256 for token in written]):
        expected = naive(tiny_folder(), ids, tokens)
        assert mean_log_likelihood(model, ids, tokens) == pytest.approx(expected, abs=1e-4)
        # Again, with all of it in the cache.
        assert mean_log_likelihood(model, ids, tuple(tokens)) == pytest.approx(expected, abs=1e-4)
    assert mean_log_likelihood(model, ids, []) is None


def test_answers_go_on_after_a_text_was_judged(model: LanguageModel) -> None:
    before = model.generate("abc", SamplingParams(max_tokens=12))
    mean_log_likelihood(model, model.encode("abc"), before.token_ids)
    assert model.generate("abc", SamplingParams(max_tokens=12)).token_ids == before.token_ids
    answer = model.stream("abc")
    with pytest.raises(AssertionError, match="would be lost"):
        mean_log_likelihood(model, [1], [2])
    answer.close()
