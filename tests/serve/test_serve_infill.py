"""Suffixes: a gap between two texts, in the tokens of models that were taught to fill it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import TEXT, chunks, make_context, refusal, serving, submitted, text
from assembly import assembled
from stridelm.api import LanguageModel
from stridelm.serve.context import Context
from stridelm.serve.infill import FillIn
from stridelm.settings import LoadSettings
from tiny import byte_tokenizer

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FORMS = [QWEN, ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), ("<fim-prefix>", "<fim-suffix>", "<fim-middle>")]
PREFIX, SUFFIX, MIDDLE = 257, 258, 259
"""The spare tokens of the tiny models."""


def make_model(tiny: Callable[..., Any], tokens: tuple[str, ...]) -> LanguageModel:
    """The tiny model with tokens of these names."""
    target = tiny("llama")
    return assembled(replace(target, tokenizer=byte_tokenizer(tokens)), None, LoadSettings(cache_tokens=1024))


@contextmanager
def asked(model: LanguageModel) -> Iterator[tuple[TestClient, Context]]:
    context = make_context(model)
    with serving(context) as client:
        yield client, context


def prompts(context: Context) -> list[list[int]]:
    return [sequence.tokens[: sequence.prompt_length] for sequence in submitted(context)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_the_model_reads_what_is_around_the_gap(tiny: Callable[..., Any], form: tuple[str, ...]) -> None:
    model = make_model(tiny, form)
    before, behind = (model.encode(given, raw=True) for given in ("def f(", "return 1"))
    gap = [PREFIX, *before, SUFFIX, *behind, MIDDLE]
    with asked(model) as (client, context):
        reply = client.post(TEXT, json=text("def f(", suffix="return 1"))
        assert reply.status_code == 200, reply.text
        assert prompts(context) == [gap] and reply.json()["usage"]["prompt_tokens"] == len(gap)
        # The same as the tokens themselves, and streamed.
        own = client.post(TEXT, json=text(gap)).json()
        assert own["choices"] == reply.json()["choices"]
        sent = chunks(client.post(TEXT, json=text("def f(", suffix="return 1", stream=True)))
        assert "".join(part["choices"][0]["text"] for part in sent) == own["choices"][0]["text"]
        for prompt, suffix, expected in (
            ("", "x", [PREFIX, SUFFIX, *model.encode("x", raw=True), MIDDLE]),
            ("x", "", [PREFIX, *model.encode("x", raw=True), SUFFIX, MIDDLE]),
            ("", "", [PREFIX, SUFFIX, MIDDLE]),
        ):
            assert client.post(TEXT, json=text(prompt, suffix=suffix)).status_code == 200
            assert prompts(context)[-1] == expected


def test_several_prompts_have_the_same_suffix(tiny: Callable[..., Any]) -> None:
    model = make_model(tiny, QWEN)
    with asked(model) as (client, context):
        reply = client.post(TEXT, json=text(["a", "bc"], suffix="d", n=2)).json()
        assert len(reply["choices"]) == 4 and reply["usage"]["prompt_tokens"] == 5 + 6
        a, bc, d = (model.encode(given, raw=True) for given in ("a", "bc", "d"))
        first, second = [PREFIX, *a, SUFFIX, *d, MIDDLE], [PREFIX, *bc, SUFFIX, *d, MIDDLE]
        assert prompts(context) == [first, first, second, second]


def test_echo_repeats_the_prompt_alone(tiny: Callable[..., Any]) -> None:
    model = make_model(tiny, QWEN)
    with asked(model) as (client, _):
        [plain] = client.post(TEXT, json=text("hello", suffix="bye")).json()["choices"]
        [echoed] = client.post(TEXT, json=text("hello", suffix="bye", echo=True)).json()["choices"]
        assert echoed["text"] == "hello" + plain["text"]
        body = text("hello", suffix="bye", echo=True, logprobs=1, max_tokens=2)
        [scored] = client.post(TEXT, json=body).json()["choices"]
        form = scored["logprobs"]
        assert "".join(form["tokens"]) == scored["text"] and form["tokens"][:5] == list("hello")
        assert len(form["tokens"]) == 7 and form["text_offset"] == list(range(7))
        assert all(each is not None for each in form["token_logprobs"])  # the prefix's token stands before the first


@pytest.mark.parametrize("end", [[], [255]], ids=["begins", "begins and ends"])
def test_what_begins_texts_stands_before_the_gap_alone(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, end: list[int]
) -> None:
    """Where a tokenizer begins texts with a token of its own: neither of the two is a text, both together are."""
    model = make_model(tiny, QWEN)
    encode = type(model.target.tokenizer).encode

    def with_beginning(self: Any, given: str, add_special_tokens: bool = True) -> list[int]:
        plain = encode(self, given, add_special_tokens=False)
        return [256, *plain, *end] if add_special_tokens else plain

    monkeypatch.setattr(type(model.target.tokenizer), "encode", with_beginning)
    with asked(model) as (client, context):
        assert client.post(TEXT, json=text("a", suffix="b")).status_code == 200
        [a], [b] = (model.target.tokenizer.encode(given, add_special_tokens=False) for given in "ab")
        assert prompts(context)[-1] == [256, PREFIX, a, SUFFIX, b, MIDDLE]
        body = text("hello", suffix="bye", echo=True, logprobs=1, max_tokens=2)
        [scored] = client.post(TEXT, json=body).json()["choices"]
        assert scored["logprobs"]["tokens"][:5] == list("hello") and len(scored["logprobs"]["tokens"]) == 7
        assert client.post(TEXT, json=text("a")).status_code == 200
        assert prompts(context)[-1] == [256, a, *end]


def test_a_form_that_needs_more_is_not_known() -> None:
    """CodeLlama's tokenizer begins the suffix with a space of its own."""
    assert FillIn.of(byte_tokenizer(("▁<PRE>", "▁<SUF>", "▁<MID>"))) is None


