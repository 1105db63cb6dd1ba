"""Fields of OpenAI's and of other servers: those that cannot change the text are taken and named in the reply, those
that could are taken at the values that change nothing, and values near the edge mean the nearest that makes sense."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from asking import CHAT, TEXT, chat, chunks, refusal, submitted, text
from stridelm.serve.context import Context
from stridelm.serve.schemas.chat import ChatNeutral, ChatRequest, ChatUnread
from stridelm.serve.schemas.common import Neutral, Unread
from stridelm.serve.schemas.text import CompletionRequest

BODIES: dict[str, Callable[..., dict[str, Any]]] = {CHAT: chat, TEXT: text}
SCHEMAS: dict[str, type[BaseModel]] = {CHAT: ChatRequest, TEXT: CompletionRequest}
IGNORED: dict[str, list[Any]] = {
    "user": ["someone", ""],
    "metadata": [{"a": "b"}, {}],
    "service_tier": ["auto", "flex"],
    "store": [True, False],
    "safety_identifier": ["x"],
    "prompt_cache_key": ["x"],
    "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [{"a": 1}],
}
CHAT_IGNORED: dict[str, list[Any]] = {
    "separate_reasoning": [True],
    "stream_reasoning": [True],
    "verbosity": ["low"],
    "modalities": [["text"]],
    "audio": [{"voice": "alloy", "format": "mp3"}],
    "functions": [[], [{"name": "f"}]],
}
NEUTRAL: dict[str, tuple[Any, list[Any]]] = {
    "ignore_eos": (False, [True, "no", 0]),
    "skip_special_tokens": (True, [False, "yes", 1]),
    "no_stop_trim": (False, [True, 0.0]),
    "return_hidden_states": (False, [True]),
}
CHAT_NEUTRAL: dict[str, tuple[Any, list[Any]]] = {
    "function_call": ("none", ["auto", {"name": "f"}]),
    "include_reasoning": (True, [False, 1.0]),
    "echo": (False, [True]),
    "web_search_options": (None, [{}, {"search_context_size": "low"}]),
    "moderation": (None, [{}, "auto"]),
}
OF_BOTH = [(path, name) for path in BODIES for name in IGNORED] + [(CHAT, name) for name in CHAT_IGNORED]
NEUTRAL_OF_BOTH = [(path, name) for path in BODIES for name in NEUTRAL] + [(CHAT, name) for name in CHAT_NEUTRAL]


def answer(client: TestClient, path: str, **fields: Any) -> dict[str, Any]:
    reply = client.post(path, json=BODIES[path](**fields))
    assert reply.status_code == 200, reply.text
    return reply.json()


def said(client: TestClient, path: str, **fields: Any) -> str:
    (choice,) = answer(client, path, **fields)["choices"]
    return choice["message"]["content"] if path == CHAT else choice["text"]


# Named in the reply


def test_all_ignored_and_neutral_fields_are_tried_here() -> None:
    assert IGNORED.keys() == Unread.model_fields.keys() and CHAT_IGNORED.keys() == ChatUnread.model_fields.keys()
    assert NEUTRAL.keys() == Neutral.model_fields.keys() and CHAT_NEUTRAL.keys() == ChatNeutral.model_fields.keys()
    assert set(CompletionRequest.unread()) == IGNORED.keys()
    assert set(ChatRequest.unread()) == IGNORED.keys() | CHAT_IGNORED.keys()


@pytest.mark.parametrize(("path", "name"), OF_BOTH)
def test_what_cannot_change_the_text_is_named(client: TestClient, path: str, name: str) -> None:
    more = {"function_call": "none"} if name == "functions" else {}
    plain = answer(client, path)
    assert plain["stride"]["ignored"] == []
    for value in (IGNORED | CHAT_IGNORED)[name]:
        reply = answer(client, path, **{name: value}, **more)
        assert reply["stride"]["ignored"] == [name] and reply["choices"] == plain["choices"]
        *sent, last = chunks(client.post(path, json=BODIES[path](stream=True, **{name: value}, **more)))
        assert last["stride"]["ignored"] == [name] and not any("stride" in chunk for chunk in sent)


@pytest.mark.parametrize("path", BODIES)
def test_all_of_them_at_once_are_named(client: TestClient, path: str) -> None:
    every = IGNORED | (CHAT_IGNORED if path == CHAT else {})
    fields: dict[str, Any] = {name: values[0] for name, values in every.items()}
    fields |= {"function_call": "none"} if path == CHAT else {}
    reply = answer(client, path, **fields)
    assert set(reply["stride"]["ignored"]) == every.keys() and reply["choices"] == answer(client, path)["choices"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("user", 3), ("metadata", "x"), ("store", "yes"), ("service_tier", 1), ("prompt_cache_options", [])),
        *(
            ("reasoning_effort", 1),
            ("separate_reasoning", False),
            ("stream_reasoning", False),
            ("modalities", ["audio"]),
            ("modalities", ["text", "audio"]),
            ("audio", "loud"),
        ),
    ],
)
def test_what_is_ignored_must_still_be_of_its_kind(client: TestClient, name: str, value: Any) -> None:
    assert str(refusal(client.post(CHAT, json=chat(**{name: value})))["param"]).startswith(name)


@pytest.mark.parametrize("path", BODIES)
def test_options_of_a_stream_without_one_are_ignored(client: TestClient, path: str) -> None:
    reply = answer(client, path, stream_options={"include_usage": True})
    assert reply["stride"]["ignored"] == ["stream_options"] and reply["choices"] == answer(client, path)["choices"]
    assert answer(client, path, stream=False, stream_options={})["stride"]["ignored"] == ["stream_options"]
    for value in (True, False):
        options = {"include_obfuscation": value}
        *sent, last = chunks(client.post(path, json=BODIES[path](stream=True, stream_options=options)))
        assert last["stride"]["ignored"] == ["stream_options.include_obfuscation"]
        assert not any("obfuscation" in chunk for chunk in (*sent, last))
    *_, last, usage = chunks(client.post(path, json=BODIES[path](stream=True, stream_options={"include_usage": True})))
    assert last["stride"]["ignored"] == [] and usage["usage"]["completion_tokens"] == 8


# Null, and what changes nothing


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (path, name)
        for path, schema in SCHEMAS.items()
        for name, field in schema.model_fields.items()
        if not field.is_required()
    ],
)
def test_null_stands_for_a_field_that_is_left_out(client: TestClient, path: str, name: str) -> None:
    body = BODIES[path](max_tokens=4) | ({"max_completion_tokens": 4} if path == CHAT else {})
    body.pop(name, None)
    with_null, without = (client.post(path, json=each).json() for each in (body | {name: None}, body))
    assert with_null["stride"]["ignored"] == []
    if name == "seed":
        assert with_null["stride"]["seed"] != without["stride"]["seed"]
    else:
        assert with_null["choices"] == without["choices"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"stream_options": {"include_usage": None}, "stream": True}),
        (CHAT, {"stride": {"trace": None, "decoder": None, "tolerance": None, "k": None}}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": None, "strict": None}}]}),
        (CHAT, {"messages": [*chat()["messages"], {"role": "assistant", "content": "x", "tool_calls": None}]}),
        (CHAT, {"messages": [*chat()["messages"], {"role": "assistant", "tool_calls": [
            {"id": "1", "type": None, "index": None, "function": {"name": "f", "arguments": None}}]}]}),
        ("/tokenize", {"prompt": "x", "add_special_tokens": None, "return_token_strs": None, "model": None}),
        ("/tokenize", {"messages": chat()["messages"], "add_generation_prompt": None, "tools": None}),
    ],
    ids=str,
)  # fmt: skip
def test_null_stands_for_what_is_left_out_within_fields_too(
    client: TestClient, path: str, fields: dict[str, Any]
) -> None:
    reply = client.post(path, json=chat(**fields) if path == CHAT else fields)
    assert reply.status_code == 200, reply.text


def test_null_is_no_value_of_what_must_be_there(client: TestClient) -> None:
    for fields, param in (
        ({"messages": None}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": None}}]}, "tools.0.function.name"),
        ({"stride": {"magic": None}}, "stride.magic"),
    ):
        assert refusal(client.post(CHAT, json=chat(**fields)))["param"] == param


@pytest.mark.parametrize(("path", "name"), NEUTRAL_OF_BOTH)
def test_what_could_change_the_text_is_taken_where_it_does_not(client: TestClient, path: str, name: str) -> None:
    taken, refused = (NEUTRAL | CHAT_NEUTRAL)[name]
    reply = answer(client, path, **{name: taken})
    assert reply["choices"] == answer(client, path)["choices"] and reply["stride"]["ignored"] == []
    for value in refused:
        error = refusal(client.post(path, json=BODIES[path](**{name: value})))
        assert str(error["param"]).startswith(name) and name in error["message"]


@pytest.mark.parametrize("name", sorted(CHAT_NEUTRAL.keys() - {"echo"}))
def test_fields_of_chats_are_not_known_to_completions(client: TestClient, name: str) -> None:
    assert refusal(client.post(TEXT, json=text(**{name: CHAT_NEUTRAL[name][0]})))["param"] == name


def test_functions_are_taken_only_where_none_is_called(client: TestClient) -> None:
    functions = [{"name": "f", "parameters": {}}]
    for fields in ({}, {"function_call": None}):
        error = refusal(client.post(CHAT, json=chat(functions=functions, **fields)))
        assert error["param"] == "functions" and "tools" in error["message"]
    assert answer(client, CHAT, functions=functions, function_call="none")["stride"]["ignored"] == ["functions"]
    assert refusal(client.post(CHAT, json=chat(functions=functions, function_call="auto")))["param"] == "function_call"


# Numbers near the edge


@pytest.mark.parametrize("path", BODIES)
def test_a_seed_of_minus_one_is_any(client: TestClient, path: str) -> None:
    replies = [answer(client, path, seed=-1) for _ in range(2)]
    seeds = [reply["stride"]["seed"] for reply in replies]
    assert seeds[0] != seeds[1] and all(seed >= 0 for seed in seeds)
    for reply, seed in zip(replies, seeds, strict=True):
        assert answer(client, path, seed=seed)["choices"] == reply["choices"]


@pytest.mark.parametrize("path", BODIES)
def test_other_negative_seeds_are_seeds(client: TestClient, path: str) -> None:
    seeds = (-2, -3, 2, 3, -(2**63), 2**63 - 1)
    replies = [answer(client, path, seed=seed, max_tokens=16) for seed in seeds]
    assert [reply["stride"]["seed"] for reply in replies] == list(seeds)
    assert len({str(reply["choices"]) for reply in replies}) == len(seeds)
    for reply, seed in zip(replies, seeds, strict=True):
        assert answer(client, path, seed=seed, max_tokens=16)["choices"] == reply["choices"]
    for outside in (2**63, -(2**63) - 1):
        assert refusal(client.post(path, json=BODIES[path](seed=outside)))["param"] == "seed"


@pytest.mark.parametrize("path", BODIES)
def test_values_near_the_edge_mean_the_nearest_that_makes_sense(
    client: TestClient, context: Context, path: str
) -> None:
    greedy, sampled = said(client, path, temperature=0), said(client, path)
    assert greedy != sampled
    for temperature in (1e-9, 9.9e-5, 5e-324, -0.0):
        assert said(client, path, temperature=temperature) == greedy
        assert submitted(context)[-1].params.temperature == 0
    said(client, path, temperature=1e-4)
    assert submitted(context)[-1].params.temperature == 1e-4
    assert said(client, path, top_p=0) == said(client, path, top_p=0.0) == greedy
    assert said(client, path, top_k=1) == greedy
    assert said(client, path, top_k=-1) == said(client, path, top_k=0) == sampled
    assert submitted(context)[-2].params.top_k == 0
    for name in ("top_k", "top_p", "temperature"):
        assert refusal(client.post(path, json=BODIES[path](**{name: -2})))["param"] == name


@pytest.mark.parametrize("path", BODIES)
def test_a_bias_of_nothing_may_be_of_anything(client: TestClient, context: Context, path: str) -> None:
    plain = said(client, path)
    for bias in ({"foo": 0}, {"foo": 0.0, "": -0.0}, {"999999": 0}, {str(token): 0 for token in range(1024)}, {}):
        assert said(client, path, logit_bias=bias) == plain
        assert submitted(context)[-1].params.logit_bias == {}
    said(client, path, logit_bias={"foo": 0, "65": 3})
    assert submitted(context)[-1].params.logit_bias == {65: 3}
    for wrong in ({"foo": 1}, {"65": False}, {"65": None}, {"65": "0"}, {"foo": False}, {"999999": 1}, [], "0"):
        assert str(refusal(client.post(path, json=BODIES[path](logit_bias=wrong)))["param"]).startswith("logit_bias")


def test_the_best_of_one_is_the_one(client: TestClient) -> None:
    for count in (0, 1):
        assert said(client, TEXT, best_of=count) == said(client, TEXT)
        assert len(answer(client, TEXT, best_of=count, n=2)["choices"]) == 2
    for count in (2, -1, True, "1"):
        assert refusal(client.post(TEXT, json=text(best_of=count)))["param"] == "best_of"


# What was read before


@pytest.mark.parametrize("path", BODIES)
def test_a_prompt_that_was_read_before_is_counted(client: TestClient, path: str) -> None:
    """In whole blocks of the cache, of 16 tokens."""
    prompt = f"A prompt for {path} that is longer than a few blocks of the cache, all of which are kept"
    body = BODIES[path](prompt, stride={"decoder": "autoregressive"})
    first, second = (client.post(path, json=body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": (first["prompt_tokens"] - 1) // 16 * 16}
    assert {**first, "prompt_tokens_details": None} == {**second, "prompt_tokens_details": None}
    options = {"include_usage": True}
    *_, usage = chunks(client.post(path, json=body | {"stream": True, "stream_options": options, "n": 2}))
    assert usage["usage"]["prompt_tokens_details"] == second["prompt_tokens_details"]
    assert client.post(path, json=BODIES[path]("x" + prompt)).json()["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0
    }


def test_a_prompt_that_is_scored_for_the_request_itself_was_not_read_before(client: TestClient) -> None:
    prompt = "A prompt whose tokens are told how likely they are, which takes a pass of its own"
    body = text(prompt, echo=True, logprobs=0, max_tokens=2, stride={"decoder": "autoregressive"})
    assert client.post(TEXT, json=body).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
