"""openai for Python with the Responses API: text, streams, objects, loops of tools."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from forms import (
    ANSWERS,
    CALL_TOKENS,
    COPY_CALL,
    COPY_OBJECT,
    KEY,
    MODEL,
    QUESTION,
    SYSTEM,
    Weather,
    check_call,
    tools,
)
from wire import PATIENCE, Wire

SETTINGS: dict[str, Any] = {"model": MODEL, "max_output_tokens": 16, "temperature": 0.0, "extra_body": {"seed": 3}}
"""Greedy, so that a stream can be compared with the whole answer."""
WHY = {"completed": None, "incomplete": "max_output_tokens"}
"""How an answer that fails not may end, and why it is incomplete."""


@pytest.fixture
def client(wire: Wire) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=wire.url, api_key=KEY, max_retries=0, timeout=PATIENCE) as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Response:
    asked: Any = SETTINGS | {"instructions": SYSTEM, "input": QUESTION} | fields
    return client.responses.create(**asked)


def gather(client: openai.OpenAI, **fields: Any) -> Response:
    """The same by a stream, whose events must build up what its last one says."""
    asked: Any = SETTINGS | {"instructions": SYSTEM, "input": QUESTION} | fields
    texts: dict[int, str] = {}
    arguments: dict[int, str] = {}
    events: Any = list(client.responses.create(**asked, stream=True))  # their types are not told apart by `type`
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    for event in events:
        if event.type == "response.output_text.delta":
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
        elif event.type == "response.function_call_arguments.delta":
            arguments[event.output_index] = arguments.get(event.output_index, "") + event.delta
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == last.response.output
    for index, item in enumerate(last.response.output):
        if item.type == "message":
            assert item.content[0].type == "output_text" and item.content[0].text == texts.get(index, "")
        else:
            assert item.type == "function_call" and item.arguments == arguments[index]
    return last.response


def named(name: str) -> Any:
    return {"type": "function", "name": name}


def functions() -> list[Any]:
    return [{"type": "function", **tool["function"]} for tool in tools()]


def called(response: Response) -> Any:
    """The only call."""
    (call,) = [item for item in response.output if item.type == "function_call"]
    check_call(call.name, call.arguments)
    return call


def test_answers_and_streams_alike(client: openai.OpenAI) -> None:
    whole, streamed = ask(client), gather(client)
    assert whole.output_text and whole.output_text == streamed.output_text
    for response in (whole, streamed):
        reason = response.incomplete_details and response.incomplete_details.reason
        assert response.status in WHY and reason == WHY[response.status]
        assert response.usage is not None and 1 <= response.usage.output_tokens <= 16
        assert response.model == MODEL and response.instructions == SYSTEM and response.error is None


def test_the_client_s_own_stream(client: openai.OpenAI) -> None:
    fields: Any = SETTINGS | {"input": COPY_OBJECT, "max_output_tokens": CALL_TOKENS}
    with client.responses.stream(**fields, text_format=Weather) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output_text
    assert isinstance(final.output_parsed, Weather)


@pytest.mark.parametrize("get", [ask, gather])
def test_a_loop_of_tools(client: openai.OpenAI, wire: Wire, get: Any) -> None:
    """Three turns; the items go back as the objects that came."""
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    fields: dict[str, Any] = {"tools": functions(), "input": items, "max_output_tokens": CALL_TOKENS}
    for choice in (named("weather"), named("clock")):
        response = get(client, **fields, tool_choice=choice)
        call = called(response)
        assert response.status == "completed" and call.name == choice["name"]
        items += response.output
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": ANSWERS[call.name]})
    last = get(client, **fields | {"max_output_tokens": 12}, tool_choice="none")
    assert last.output_text and [item.type for item in last.output] == ["message"]
    assert wire.chats[-1].roles == ["user", *["function_call", "function_call_output"] * 2]


@pytest.mark.parametrize("get", [ask, gather])
def test_required_calls_and_calls_by_its_own_choice(client: openai.OpenAI, get: Any) -> None:
    fields: dict[str, Any] = {"tools": functions(), "max_output_tokens": 200}
    called(get(client, **fields, tool_choice="required", parallel_tool_calls=False))
    assert called(get(client, **fields, input=COPY_CALL, instructions=None)).name == "weather"


def test_goes_on_with_what_it_said(client: openai.OpenAI, wire: Wire) -> None:
    """The whole conversation is sent: nothing is stored."""
    first = ask(client)
    items = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "And in Rome?"}]
    assert ask(client, input=items).output_text
    assert wire.chats[-1].roles == ["user", "assistant", "user"]
    with pytest.raises(openai.BadRequestError, match="nothing is stored here: send the whole conversation"):
        ask(client, previous_response_id=first.id)


def test_parses_objects_and_tools(client: openai.OpenAI) -> None:
    fields: Any = SETTINGS | {"input": QUESTION, "max_output_tokens": CALL_TOKENS}
    parsed = client.responses.parse(**fields, text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)
    tool: Any = openai.pydantic_function_tool(Weather, name="weather")
    answer = client.responses.parse(**fields, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert isinstance(called(answer).parsed_arguments, Weather)
    # Both go back, with what the client has parsed.
    for response in (parsed, answer):
        items = [item.model_dump(exclude_none=True) for item in response.output]
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
            for item in items
            if item["type"] == "function_call"
        ]
        assert ask(client, input=[{"role": "user", "content": QUESTION}, *items, *results]).output_text


def test_log_probabilities(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    for response in (ask(client, **fields), gather(client, **fields)):
        (item,) = response.output
        assert item.type == "message" and item.content[0].type == "output_text"
        logprobs = item.content[0].logprobs
        assert logprobs and response.usage and len(logprobs) == response.usage.output_tokens
        assert all(len(each.top_logprobs) == 2 for each in logprobs)


FIELDS: list[dict[str, Any]] = [
    {"user": "anna", "safety_identifier": "a1", "prompt_cache_key": "k"},
    {"metadata": {"run": "7"}, "store": False, "truncation": "disabled", "background": False},
    {"service_tier": "auto", "reasoning": {"effort": "low", "summary": "auto"}, "max_tool_calls": 3},
    {"include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}, "verbosity": "low"}},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "top_p": 1},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]},
    {"instructions": None, "input": [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": QUESTION}]},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "-".join(fields))
def test_fields_that_do_not_change_the_text(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    assert ask(client, **fields).output_text == ask(client).output_text


def test_a_wrong_key_and_a_wrong_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        ask(client, model="gpt-7")
    with pytest.raises(openai.AuthenticationError):
        ask(client.with_options(api_key="wrong"))
    with pytest.raises(openai.NotFoundError, match="no embeddings"):
        client.embeddings.create(model=MODEL, input="hello")


def test_usage_tells_what_was_cached(client: openai.OpenAI) -> None:
    words = "Six seven eight nine ten. " * 40
    ask(client, input=words)
    usage = ask(client, input=words).usage
    assert usage is not None and 0 < usage.input_tokens_details.cached_tokens <= usage.input_tokens


def test_stride_goes_both_ways(client: openai.OpenAI) -> None:
    response = ask(client, extra_body={"seed": 3, "stride": {"decoder": "ngram", "trace": True}})
    stride = json.loads(response.model_dump_json())["stride"]
    assert stride["decoder"] == "ngram" and len(stride["trace"]) == stride["forwards"]
    assert response.output_text == ask(client).output_text