@pytest.mark.parametrize("tokens", [(), QWEN[:2], ("<|fim_prefix|>", "<fim_suffix>", "<fim-middle>")], ids=str)
def test_a_model_that_was_not_taught_says_so(tiny: Callable[..., Any], tokens: tuple[str, ...]) -> None:
    with asked(make_model(tiny, tokens)) as (client, context):
        for suffix in ("x", ""):
            error = refusal(client.post(TEXT, json=text(suffix=suffix)))
            assert error["param"] == "suffix" and "not taught" in error["message"]
        assert client.post(TEXT, json=text(suffix=None)).status_code == 200
        assert prompts(context) == [context.model.encode("hello", raw=True)]


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]]], ids=str)
def test_prompts_of_tokens_have_no_suffix(tiny: Callable[..., Any], prompt: Any) -> None:
    with asked(make_model(tiny, QWEN)) as (client, _):
        error = refusal(client.post(TEXT, json=text(prompt, suffix="x")))
        assert error["param"] == "suffix" and "text" in error["message"]


def test_both_texts_must_fit(tiny: Callable[..., Any]) -> None:
    with asked(make_model(tiny, QWEN)) as (client, _):
        for prompt, suffix in (("x", "y" * 600), ("x" * 600, "y"), ("x" * 300, "y" * 300)):
            error = refusal(client.post(TEXT, json=text(prompt, suffix=suffix)))
            assert error["code"] == "context_length_exceeded" and error["param"] in ("prompt", "suffix")
        assert refusal(client.post(TEXT, json=text("x", suffix="y" * 100_000)))["param"] == "suffix"


def test_names_are_found_in_the_vocabulary(tiny: Callable[..., Any]) -> None:
    assert FillIn.of(byte_tokenizer(QWEN)) == FillIn(PREFIX, SUFFIX, MIDDLE)
    # The first form that is whole, in whatever order its tokens are.
    assert FillIn.of(byte_tokenizer((*FORMS[1][:2], *reversed(QWEN)))) == FillIn(261, 260, 259)
    assert FillIn.of(copy.deepcopy(tiny("llama").tokenizer)) is None
