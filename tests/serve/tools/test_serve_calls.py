"""Calls and forms of answers over HTTP: where an answer ends, which field a refusal names, what a template is told."""

import asyncio
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import CHAT, NotedGrammars, Scripted, chat, chunks, make_context, refusal, serving
from assembly import assembled
from stridelm.api import LanguageModel
from stridelm.serve.errors import Uncompilable
from stridelm.serve.grammars.compile import Grammars
from stridelm.serve.grammars.json_schema import meant
from stridelm.serve.settings import ServeSettings
from stridelm.serve.tools.forms import HERMES, Call
from stridelm.settings import LoadSettings
from tool_asking import CALLS, CLOCK, WEATHER, ask, called, gathered, prompt_of, scripted

EFFORT = (
    "{{ reasoning_effort or 'medium' }} {{ enable_thinking }}\n{% for m in messages %}{{ m.content }}\n{% endfor %}"
)

ASCII = {str(token): 12 for token in range(64, 90)} | {"256": -100}
"""Keeps answers to characters of one token, so that they are the same tokens when they are read again."""


def make_model(tiny: Callable[..., Any], template: str | None = None) -> LanguageModel:
    target = tiny("llama")
    tokenizer = copy.deepcopy(target.tokenizer)
    tokenizer.chat_template = template or tokenizer.chat_template
    # Nothing is run here, so that a context may be pretended that has room for descriptions in bytes.
    target = replace(target, tokenizer=tokenizer, context_length=4096)
    return assembled(target, None, LoadSettings(cache_tokens=4096))


@pytest.fixture
def model(tiny: Callable[..., Any]) -> LanguageModel:
    return make_model(tiny)


# The only call


def test_one_call_at_most(model: LanguageModel) -> None:
    """The answer ends with it, whatever the model would have said behind it."""
    with scripted(model, HERMES.write(CALLS)) as (client, worker):
        assert called(ask(client, parallel_tool_calls=True)["message"]) == CALLS
        for number, fields in enumerate(({"stop": "x"}, {"n": 2}), start=1):
            reply = client.post(CHAT, json=chat(tools=[WEATHER, CLOCK], parallel_tool_calls=False, **fields)).json()
            for choice in reply["choices"]:
                assert called(choice["message"]) == CALLS[:1] and choice["message"]["content"] is None
                assert choice["finish_reason"] == "tool_calls"
            assert worker.cancelled == worker.sequences[1:] and len(reply["choices"]) == number
            assert reply["usage"]["completion_tokens"] < number * len(HERMES.write(CALLS[:1]))
        assert worker.sequences[-1].params.stop == ()
        body = chat(tools=[WEATHER, CLOCK], parallel_tool_calls=False, stream=True)
        streamed_choice = gathered(chunks(client.post(CHAT, json=body)))
        assert called(streamed_choice["message"]) == CALLS[:1] and streamed_choice["finish_reason"] == "tool_calls"


def test_what_closes_a_call_may_be_said_within_it(model: LanguageModel) -> None:
    said = [Call("clock", {"said": "write </tool_call> at the end", "n": 1})]
    with scripted(model, "So: " + HERMES.write(said)) as (client, _):
        assert called(ask(client, parallel_tool_calls=False)["message"]) == said
    for text in ("The tag is </tool_call>, I think.", '{"a": "</tool_call>"}'):
        with scripted(model, text, grammars=NotedGrammars(lambda: None)) as (client, _):  # type: ignore[arg-type,return-value]
            assert ask(client, parallel_tool_calls=False)["message"]["content"] == text
            form = {"type": "json_object"}
            assert ask(client, parallel_tool_calls=False, response_format=form)["message"]["content"] == text


# Which field


