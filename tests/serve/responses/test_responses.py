"""/v1/responses: what is asked for is what the same chat would be, and the reply says the same in its own form."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import CHAT, NotedGrammars, chat, make_context, refusal, serving, submitted
from named_events import built_response, named_events
from stridelm.api import LanguageModel
from stridelm.serve.context import Context
from stridelm.serve.responses.request import Includable, ResponsesNeutral, ResponsesRequest, ResponsesUnread
from stridelm.serve.tools.forms import HERMES, Call
from tool_asking import CITY, CLOCK, WEATHER, scripted

PATH = "/v1/responses"
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in (WEATHER, CLOCK)]
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}


def body(given: Any = "hello", /, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": given, "max_output_tokens": 8, "seed": 3} | more


def answer(client: TestClient, given: Any = "hello", /, **more: Any) -> dict[str, Any]:
    """The reply, which a stream must build up, too."""
    reply = client.post(PATH, json=body(given, **more))
    assert reply.status_code == 200, reply.text
    whole = reply.json()
    streamed = built_response(named_events(client.post(PATH, json=body(given, **more, stream=True))))
    assert comparable(streamed) == comparable(whole)
    return whole


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """Without what is drawn or measured anew each time: ids, times and the cache, and how drafting went."""
    items = [item | {"id": "", "call_id": "", "content": _parts(item)} for item in response["output"]]
    named = ("status", "model", "error", "incomplete_details", "instructions", "text", "tool_choice", "tools")
    usage = {name: response["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")}
    stride = {name: response["stride"][name] for name in ("exact", "decoder", "seed", "ignored")}
    return {name: response[name] for name in named} | {"output": items, "usage": usage, "stride": stride}


def _parts(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Of log probabilities only the tokens: the last bits depend on what was beside a row."""
    return [part | {"logprobs": [each["token"] for each in part["logprobs"]]} for part in item.get("content", ())]


