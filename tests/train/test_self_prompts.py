"""Prompts that a model makes up: what it is shown, which of its candidates are taken, and in which order."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from stridelm import InputError
from stridelm.train.near_duplicates import Sieve
from stridelm.train.rollout_engine import RolloutPrompt
from stridelm.train.self_prompts import made_up, opening, sift
from tiny import byte_tokenizer

END = 256
LONGEST = 40
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"


def tokenizer_of(template: str | None = None, **changes: Any) -> Any:
    tokenizer: Any = byte_tokenizer(("<s>",))
    tokenizer.chat_template = template
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer


class FakeEngine:
    """Writes a given text for every seed; those of even seeds are finished last."""

    eos_ids = frozenset([END])

    def __init__(self, texts: dict[int, list[int]]) -> None:
        self.texts = texts
        self.asked: list[RolloutPrompt] = []

    def run(self, prompts: Iterable[RolloutPrompt]) -> Iterator[tuple[int, list[int]]]:
        self.asked = list(prompts)
        for place, prompt in sorted(enumerate(self.asked), key=lambda entry: (entry[1].seed % 2 == 0, -entry[0])):
            yield place, self.texts[prompt.seed][: prompt.max_tokens]


def candidates(texts: dict[int, list[int]], tokenizer: Any) -> list[str]:
    engine: Any = FakeEngine(texts)
    seeds = range(min(texts), max(texts) + 1)
    found = list(made_up(tokenizer, engine, seeds, LONGEST, 0.0))
    start = tuple(opening(tokenizer))
    assert engine.asked == [RolloutPrompt(start, LONGEST, temperature=1.0, seed=seed) for seed in seeds]
    return found


def test_the_opening_is_what_stands_before_a_users_words() -> None:
    assert byte_tokenizer().decode(opening(byte_tokenizer())) == "[user] "
    chat = tokenizer_of(CHATML)
    assert chat.decode(opening(chat)) == "<|im_start|>user\n"
    told = tokenizer_of("[system] Be brief.\n" + CHATML)
    assert told.decode(opening(told)) == "[system] Be brief.\n<|im_start|>user\n"


@pytest.mark.parametrize("template", [None, "{{ messages[0]['content'] }}<|im_end|>"], ids=["no template", "no header"])
def test_where_nothing_stands_there_it_is_what_begins_a_text(template: str | None) -> None:
    assert opening(tokenizer_of(template, bos_token="<s>")) == [257]
    assert opening(tokenizer_of(template)) == [END], "without a token for it, a text begins behind another's end"
    with pytest.raises(InputError, match="--prompts"):
        opening(tokenizer_of(template, eos_token=None))


def test_a_template_that_changes_what_the_user_says_is_refused() -> None:
    with pytest.raises(InputError, match="--prompts"):
        opening(tokenizer_of("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"))


def test_candidates_come_in_the_order_of_the_seeds_without_those_that_were_cut_off_or_say_nothing() -> None:
    tokenizer = tokenizer_of(CHATML)
    words = {
        7: "  Why is the sky blue?\n",
        8: "far too long for a prompt " * 3,
        9: "",
        10: "two words",
        11: "Name three old towns.",
        12: "What is \xff",
        13: "the number of " + "\u00e9" * 3,
    }
    texts = {seed: [*tokenizer.encode(text, add_special_tokens=False), END] for seed, text in words.items()}
    texts[12] = [*texts[12][:-2], END]  # half a character
    expected = ["Why is the sky blue?", "Name three old towns.", "the number of \u00e9\u00e9\u00e9"]
    assert candidates(texts, tokenizer) == expected
    assert candidates(dict(reversed(texts.items())), tokenizer) == expected
    # An answer that ends with the last token that it may have is no cut-off one.
    whole = [*tokenizer.encode("one two " + "x" * (LONGEST - 9), add_special_tokens=False), END]
    assert len(whole) == LONGEST
    assert len(candidates({3: whole}, tokenizer)) == 1
    assert candidates({3: [*whole[:-1], whole[0], END]}, tokenizer) == []


def test_without_a_chat_template_the_beginning_of_a_text_is_taken() -> None:
    tokenizer = tokenizer_of()
    long: list[int] = tokenizer.encode("on and on and on it goes " * 4)
    texts = dict.fromkeys(range(50), long)
    found = candidates(texts, tokenizer)
    assert found == candidates(texts, tokenizer), "of a length that the seed decides"
    lengths = {len(text) for text in found}
    assert len(lengths) > 10 and min(lengths) >= 7 and max(lengths) <= LONGEST
    assert all("on and on and on it goes on and on and on it goes".startswith(text) for text in found)
    short = [*tokenizer.encode("it has an end"), END]
    assert "it has an end" in candidates(dict.fromkeys(range(50), short), tokenizer)


def test_a_share_of_prompts_begins_with_words_of_ours() -> None:
    tokenizer = tokenizer_of(CHATML)
    seeds = range(200)
    rest = [*tokenizer.encode(" and so on?", add_special_tokens=False), END]
    engine: Any = FakeEngine(dict.fromkeys(seeds, rest))
    longest, start = 60, opening(tokenizer)
    found = list(made_up(tokenizer, engine, seeds, longest, 0.4))
    assert len(found) == len(seeds)
    ours = [text.removesuffix("and so on?") for text in found if text != "and so on?"]
    assert 50 < len(ours) < 110
    assert 15 < sum(any(letter.isdigit() for letter in text) for text in ours) < len(ours) - 15, "half have numbers"
    for prompt, text in zip(engine.asked, found, strict=True):
        assert tokenizer.decode(prompt.tokens[len(start) :]).strip() == text.removesuffix("and so on?").strip()
        assert len(prompt.tokens) - len(start) + prompt.max_tokens == longest
    again: Any = FakeEngine(dict.fromkeys(seeds, rest))
    assert list(made_up(tokenizer, again, seeds, longest, 0.4)) == found
    assert list(made_up(tokenizer, again, range(100, 200), longest, 0.4)) == found[100:], "each seed has its own"
    list(made_up(tokenizer, again, seeds, 4, 1.0))
    assert max(len(prompt.tokens) for prompt in again.asked) < len(start) + 4, "words that leave no room are left out"


def test_what_was_said_before_is_left_out() -> None:
    sieve = Sieve()
    texts = ["Why is the sky blue?", "why is the sky BLUE", "Name three old towns in Italy."]
    assert sift(iter(texts), sieve) == [texts[0], texts[2]]
    assert sift(iter(texts), sieve) == []
