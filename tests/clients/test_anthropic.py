"""anthropic for Python, whose API is /v1/messages: text, streams, objects, loops of tools, counted tokens."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from forms import ANSWERS, CALL_TOKENS, COPY_CALL, KEY, MODEL, QUESTION, SYSTEM, Weather, check_call, tools
from wire import PATIENCE, Wire

SETTINGS: dict[str, Any] = {"model": MODEL, "max_tokens": 16, "extra_body": {"temperature": 0.0, "seed": 3}}
"""Greedy, so that a stream can be compared with the whole answer."""
FINISHED = ("end_turn", "max_tokens")


@pytest.fixture
def client(wire: Wire) -> Iterator[anthropic.Anthropic]:
    base = wire.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0, timeout=PATIENCE) as made:
        yield made


def asked(fields: dict[str, Any]) -> dict[str, Any]:
    return SETTINGS | {"system": SYSTEM, "messages": [{"role": "user", "content": QUESTION}]} | fields


def ask(client: anthropic.Anthropic, **fields: Any) -> Message:
    return client.messages.create(**asked(fields))


def gather(client: anthropic.Anthropic, **fields: Any) -> Message:
    """The same by a stream that the client puts together."""
    with client.messages.stream(**asked(fields)) as stream:
        return stream.get_final_message()


def text(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def functions() -> list[Any]:
    """Forms as Anthropic has them."""
    made = (tool["function"] for tool in tools())
    return [
        {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]} for each in made
    ]


def called(message: Message) -> Any:
    """The only call."""
    (call,) = [block for block in message.content if block.type == "tool_use"]
    check_call(call.name, call.input)
    return call


def test_answers_and_streams_alike(client: anthropic.Anthropic) -> None:
    whole, streamed = ask(client), gather(client)
    assert text(whole) and text(whole) == text(streamed)
    for message in (whole, streamed):
        assert message.stop_reason in FINISHED and message.stop_sequence is None
        assert message.model == MODEL and message.role == "assistant" and 1 <= message.usage.output_tokens <= 16
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def test_the_events_of_a_stream(client: anthropic.Anthropic) -> None:
    events = list(client.messages.create(**asked({}), stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[2:-3] == ["content_block_delta"] * (
        len(kinds) - 5
    )
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("get", [ask, gather])
def test_a_loop_of_tools(client: anthropic.Anthropic, wire: Wire, get: Any) -> None:
    """Three turns; the assistant's content goes back as the objects that came."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    fields: dict[str, Any] = {"tools": functions(), "messages": messages, "max_tokens": CALL_TOKENS}
    for name in ("weather", "clock"):
        message = get(client, **fields, tool_choice={"type": "tool", "name": name})
        call = called(message)
        assert message.stop_reason == "tool_use" and call.name == name
        result = {"type": "tool_result", "tool_use_id": call.id, "content": ANSWERS[name]}
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    last = get(client, **fields | {"max_tokens": 12}, tool_choice={"type": "none"})
    assert text(last) and last.stop_reason in FINISHED and [block.type for block in last.content] == ["text"]
    assert wire.chats[-1].roles == ["user", *["assistant", "user"] * 2]


@pytest.mark.parametrize("get", [ask, gather])
def test_required_calls_and_calls_by_its_own_choice(client: anthropic.Anthropic, get: Any) -> None:
    fields: dict[str, Any] = {"tools": functions(), "max_tokens": 200}
    called(get(client, **fields, tool_choice={"type": "any", "disable_parallel_tool_use": True}))
    free = get(client, **fields, messages=[{"role": "user", "content": COPY_CALL}], system=[])
    assert called(free).name == "weather" and free.stop_reason == "tool_use"


def test_parses_objects(client: anthropic.Anthropic, wire: Wire) -> None:
    fields: Any = asked({"max_tokens": CALL_TOKENS})
    assert isinstance(client.messages.parse(**fields, output_format=Weather).parsed_output, Weather)
    assert wire.chats[-1].sent["output_config"]["format"]["type"] == "json_schema"


def test_ends_at_stop_sequences(client: anthropic.Anthropic) -> None:
    whole = text(ask(client))
    stop = whole[5:9]
    for get in (ask, gather):
        message = get(client, stop_sequences=["never said", stop])
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
        assert text(message) == whole[: whole.index(stop)]


def test_goes_on_with_the_assistant_s_words(client: anthropic.Anthropic) -> None:
    """A last message of the assistant's is what the answer begins with."""
    begun = [{"role": "user", "content": "Count: one, two, three."}, {"role": "assistant", "content": "One, two,"}]
    assert text(ask(client, messages=begun)) == text(gather(client, messages=begun)) != text(ask(client))


def test_counts_tokens(client: anthropic.Anthropic) -> None:
    prompt: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "system": SYSTEM}
    counted = client.messages.count_tokens(**prompt).input_tokens
    usage = ask(client).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert client.messages.count_tokens(**prompt, tools=functions()).input_tokens > counted


def test_usage_tells_what_was_cached(client: anthropic.Anthropic) -> None:
    messages = [{"role": "user", "content": "Ten nine eight seven six. " * 40}]
    first, again = ask(client, messages=messages).usage, ask(client, messages=messages).usage
    assert again.cache_read_input_tokens and again.cache_read_input_tokens > 0
    assert again.input_tokens + again.cache_read_input_tokens == first.input_tokens + (
        first.cache_read_input_tokens or 0
    )


CACHED: Any = {"cache_control": {"type": "ephemeral"}}
FIELDS: list[dict[str, Any]] = [
    {"metadata": {"user_id": "anna"}, "service_tier": "auto", "speed": "standard"},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
    {"system": [{"type": "text", "text": SYSTEM} | CACHED]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION} | CACHED]}]},
    {"tools": [], "stop_sequences": []},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "-".join(fields))
def test_fields_that_do_not_change_the_text(client: anthropic.Anthropic, fields: dict[str, Any]) -> None:
    assert text(ask(client, **fields)) == text(ask(client))


def test_errors_are_the_client_s_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="there is no model"):
        ask(client, model="claude-7")
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0"):
        ask(client, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    with pytest.raises(anthropic.AuthenticationError, match="Incorrect API key"):
        ask(client.with_options(api_key="wrong"))
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        ask(client, stop_sequences=["x"] * 100)


def test_keys_also_come_as_bearer_tokens(wire: Wire) -> None:
    base = wire.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base, auth_token=KEY, max_retries=0, timeout=PATIENCE) as client:
        assert text(ask(client))


def test_more_tokens_than_there_is_room_for(client: anthropic.Anthropic) -> None:
    """Agents ask for more than a small context has: that is a maximum."""
    assert ask(client, max_tokens=20_000, stop_sequences=["e"]).stop_reason == "stop_sequence"


def test_stride_goes_both_ways(client: anthropic.Anthropic) -> None:
    extra = SETTINGS["extra_body"] | {"stride": {"decoder": "ngram", "trace": True}}
    message = ask(client, extra_body=extra)
    stride = message.model_dump()["stride"]
    assert stride["decoder"] == "ngram" and len(stride["trace"]) == stride["forwards"]
    assert text(message) == text(ask(client))