def said(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


# The same chat


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"input": "hello"}, [{"role": "user", "content": "hello"}]),
        (
            {"input": "hello", "instructions": "Be brief."},
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        ),
        (
            {
                "input": [
                    {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                    {"type": "message", "role": "user", "content": "hello", "id": "msg_1", "status": "completed"},
                    {"role": "assistant", "content": [{"type": "output_text", "text": "Yes?", "annotations": []}]},
                    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "id": "msg_2"},
                    {"role": "user", "content": "why"},
                ]
            },
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "Yes?"},
                {"role": "assistant", "content": "No."},
                {"role": "user", "content": "why"},
            ],
        ),
        (
            {"input": [{"role": "user", "content": "a"}, CALL, CALL | {"call_id": "c2"}, RESULT]},
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "tool_calls": [CALLED, CALLED | {"id": "c2"}]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
        ),
        (
            {
                "input": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "I look."},
                    CALL,
                    RESULT | {"output": [{"type": "input_text", "text": "rain"}]},
                ]
            },
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "I look.", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
        ),
    ],
)
def test_the_prompt_is_that_of_the_same_chat(
    client: TestClient, context: Context, fields: dict[str, Any], messages: list[Any]
) -> None:
    response = answer(client, **fields) if "input" not in fields else answer(client, fields.pop("input"), **fields)
    ours = submitted(context)[-1]
    same = client.post(CHAT, json=chat(messages=messages)).json()
    theirs = submitted(context)[-1]
    assert ours.tokens[: ours.prompt_length] == theirs.tokens[: theirs.prompt_length]
    assert said(response) == same["choices"][0]["message"]["content"]
    assert response["usage"]["output_tokens"] == same["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        *({"temperature": 0.0}, {"top_p": 0.4}, {"top_k": 2}, {"min_p": 0.3}, {"logit_bias": {"65": 50}}),
        *({"presence_penalty": 3}, {"frequency_penalty": 3}, {"repetition_penalty": 2.0}, {"seed": 4}),
        {"stride": {"decoder": "ngram", "k": 3}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_it_is_sampled_as_a_chat_is(client: TestClient, context: Context, fields: dict[str, Any]) -> None:
    response = answer(client, **fields)
    ours = submitted(context)[-1]
    same = client.post(CHAT, json=chat(**fields)).json()
    assert submitted(context)[-1].params == ours.params
    assert said(response) == same["choices"][0]["message"]["content"]
    assert response["stride"]["decoder"] == same["stride"]["decoder"]


def test_the_reply_s_form(client: TestClient) -> None:
    response = answer(client, instructions="Be brief.", metadata={"a": "b"})
    assert response["id"].startswith("resp_") and response["object"] == "response" and response["error"] is None
    (item,) = response["output"]
    assert item["id"].startswith("msg_") and item["role"] == "assistant" and item["type"] == "message"
    assert item["content"][0]["type"] == "output_text" and item["content"][0]["annotations"] == []
    assert response["status"] == item["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["instructions"] == "Be brief." and response["metadata"] == {"a": "b"} and not response["store"]
    assert response["usage"]["output_tokens"] == 8 and response["metrics"]["speculative_decoding"]
    assert response["created_at"] <= response["completed_at"]


def test_a_whole_answer_is_completed(language_model: LanguageModel) -> None:
    with scripted(language_model, "Yes.") as (client, _):
        response = answer(client)
    assert (response["status"], said(response)) == ("completed", "Yes.") and response["incomplete_details"] is None


def test_no_tokens(client: TestClient) -> None:
    response = answer(client, max_output_tokens=0)
    assert said(response) == "" and response["usage"]["output_tokens"] == 0 and response["status"] == "incomplete"


def test_a_trace_comes_with_the_last_event(client: TestClient) -> None:
    stride = answer(client, stride={"trace": True})["stride"]
    assert stride["exact"]
    *_, last = named_events(client.post(PATH, json=body(stream=True, stride={"trace": True})))
    assert len(last["response"]["stride"]["trace"]) == last["response"]["stride"]["forwards"]


def test_log_probabilities(client: TestClient) -> None:
    response = answer(client, include=["message.output_text.logprobs"], top_logprobs=2, temperature=0)
    logprobs = response["output"][0]["content"][0]["logprobs"]
    theirs = client.post(CHAT, json=chat(logprobs=True, top_logprobs=2, temperature=0)).json()["choices"][0]
    expected = theirs["logprobs"]["content"]
    assert [each["token"] for each in logprobs] == [each["token"] for each in expected] and len(logprobs) == 8
    for mine, other in zip(logprobs, expected, strict=True):
        assert math.isclose(mine["logprob"], other["logprob"], abs_tol=1e-4) and len(mine["top_logprobs"]) == 2
    assert refusal(client.post(PATH, json=body(top_logprobs=2)))["param"] == "top_logprobs"


# Calls


TALK = HERMES.write([Call("weather", {"city": "Zürich"})])


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_items(roomy_model: LanguageModel, size: int) -> None:
    """In the order in which they were written, however many characters a stride has."""
    talk = f"Let me see. {TALK} And {HERMES.write([Call('clock', {})])}"
    with scripted(roomy_model, talk, size=size) as (client, _):
        response = answer(client, tools=FUNCTIONS)
        first, weather, second, clock = response["output"]
        assert [each["content"][0]["text"].strip() for each in (first, second)] == ["Let me see.", "And"]
        assert (weather["name"], json.loads(weather["arguments"])) == ("weather", {"city": "Zürich"})
        assert (clock["name"], json.loads(clock["arguments"])) == ("clock", {})
        assert weather["call_id"] != clock["call_id"] and weather["id"] != weather["call_id"]
        assert response["status"] == "completed" and all(each["status"] == "completed" for each in response["output"])
        only = answer(client, tools=FUNCTIONS, parallel_tool_calls=False)
        assert [each["type"] for each in only["output"]] == ["message", "function_call"]


def test_a_call_that_is_cut_off_is_incomplete(roomy_model: LanguageModel) -> None:
    with scripted(roomy_model, TALK[:50], ending="length") as (client, _):
        response = answer(client, tools=FUNCTIONS)
    assert [each["status"] for each in response["output"]] == ["incomplete"] and response["status"] == "incomplete"


def test_log_probabilities_are_those_of_the_text(roomy_model: LanguageModel) -> None:
    with scripted(roomy_model, f"Let me see. {TALK}") as (client, _):
        response = answer(client, tools=FUNCTIONS, include=["message.output_text.logprobs"])
    message, call = response["output"]
    assert 0 < len(message["content"][0]["logprobs"]) < len(TALK) and "logprobs" not in call


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({"text": {"format": {"type": "json_object"}}}, {"type": "object"}),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": CITY, "strict": True}}}, CITY),
        ({"tools": FUNCTIONS, "tool_choice": "required"}, "weather"),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "function", "name": "clock"}}, "clock"),
        ({"tools": [FUNCTIONS[0] | {"strict": True}]}, "weather"),
    ],
    ids=["object", "schema", "required", "named", "strict"],
)
def test_what_restricts_an_answer_becomes_a_grammar(
    roomy_model: LanguageModel, fields: dict[str, Any], noted: Any
) -> None:
    grammars = NotedGrammars()
    with serving(make_context(roomy_model, grammars=grammars)) as client:
        error = refusal(client.post(PATH, json=body(**fields)))
    (asked,) = grammars.asked
    if isinstance(noted, str):
        assert f'"{noted}"' in asked.replace("\\", "") and error["param"] == "tools"
    else:
        assert asked == noted | ({"additionalProperties": False} if noted is CITY else {})
        assert error["param"] == "text.format"


