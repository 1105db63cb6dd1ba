"""openai for Python. `make test` has more of it: here are loops of tools and the fields that users set."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStream

from forms import (
    ANSWERS,
    CALL_TOKENS,
    COPY_CALL,
    FINISHED,
    KEY,
    MODEL,
    SETTINGS,
    Weather,
    chat,
    check_call,
    named,
    tools,
)
from wire import PATIENCE, Wire


@pytest.fixture
def client(wire: Wire) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=wire.url, api_key=KEY, max_retries=0, timeout=PATIENCE) as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": chat()} | SETTINGS | fields)


def gather(client: openai.OpenAI, **fields: Any) -> Any:
    """The same by a stream that the client puts together."""
    asked: dict[str, Any] = {"model": MODEL, "messages": chat()} | SETTINGS | fields
    with client.chat.completions.stream(**asked) as stream:
        return finished(stream)


def finished(stream: ChatCompletionStream[Any]) -> Any:
    """A stream's answer; one that ended by its length is taken as it is."""
    try:
        return stream.get_final_completion()
    except openai.LengthFinishReasonError as cut:
        return cut.completion


def test_chats_and_streams(client: openai.OpenAI) -> None:
    (choice,) = ask(client).choices
    assert choice.message.content and choice.finish_reason in FINISHED
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == choice.message.content
    assert chunks[-1].choices == [] and 1 <= chunks[-1].usage.completion_tokens <= 16
    assert all(len(chunk.choices) == 1 for chunk in chunks[:-1])
    assert [chunk.choices[0].delta.role for chunk in chunks[:-1] if chunk.choices[0].delta.role] == ["assistant"]


def test_finds_the_model(client: openai.OpenAI) -> None:
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-7")


@pytest.mark.parametrize("get", [ask, gather])
def test_a_loop_of_tools(client: openai.OpenAI, wire: Wire, get: Any) -> None:
    """Three turns; the assistant's messages go back as the objects that came."""
    messages = chat()
    fields: dict[str, Any] = {"tools": tools(), "messages": messages, "max_tokens": CALL_TOKENS}
    for choice in (named("weather"), named("clock")):
        answer = get(client, **fields, tool_choice=choice).choices[0]
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.message.tool_calls
        assert call.function.name == choice["function"]["name"]
        check_call(call.function.name, call.function.arguments)
        messages += [
            answer.message,
            {"role": "tool", "tool_call_id": call.id, "content": ANSWERS[call.function.name]},
        ]
    last = get(client, **fields | {"max_tokens": 12}, tool_choice="none").choices[0]
    assert last.message.content and last.finish_reason in FINISHED and not last.message.tool_calls
    assert wire.chats[-1].roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_required_calls_and_what_a_stream_of_them_looks_like(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"tools": tools(), "tool_choice": "required", "max_tokens": 200}
    whole = ask(client, **fields, parallel_tool_calls=False).choices[0]
    assert whole.finish_reason == "tool_calls" and len(whole.message.tool_calls) == 1
    pieces: dict[int, dict[str, str]] = {}
    ends = set[str]()
    for chunk in ask(client, **fields, parallel_tool_calls=False, stream=True):
        ends |= {choice.finish_reason for choice in chunk.choices if choice.finish_reason}
        for call in chunk.choices[0].delta.tool_calls or ():
            if call.index not in pieces:  # the first piece has the name and the id, the others have not
                assert call.id and call.type == "function" and call.function.name
                pieces[call.index] = {"name": call.function.name, "arguments": ""}
            else:
                assert not call.id and not call.function.name
            pieces[call.index]["arguments"] += call.function.arguments or ""
    expected = [call.function for call in whole.message.tool_calls]
    assert [(piece["name"], json.loads(piece["arguments"])) for _, piece in sorted(pieces.items())] == [
        (function.name, json.loads(function.arguments)) for function in expected
    ]
    assert ends == {"tool_calls"}