def form_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def tool_of(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": parameters}}}


UNUSABLE = {"type": "string", "pattern": "(?<=a)b"}
GUIDED: dict[str, Any] = {"x-guidance": {}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": form_of(UNUSABLE)}, "response_format"),
        ({"response_format": form_of(UNUSABLE), "tools": [WEATHER]}, "response_format"),
        ({"response_format": form_of(GUIDED), "tools": [WEATHER]}, "response_format"),
        ({"response_format": {"type": "json_object"}, "tools": [tool_of({"a": UNUSABLE})]}, "tools"),
        ({"tools": [tool_of({"a": GUIDED})], "tool_choice": "required"}, "tools"),
        ({"tools": [tool_of({"a": UNUSABLE})], "tool_choice": "required"}, "tools"),
    ],
    ids=str,
)
def test_a_refusal_names_the_field_whose_schema_it_is(model: LanguageModel, fields: dict[str, Any], param: str) -> None:
    grammars = Grammars(model, ServeSettings())
    with serving(make_context(model, grammars=grammars, worker=Scripted("x"))) as client:
        assert refusal(client.post(CHAT, json=chat(**fields)))["param"] == param
    grammars.close()


def test_what_cannot_be_kept_to_with_closed_objects_is_taken_as_it_stands(model: LanguageModel) -> None:
    """Whatever was overlooked: closing must not make a schema unusable."""
    part = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    other = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
    schema = {"type": "object", "properties": {"m": part}, "patternProperties": {"^m$": other}, "required": ["m"]}
    grammars = Grammars(model, ServeSettings())
    with pytest.raises(Uncompilable):
        asyncio.run(grammars.json_schema(meant(schema)))
    with serving(make_context(model, grammars=grammars, worker=Scripted("x"))) as client:
        for fields in (
            {"response_format": form_of(schema)},
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
                "tool_choice": "required",
            },
        ):
            reply = client.post(CHAT, json=chat(**fields))
            assert reply.status_code == 200, reply.text
    grammars.close()


# What has no effect


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"parallel_tool_calls": False}, ["parallel_tool_calls"]),
        ({"parallel_tool_calls": True, "tools": []}, ["parallel_tool_calls"]),
        ({"parallel_tool_calls": True, "tools": [CLOCK], "tool_choice": "none"}, ["parallel_tool_calls"]),
        ({"parallel_tool_calls": False, "tools": [CLOCK]}, []),
        ({"response_format": form_of({}), "tools": [CLOCK], "tool_choice": "required"}, ["response_format"]),
        ({"response_format": {"type": "json_object"}, "tools": [CLOCK], "tool_choice": CLOCK}, ["response_format"]),
        ({"response_format": {"type": "text"}, "tools": [CLOCK], "tool_choice": "required"}, []),
        ({"response_format": {"type": "json_object"}, "tools": [CLOCK]}, []),
        ({"reasoning_effort": "high"}, ["reasoning_effort"]),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ["chat_template_kwargs.enable_thinking"]),
    ],
    ids=str,
)
def test_what_has_no_effect_beside_others_is_named(
    model: LanguageModel, fields: dict[str, Any], ignored: list[str]
) -> None:
    grammars = NotedGrammars(lambda: None)  # type: ignore[arg-type,return-value]
    with scripted(model, HERMES.write(CALLS[1:]), grammars=grammars) as (client, _):
        reply = client.post(CHAT, json=chat(**fields))
        assert reply.status_code == 200 and reply.json()["stride"]["ignored"] == ignored


# What a template is told


