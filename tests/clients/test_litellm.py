"""litellm: its two providers for servers like this one, and its messages given back as the objects that they are."""

import asyncio
from typing import Any

import litellm
import pytest

from forms import (
    ANSWERS,
    CALL_TOKENS,
    FINISHED,
    KEY,
    MODEL,
    QUESTION,
    SETTINGS,
    SYSTEM,
    Weather,
    chat,
    check_call,
    named,
    tools,
)
from wire import PATIENCE, Wire

pytestmark = pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])


def settings(wire: Wire, provider: str, **fields: Any) -> dict[str, Any]:
    asked = {"model": f"{provider}/{MODEL}", "api_base": wire.url, "api_key": KEY, "messages": chat()}
    return asked | SETTINGS | {"num_retries": 0, "timeout": PATIENCE} | fields


def ask(wire: Wire, provider: str, **fields: Any) -> Any:
    return litellm.completion(**settings(wire, provider, **fields))


def gather(wire: Wire, provider: str, **fields: Any) -> Any:
    """The same by a stream that the client puts together."""
    asked = settings(wire, provider, **fields)
    chunks: list[Any] = list(ask(wire, provider, **fields, stream=True))
    return litellm.stream_chunk_builder(chunks, messages=asked["messages"])


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_chats_and_streams(wire: Wire, provider: str) -> None:
    reply = ask(wire, provider)
    said = reply.choices[0].message.content
    assert said and reply.choices[0].finish_reason in FINISHED and 1 <= reply.usage.completion_tokens <= 16
    assert text_of(list(ask(wire, provider, stream=True))) == said
    counted = list(ask(wire, provider, stream=True, stream_options={"include_usage": True}))
    assert text_of(counted) == said and counted[-1].usage.completion_tokens == reply.usage.completion_tokens
    assert gather(wire, provider).choices[0].message.content == said
    later: Any = asyncio.run(litellm.acompletion(**settings(wire, provider)))
    assert later.choices[0].message.content == said


def test_our_own_settings_and_errors(wire: Wire, provider: str) -> None:
    own = ask(wire, provider, extra_body={"stride": {"decoder": "self"}})
    assert own.stride["decoder"] == "self"
    with pytest.raises(litellm.exceptions.BadRequestError):
        ask(wire, provider, temperature=-1)
    with pytest.raises(litellm.exceptions.NotFoundError):
        ask(wire, provider, model=f"{provider}/gpt-7")
    with pytest.raises(litellm.exceptions.AuthenticationError):
        ask(wire, provider, api_key="a wrong one")


def test_fields_that_users_set(wire: Wire, provider: str) -> None:
    said = ask(wire, provider).choices[0].message.content
    for fields in (
        {"user": "anna", "metadata": {"run": "7"}},
        {"max_tokens": None, "max_completion_tokens": 16},
        {"reasoning_effort": "low", "allowed_openai_params": ["reasoning_effort"]},
        {"n": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0},
    ):
        assert ask(wire, provider, **fields).choices[0].message.content == said


@pytest.mark.parametrize("get", [ask, gather])
@pytest.mark.parametrize("as_objects", [True, False], ids=["objects", "dumped"])
def test_a_loop_of_tools(wire: Wire, provider: str, get: Any, as_objects: bool) -> None:
    """Three turns; people give back the message itself, or what it dumps."""
    messages = chat()
    fields: dict[str, Any] = {"tools": tools(), "messages": messages, "max_tokens": CALL_TOKENS}
    for choice in (named("weather"), named("clock")):
        answer = get(wire, provider, **fields, tool_choice=choice).choices[0]
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.message.tool_calls
        assert call.function.name == choice["function"]["name"]
        check_call(call.function.name, call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "name": call.function.name}
        messages += [
            answer.message if as_objects else answer.message.model_dump(),
            result | {"content": ANSWERS[call.function.name]},
        ]
    last = get(wire, provider, **fields | {"max_tokens": 12}, tool_choice="none").choices[0]
    assert last.message.content and last.finish_reason in FINISHED and not last.message.tool_calls
    assert wire.chats[-1].roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_an_answer_goes_back(wire: Wire, provider: str) -> None:
    """Text, then a question about it: with everything that the message object holds."""
    told = ask(wire, provider).choices[0].message
    messages = [*chat(), told, {"role": "user", "content": "And in Rome?"}]
    for get in (ask, gather):
        assert get(wire, provider, messages=messages).choices[0].message.content


def test_marks_of_other_makers_caches(wire: Wire, provider: str) -> None:
    """`cache_control` is Anthropic's; programs that speak with many makers send it to all."""
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": SYSTEM} | mark]},
        {"role": "user", "content": QUESTION} | mark,
    ]
    assert ask(wire, provider, messages=messages).choices[0].message.content


def test_structured_output(wire: Wire, provider: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "weather", "schema": Weather.model_json_schema()}}
    for get in (ask, gather):
        for form in (Weather, schema):
            answer = get(wire, provider, response_format=form, max_tokens=CALL_TOKENS).choices[0]
            assert answer.finish_reason == "stop" and Weather.model_validate_json(answer.message.content)