def test_tool_choice_none_shows_no_tools(client: TestClient, context: Context) -> None:
    answer(client)
    plain = submitted(context)[-1].prompt_length
    answer(client, tools=FUNCTIONS[1:], tool_choice="none")
    assert submitted(context)[-1].prompt_length == plain


# Fields


IGNORED: dict[str, tuple[Any, str]] = {
    "user": ("someone", "user"),
    "metadata": ({"a": "b"}, "metadata"),
    "service_tier": ("auto", "service_tier"),
    "store": (True, "store"),
    "safety_identifier": ("x", "safety_identifier"),
    "prompt_cache_key": ("x", "prompt_cache_key"),
    "prompt_cache_retention": ("24h", "prompt_cache_retention"),
    "prompt_cache_options": ({"mode": "implicit"}, "prompt_cache_options"),
    "max_tool_calls": (3, "max_tool_calls"),
    "text": ({"verbosity": "low"}, "text.verbosity"),
    "reasoning": ({"summary": "auto"}, "reasoning.summary"),
    "include": (["reasoning.encrypted_content"], "include"),
    "stream_options": ({"include_obfuscation": False}, "stream_options"),
    "parallel_tool_calls": (True, "parallel_tool_calls"),
    "chat_template_kwargs": ({"never_heard_of": 1}, "chat_template_kwargs.never_heard_of"),
}
NEUTRAL: dict[str, tuple[Any, list[Any]]] = {
    "background": (False, [True]),
    "truncation": ("disabled", ["auto"]),
    "previous_response_id": (None, ["resp_1"]),
    "conversation": (None, ["conv_1", {"id": "conv_1"}]),
    "prompt": (None, [{"id": "p"}]),
    "context_management": (None, [[]]),
    "moderation": (None, [{}]),
}


def test_all_ignored_and_neutral_fields_are_tried_here() -> None:
    assert (
        IGNORED.keys() >= ResponsesUnread.model_fields.keys() and NEUTRAL.keys() == ResponsesNeutral.model_fields.keys()
    )


@pytest.mark.parametrize("name", IGNORED)
def test_what_cannot_change_the_text_is_named(client: TestClient, name: str) -> None:
    value, shown = IGNORED[name]
    response, plain = (client.post(PATH, json=body(**fields)).json() for fields in ({name: value}, {}))
    assert response["stride"]["ignored"] == [shown] and said(response) == said(plain)