def test_templates_that_read_it_are_told_the_effort(tiny: Callable[..., Any]) -> None:
    model = make_model(tiny, EFFORT)
    with scripted(model, "Yes.") as (client, worker):
        for fields, first in (
            ({}, "medium "),
            ({"reasoning_effort": "high"}, "high "),
            ({"chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": False}}, "low False"),
            ({"chat_template_kwargs": {"enable_thinking": None}}, "medium None"),
        ):
            reply = client.post(CHAT, json=chat(**fields)).json()
            prompt = prompt_of(model, worker.sequences[-1])
            assert prompt.startswith(f"{first}\nhello") and reply["stride"]["ignored"] == []
            if "reasoning_effort" not in fields:
                counted = client.post("/tokenize", json={"messages": chat()["messages"], **fields}).json()["count"]
                assert counted == reply["usage"]["prompt_tokens"]
        body = chat(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"})
        assert refusal(client.post(CHAT, json=body))["param"] == "reasoning_effort"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        *(({name: False}, f"chat_template_kwargs.{name}") for name in ("messages", "tools", "add_generation_prompt")),
        *(({name: "x"}, f"chat_template_kwargs.{name}") for name in ("tokenize", "conversation", "eos_token")),
        ({"a": [1]}, "chat_template_kwargs.a"),
        ({"a": {}}, "chat_template_kwargs.a"),
        ({"a": "x" * 1025}, "chat_template_kwargs.a"),
        ({"a b": 1}, "chat_template_kwargs.a b"),
        ({f"a{number}": 1 for number in range(17)}, "chat_template_kwargs"),
        ([], "chat_template_kwargs"),
    ],
    ids=str,
)
def test_what_a_template_may_not_be_told(tiny: Callable[..., Any], given: Any, param: str) -> None:
    with scripted(make_model(tiny, EFFORT), "Yes.") as (client, _):
        for path, body in ((CHAT, chat()), ("/tokenize", {"messages": chat()["messages"]})):
            assert refusal(client.post(path, json=body | {"chat_template_kwargs": given}))["param"].startswith(param)


# What an answer is predicted to be


@pytest.fixture(scope="module")
def predicting(converted: Callable[..., Any], tiny: Callable[..., Any]) -> Iterator[TestClient]:
    target, gate = converted("llama")
    model = assembled(target, tiny("llama", 1), LoadSettings(cache_tokens=4096), gate)
    with serving(make_context(model)) as client:
        yield client


def predicted(content: str) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


@pytest.mark.parametrize("decoder", ["auto", "ngram", "ensemble"])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 5}], ids=str)
def test_a_right_prediction_saves_passes_and_changes_nothing(
    predicting: TestClient, decoder: str, sampling: dict[str, Any]
) -> None:
    body = chat(max_tokens=60, logit_bias=ASCII, stride={"decoder": decoder}, **sampling)
    plain = predicting.post(CHAT, json=body).json()
    said = plain["choices"][0]["message"]["content"]
    reply = predicting.post(CHAT, json=body | predicted(said)).json()
    assert reply["choices"] == plain["choices"] and reply["stride"]["exact"] is True
    assert reply["stride"]["forwards"] < plain["stride"]["forwards"]
    assert plain["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    counts = reply["usage"]["completion_tokens_details"]
    assert counts["accepted_prediction_tokens"] > 0 <= counts["rejected_prediction_tokens"]
    streaming = body | predicted(said) | {"stream": True, "stream_options": {"include_usage": True}}
    *sent, last = chunks(predicting.post(CHAT, json=streaming))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in sent) == said
    assert last["usage"]["completion_tokens"] == reply["usage"]["completion_tokens"]
    assert last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0


def test_all_choices_are_drafted_from_the_prediction(predicting: TestClient) -> None:
    body = chat(max_tokens=40, n=2, logit_bias=ASCII, stride={"decoder": "ngram"}, temperature=0)
    plain = predicting.post(CHAT, json=body).json()
    reply = predicting.post(CHAT, json=body | predicted(plain["choices"][0]["message"]["content"])).json()
    assert reply["choices"] == plain["choices"]
    assert reply["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 40


@pytest.mark.parametrize(
    "stride",
    [{"decoder": "autoregressive"}, {"decoder": "self"}, {"decoder": "ngram", "tolerance": 0.9}, {"tolerance": 0.9}],
    ids=str,
)
def test_a_prediction_that_is_not_read_or_could_change_the_text_is_refused(
    predicting: TestClient, stride: dict[str, Any]
) -> None:
    assert predicting.post(CHAT, json=chat(stride=stride)).status_code == 200
    error = refusal(predicting.post(CHAT, json=chat(stride=stride, **predicted("x"))))
    assert error["param"] == "prediction" and ("tolerance" in error["message"]) == ("tolerance" in stride)