def test_calls_by_its_own_choice(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": COPY_CALL}]
    for get in (ask, gather):
        for choice in ("auto", openai.omit):
            answer = get(client, messages=messages, tools=tools(), tool_choice=choice, max_tokens=CALL_TOKENS).choices[
                0
            ]
            (call,) = answer.message.tool_calls
            assert answer.finish_reason == "tool_calls" and call.function.name == "weather"
            check_call("weather", call.function.arguments)


def test_parses_tools_and_objects(client: openai.OpenAI, wire: Wire) -> None:
    """Of pydantic's models the client makes strict schemas."""
    strict: list[Any] = [openai.pydantic_function_tool(Weather, name="weather")]
    fields: Any = {"model": MODEL, "messages": chat(), "max_tokens": CALL_TOKENS, "seed": 3}
    parsed = client.chat.completions.parse(**fields, tools=strict, tool_choice="required", parallel_tool_calls=False)
    (call,) = parsed.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    messages = [
        *fields["messages"],
        parsed.choices[0].message,  # with `parsed` and `parsed_arguments`
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    final = client.chat.completions.parse(
        **fields | {"messages": messages}, tools=strict, tool_choice="none", response_format=Weather
    )
    assert isinstance(final.choices[0].message.parsed, Weather)
    assert wire.chats[-1].sent["tools"][0]["function"]["strict"] is True


def test_an_object_where_tools_could_be_called(client: openai.OpenAI) -> None:
    """With a form and tools that it may call, the answer is either."""
    fields: Any = {"model": MODEL, "messages": chat(), "max_tokens": 200, "seed": 3, "temperature": 0}
    strict: list[Any] = [openai.pydantic_function_tool(Weather, name="weather")]
    (choice,) = client.chat.completions.parse(
        **fields, tools=strict, response_format=Weather, parallel_tool_calls=False
    ).choices
    assert choice.message.tool_calls or isinstance(choice.message.parsed, Weather)


FIELDS: list[dict[str, Any]] = [
    {"user": "anna", "safety_identifier": "a1", "prompt_cache_key": "k"},
    {"metadata": {"run": "7"}, "store": False},
    {"service_tier": "auto"},
    {"reasoning_effort": "low"},
    {"modalities": ["text"]},
    {"max_tokens": openai.omit, "max_completion_tokens": 16},
    {"prediction": {"type": "content", "content": "Oslo has rain."}},
    {"tools": [], "tool_choice": "auto"},
    {"tool_choice": "auto"},
    {"stream_options": None, "stop": None, "n": None, "logprobs": None, "tools": None, "response_format": None},
    {"logprobs": False, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "top_p": 1},
    {"response_format": {"type": "text"}},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "-".join(fields))
def test_fields_that_do_not_change_the_text(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    assert ask(client, **fields).choices[0].message.content == ask(client).choices[0].message.content


def test_messages_that_people_send(client: openai.OpenAI) -> None:
    """Names, developers, parts, and an assistant's message with everything that a reply of OpenAI's has."""
    told: dict[str, Any] = {"role": "assistant", "content": "Which one?", "refusal": None, "annotations": []}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "anna", "content": [{"type": "text", "text": "hello"}]},
        told | {"audio": None, "function_call": None, "tool_calls": None},
        {"role": "user", "content": "Oslo"},
    ]
    assert ask(client, messages=messages).choices[0].message.content
    as_system = [{"role": "system", "content": "Be brief."}, *messages[1:]]
    assert ask(client, messages=messages).choices[0].message.content == (
        ask(client, messages=as_system).choices[0].message.content
    )


def test_empty_arguments_go_back(client: openai.OpenAI) -> None:
    """Some clients keep "" for a call without arguments."""
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": ""}}
    messages = [
        *chat(),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "12:30"}]},
    ]
    assert ask(client, messages=messages, tools=tools()).choices[0].finish_reason in (*FINISHED, "tool_calls")


def test_usage_tells_what_was_cached(client: openai.OpenAI) -> None:
    """A long prompt that comes twice is read once; details are where OpenAI has them."""
    messages = [{"role": "user", "content": "One two three four five. " * 40}]
    ask(client, messages=messages)
    usage = ask(client, messages=messages).usage
    assert usage.prompt_tokens_details is not None
    assert 0 < usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