def test_what_is_not_stored_is_as_was_asked(client: TestClient) -> None:
    assert answer(client, store=False)["stride"]["ignored"] == []


def test_effort_is_for_templates_that_read_it(client: TestClient) -> None:
    assert answer(client, reasoning={"effort": "low"})["stride"]["ignored"] == ["reasoning.effort"]


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_would_change_something_is_refused(client: TestClient, name: str) -> None:
    neutral, others = NEUTRAL[name]
    assert answer(client, **{name: neutral})["stride"]["ignored"] == []
    for other in others:
        assert str(refusal(client.post(PATH, json=body(**{name: other})))["param"]).startswith(name)


@pytest.mark.parametrize(
    "name", [name for name, field in ResponsesRequest.model_fields.items() if not field.is_required()]
)
def test_null_stands_for_a_field_that_is_left_out(client: TestClient, name: str) -> None:
    asked = body(max_output_tokens=4)
    asked.pop(name, None)
    reply = client.post(PATH, json=asked | {name: None, "max_output_tokens": 4})
    assert reply.status_code == 200 and reply.json()["stride"]["ignored"] == []


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": []}, "input", ""),
        ({"input": None}, "input", ""),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation as `input`"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0", "send the item itself"),
        ({"input": [{"type": "reasoning", "id": "x", "summary": []}]}, "input.0", "items are messages"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0", "input_text"),
        ({"input": [{"role": "ghost", "content": ""}]}, "input.0.role", "user"),
        ({"input": [RESULT]}, "input", "no call has the id c1"),
        ({"input": "x" * 5000}, "input", "the model takes"),
        ({"max_output_tokens": 10_000}, "max_output_tokens", "max_output_tokens is 10000"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice", ""),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "no tool x"),
        ({"text": {"format": {"type": "json_schema", "schema": {"a": "b" * 70_000}}}}, "text.format", "text.format: "),
        ({"include": ["everything"]}, "include.0", "reasoning.encrypted_content"),
        ({"reasoning": {"context": "auto"}}, "reasoning.context", "not known"),
        ({"n": 2}, "n", "not known"),
        ({"stop": "x"}, "stop", "not known"),
        ({"model": "gpt-7"}, "model", "there is no model"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_is_refused_is_named(client: TestClient, fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(client.post(PATH, json=body() | fields), 404 if param == "model" else 400)
    assert str(error["param"]).startswith(param) and words in error["message"]


def test_includables_are_one_list() -> None:
    assert len(Includable.__args__) == 8


@pytest.fixture
def crashing(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], TestClient]]:
    """A server whose engine fails after some steps."""
    with serving(make_context(language_model)) as client:

        def after(steps: int) -> TestClient:
            step, left = language_model.engine.step, iter(range(steps))

            def limited() -> Any:
                if next(left, None) is None:
                    raise RuntimeError("secret: /home/someone")
                return step()

            monkeypatch.setattr(language_model.engine, "step", limited)
            return client

        yield after


def test_a_crash_ends_a_stream_with_a_failed_response(crashing: Callable[[int], TestClient]) -> None:
    reply = crashing(4).post(PATH, json=body(stream=True, stride={"decoder": "autoregressive"}))
    events = named_events(reply)
    last = events[-1]
    assert last["type"] == "response.failed" and last["sequence_number"] == len(events) - 1 > 3
    assert last["response"]["status"] == "failed" and last["response"]["id"] == events[0]["response"]["id"]
    assert last["response"]["error"]["code"] == "server_error" and "secret" not in reply.text


def test_a_crash_before_the_first_token_has_a_status(crashing: Callable[[int], TestClient]) -> None:
    assert refusal(crashing(0).post(PATH, json=body(stream=True)), 503)["type"] == "server_error"


def test_there_are_no_embeddings(client: TestClient) -> None:
    assert "no embeddings" in refusal(client.post("/v1/embeddings", json={"input": "x"}), 404)["message"]
