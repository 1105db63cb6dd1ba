"""/v1/messages: what is asked for is what the same chat would be, and the reply says the same in its own form."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import CHAT, NotedGrammars, chat, make_context, serving, submitted
from assembly import assembled
from named_events import built_message, named_events
from stridelm.api import LanguageModel
from stridelm.serve.context import Context
from stridelm.serve.messages.request import CountRequest, MessagesNeutral, MessagesRequest, MessagesUnread
from stridelm.serve.tools.forms import HERMES, Call
from stridelm.settings import LoadSettings
from tool_asking import CITY, CLOCK, WEATHER, prompt_of, scripted

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
TOOLS = [
    {"name": "weather", "description": "Tells it.", "input_schema": CITY},
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]
CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
TALK = HERMES.write([Call("weather", {"city": "Zürich"})])


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def body(content: Any = "hello", /, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [user(content)], "max_tokens": 8, "seed": 3} | more


def answer(client: TestClient, content: Any = "hello", /, **more: Any) -> dict[str, Any]:
    """The reply, which a stream must build up, too."""
    reply = client.post(PATH, json=body(content, **more))
    assert reply.status_code == 200, reply.text
    whole = reply.json()
    streamed = built_message(named_events(client.post(PATH, json=body(content, **more, stream=True))))
    assert comparable(streamed) == comparable(whole)
    return whole


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Without what is drawn or measured anew each time: ids and the cache, and how drafting went."""
    content = [block | {"id": ""} for block in message["content"]]
    named = {name: message[name] for name in ("type", "role", "model", "stop_reason", "stop_sequence")}
    stride = {name: message["stride"][name] for name in ("exact", "decoder", "seed", "ignored")}
    usage = message["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return named | {"content": content, "stride": stride, "usage": (read, usage["output_tokens"])}


def said(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def refusal(reply: Any, status: int = 400, kind: str = "invalid_request_error") -> str:
    """What a refused request was told, in this API's form."""
    assert reply.status_code == status, reply.text
    told = reply.json()
    assert set(told) == {"type", "error"} and told["type"] == "error" and told["error"]["type"] == kind
    return told["error"]["message"]


def make_model(tiny: Callable[..., Any], template: str) -> LanguageModel:
    target = tiny("llama")
    tokenizer = copy.deepcopy(target.tokenizer)
    tokenizer.chat_template = template
    return assembled(replace(target, tokenizer=tokenizer), None, LoadSettings(cache_tokens=4096))


# The same chat


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"messages": [user("hello")]}, [user("hello")]),
        (
            {"messages": [user("hello")], "system": "Be brief."},
            [{"role": "system", "content": "Be brief."}, user("hello")],
        ),
        (
            {
                "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                "messages": [
                    user([{"type": "text", "text": "a", "citations": None}, {"type": "text", "text": "b"}]),
                    {"role": "assistant", "content": [{"type": "text", "text": "Yes?", "citations": []}]},
                    user("why"),
                    {"role": "system", "content": "Be kind."},
                ],
            },
            [
                {"role": "system", "content": "Be brief."},
                user("a\nb"),
                {"role": "assistant", "content": "Yes?"},
                user("why"),
                {"role": "system", "content": "Be kind."},
            ],
        ),
        (
            {
                "messages": [
                    user("a"),
                    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, CALL]},
                    user([RESULT | {"cache_control": None}, {"type": "text", "text": "And?"}]),
                ]
            },
            [
                user("a"),
                {"role": "assistant", "content": "I look.", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
                user("And?"),
            ],
        ),
        (
            {
                "messages": [
                    user("a"),
                    {"role": "assistant", "content": [CALL, CALL | {"id": "c2", "input": {}}]},
                    user([RESULT | {"content": [{"type": "text", "text": "rain"}]}]),
                    user([{"type": "tool_result", "tool_use_id": "c2"}]),
                ]
            },
            [
                user("a"),
                {
                    "role": "assistant",
                    "tool_calls": [CALLED, {"id": "c2", "function": {"name": "weather", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
                {"role": "tool", "tool_call_id": "c2", "content": ""},
            ],
        ),
        (
            {
                "messages": [
                    user("a"),
                    {"role": "assistant", "content": [CALL]},
                    user([RESULT | {"is_error": True, "content": "no such city"}]),
                ]
            },
            [
                user("a"),
                {"role": "assistant", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": "Error: no such city"},
            ],
        ),
    ],
)
def test_the_prompt_is_that_of_the_same_chat(
    client: TestClient, context: Context, fields: dict[str, Any], messages: list[Any]
) -> None:
    message = answer(client, **fields)
    ours = submitted(context)[-1]
    same = client.post(CHAT, json=chat(messages=messages)).json()
    theirs = submitted(context)[-1]
    assert ours.tokens[: ours.prompt_length] == theirs.tokens[: theirs.prompt_length]
    assert said(message) == same["choices"][0]["message"]["content"]
    counted = client.post(COUNT, json={name: fields[name] for name in fields if name in CountRequest.model_fields})
    assert counted.json() == {"input_tokens": ours.prompt_length}


def test_a_last_message_of_the_assistant_s_is_continued(client: TestClient, context: Context) -> None:
    for content in ("The sky", [{"type": "text", "text": "The sky"}]):
        begun = [user("why"), {"role": "assistant", "content": content}]
        message = answer(client, messages=begun)
        ours = submitted(context)[-1]
        more = {"continue_final_message": True, "messages": [user("why"), {"role": "assistant", "content": "The sky"}]}
        same = client.post(CHAT, json=chat(**more)).json()
        theirs = submitted(context)[-1]
        assert ours.tokens[: ours.prompt_length] == theirs.tokens[: theirs.prompt_length]
        assert said(message) == same["choices"][0]["message"]["content"]
        assert client.post(COUNT, json={"messages": begun}).json() == {"input_tokens": ours.prompt_length}
    told = refusal(client.post(PATH, json=body(messages=[user("a"), {"role": "assistant", "content": [CALL]}])))
    assert told.startswith("messages: the last message must be text")


@pytest.mark.parametrize(
    "fields",
    [
        *({"temperature": 0.0}, {"top_p": 0.4}, {"top_k": 2}, {"min_p": 0.3}, {"logit_bias": {"65": 50}}),
        {"stride": {"decoder": "ngram", "k": 3}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_it_is_sampled_as_a_chat_is(client: TestClient, context: Context, fields: dict[str, Any]) -> None:
    message = answer(client, **fields)
    ours = submitted(context)[-1]
    same = client.post(CHAT, json=chat(**fields)).json()
    assert submitted(context)[-1].params == ours.params
    assert said(message) == same["choices"][0]["message"]["content"]
    assert message["stride"]["decoder"] == same["stride"]["decoder"]


def test_the_reply_s_form(client: TestClient) -> None:
    message = answer(client)
    assert message["id"].startswith("msg_") and message["type"] == "message" and message["role"] == "assistant"
    assert [block["type"] for block in message["content"]] == ["text"] and message["model"] == "tiny"
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    assert message["usage"]["output_tokens"] == 8 and message["metrics"]["speculative_decoding"]
    cached = answer(client, "one two three four five six seven eight nine ten " * 3, max_tokens=1)["usage"]
    again = answer(client, "one two three four five six seven eight nine ten " * 3, max_tokens=1)["usage"]
    assert again["cache_read_input_tokens"] > 0
    assert sum(again[name] - cached[name] for name in ("cache_read_input_tokens", "input_tokens")) == 0


# How answers end


def test_the_end_of_a_turn(language_model: LanguageModel) -> None:
    with scripted(language_model, "Yes.") as (client, _):
        message = answer(client)
    assert (said(message), message["stop_reason"], message["stop_sequence"]) == ("Yes.", "end_turn", None)


def test_the_stop_sequence_that_ended_an_answer(client: TestClient) -> None:
    whole = said(answer(client, max_tokens=40, temperature=0))
    stop = whole[6:8]
    message = answer(client, max_tokens=40, temperature=0, stop_sequences=["never", stop, whole[7:12]])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    assert said(message) == whole[: whole.index(stop)]


def test_the_end_of_the_context(client: TestClient) -> None:
    """`max_tokens` is a maximum: agents ask for more than a small context has."""
    no_end = {"logit_bias": {"256": -100}}
    message = answer(client, "x" * 440, max_tokens=100_000, **no_end)
    assert message["stop_reason"] == "model_context_window_exceeded"
    count = client.post(COUNT, json={"messages": [user("x" * 440)]}).json()["input_tokens"]
    assert message["usage"]["output_tokens"] == 512 - count
    exact = answer(client, "x" * 440, max_tokens=512 - count, **no_end)
    assert exact["stop_reason"] == "max_tokens" and said(exact) == said(message)


def test_no_tokens(client: TestClient) -> None:
    message = answer(client, max_tokens=0)
    assert said(message) == "" and message["usage"]["output_tokens"] == 0 and message["stop_reason"] == "max_tokens"


# Calls


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_blocks(roomy_model: LanguageModel, size: int) -> None:
    """In the order in which they were written, however many characters a stride has."""
    talk = f"Let me see. {TALK} And {HERMES.write([Call('clock', {})])}"
    with scripted(roomy_model, talk, size=size) as (client, _):
        message = answer(client, tools=TOOLS)
        first, weather, second, clock = message["content"]
        assert [each["text"].strip() for each in (first, second)] == ["Let me see.", "And"]
        assert (weather["name"], weather["input"]) == ("weather", {"city": "Zürich"})
        assert (clock["name"], clock["input"]) == ("clock", {}) and weather["id"] != clock["id"]
        assert message["stop_reason"] == "tool_use"
        only = answer(client, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        assert [each["type"] for each in only["content"]] == ["text", "tool_use"]
        assert only["stop_reason"] == "tool_use"


@pytest.mark.parametrize("arguments", ['{"city": "Zü', '{"city": Z}', '{"a": ' * 70 + "1" + "}" * 70])
def test_arguments_that_are_no_object_are_kept(roomy_model: LanguageModel, arguments: str) -> None:
    """Cut off, not JSON, or too deep to be sent back."""
    talk = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}'
    with scripted(roomy_model, talk, ending="length") as (client, _):
        message = client.post(PATH, json=body(tools=TOOLS)).json()
    (call,) = message["content"]
    assert call["input"] == {"INVALID_JSON": arguments} and message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": CITY}}}, CITY),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "weather"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "clock"}}, "clock"),
        ({"tools": [TOOLS[0] | {"strict": True}]}, "weather"),
    ],
    ids=["schema", "any", "tool", "strict"],
)
def test_what_restricts_an_answer_becomes_a_grammar(
    roomy_model: LanguageModel, fields: dict[str, Any], noted: Any
) -> None:
    grammars = NotedGrammars()
    with serving(make_context(roomy_model, grammars=grammars)) as client:
        refusal(client.post(PATH, json=body(**fields)))
    (asked,) = grammars.asked
    if isinstance(noted, str):
        assert f'"{noted}"' in asked.replace("\\", "")
    else:
        assert asked == noted | {"additionalProperties": False}


def test_tools_are_shown_as_a_chat_s(roomy_model: LanguageModel) -> None:
    with scripted(roomy_model, "Yes.") as (client, worker):
        answer(client, tools=TOOLS)
        clock = {"type": "function", "function": CLOCK["function"] | {"parameters": TOOLS[1]["input_schema"]}}
        client.post(CHAT, json=chat(tools=[WEATHER, clock]))
        ours, theirs = (prompt_of(roomy_model, each) for each in worker.sequences[-2:])
        assert ours == theirs and "weather" in ours
        count = client.post(COUNT, json={"messages": [user("hello")], "tools": TOOLS}).json()["input_tokens"]
        assert count == worker.sequences[-1].prompt_length
        answer(client, tools=TOOLS, tool_choice={"type": "none"})
        assert "weather" not in prompt_of(roomy_model, worker.sequences[-1])


# Fields


def test_thinking_is_for_templates_that_read_it(tiny: Callable[..., Any], client: TestClient) -> None:
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}):
        assert answer(client, thinking=thinking)["stride"]["ignored"] == ["thinking"]
    model = make_model(tiny, "{{ enable_thinking }}{% for m in messages %}{{ m | tojson }}{% endfor %}")
    with scripted(model, "Yes.") as (other, worker):
        for kind, shown in (("enabled", "True"), ("adaptive", "True"), ("disabled", "False")):
            assert answer(other, thinking={"type": kind})["stride"]["ignored"] == []
            assert prompt_of(model, worker.sequences[-1]).startswith(shown)
        for more in ({"budget_tokens": 1024}, {"display": "omitted"}):
            told = refusal(other.post(PATH, json=body(thinking={"type": "enabled"} | more)))
            assert told.startswith(f"thinking.{next(iter(more))}: ")
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
        said_before = {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]}
        answer(other, messages=[user("a"), said_before, user("b")])
        assert '"reasoning_content": "Hm."' in prompt_of(model, worker.sequences[-1])


IGNORED: dict[str, Any] = {
    "metadata": {"user_id": "someone"},
    "service_tier": "auto",
    "inference_geo": "eu",
    "cache_control": {"type": "ephemeral"},
    "speed": "fast",
}


def test_all_ignored_fields_are_tried_here() -> None:
    assert IGNORED.keys() >= MessagesUnread.model_fields.keys()


@pytest.mark.parametrize("name", IGNORED)
def test_what_cannot_change_the_text_is_named(client: TestClient, name: str) -> None:
    message, plain = (client.post(PATH, json=body(**fields)).json() for fields in ({name: IGNORED[name]}, {}))
    assert message["stride"]["ignored"] == [name] and said(message) == said(plain)


def test_ignored_parts_of_fields_are_named(client: TestClient) -> None:
    auto = {"type": "auto", "disable_parallel_tool_use": True}
    assert answer(client, tool_choice=auto)["stride"]["ignored"] == ["tool_choice.disable_parallel_tool_use"]
    assert answer(client, output_config={"effort": "low"})["stride"]["ignored"] == ["output_config.effort"]


@pytest.mark.parametrize(
    "name", [name for name, each in MessagesRequest.model_fields.items() if not each.is_required()]
)
def test_null_stands_for_a_field_that_is_left_out(client: TestClient, name: str) -> None:
    asked = body(max_tokens=4)
    asked.pop(name, None)
    reply = client.post(PATH, json=asked | {name: None})
    assert reply.status_code == 200 and reply.json()["stride"]["ignored"] == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages: "),
        ({"messages": [user([])]}, "messages.0.content: "),
        ({"messages": [user([{"type": "image", "source": {}}])]}, "messages.0.content.0: "),
        ({"messages": [{"role": "ghost", "content": ""}]}, "messages.0: "),
        ({"messages": [user([RESULT])]}, "messages: no call has the id c1"),
        ({"messages": [user("x" * 5000)]}, "messages: these are 5"),
        ({"messages": [user("a"), {"role": "assistant", "content": [CALL | {"input": "x"}]}]}, "messages.1.content.0"),
        ({"max_tokens": -1}, "max_tokens: "),
        ({"max_tokens": None}, "max_tokens: "),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences: at most 16"),
        ({"stop_sequences": "x"}, "stop_sequences: "),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0."),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools: two functions"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: there are no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice: there is no tool x"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type: "),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"a": "b" * 70_000}}}},
            "output_config.format: ",
        ),
        ({"temperature": -1}, "temperature: "),
        ({"n": 2}, "n: this field is not known here"),
        *(({name: {"id": "x"}}, f"{name}") for name in MessagesNeutral.model_fields),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_is_refused_is_named(client: TestClient, fields: dict[str, Any], words: str) -> None:
    assert refusal(client.post(PATH, json=body() | fields)).startswith(words)
    if set(fields) <= set(CountRequest.model_fields) and "5000" not in words:
        counted = client.post(COUNT, json={"messages": [user("hello")]} | fields)
        assert counted.status_code == 200 or refusal(counted).startswith(words)


def test_deep_input_is_refused(client: TestClient) -> None:
    deep: Any = 1
    for _ in range(70):
        deep = {"a": deep}
    messages = [user("a"), {"role": "assistant", "content": [CALL | {"input": deep}]}, user([RESULT])]
    assert "64 deep at most" in refusal(client.post(PATH, json=body(messages=messages)))


def test_a_model_that_there_is_not(client: TestClient) -> None:
    for path, asked in ((PATH, body(model="claude-7")), (COUNT, {"model": "claude-7", "messages": [user("a")]})):
        assert "claude-7" in refusal(client.post(path, json=asked), 404, "not_found_error")


def test_a_trace_comes_with_the_message(client: TestClient) -> None:
    stride = client.post(PATH, json=body(stride={"trace": True})).json()["stride"]
    events = named_events(client.post(PATH, json=body(stride={"trace": True}, stream=True)))
    assert len(stride["trace"]) == stride["forwards"]
    assert len(events[-2]["stride"]["trace"]) == events[-2]["stride"]["forwards"]
