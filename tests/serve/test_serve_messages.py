"""Messages as clients send them, and send them back: what the chat template is shown of each."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import CHAT, Scripted, chat, make_context, refusal, serving
from assembly import assembled
from stridelm.api import LanguageModel
from stridelm.settings import LoadSettings
from tool_asking import prompt_of

TURNS = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
WITH_TOOLS = "{% for tool in tools or [] %}<tool_call>{% endfor %}" + TURNS
LABELS: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"},
    "provider_specific_fields": {"thinking_blocks": None},
}
USER = {"role": "user", "content": "hello"}
CALL = {"id": "one", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
SHOWN_CALL = {"id": "one", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}

Shown = Callable[..., list[dict[str, Any]]]


def make_model(tiny: Callable[..., Any], template: str) -> LanguageModel:
    target = tiny("llama")
    tokenizer = copy.deepcopy(target.tokenizer)
    tokenizer.chat_template = template
    # Nothing is run here, so that a context may be pretended that has room for messages in bytes.
    return assembled(replace(target, tokenizer=tokenizer, context_length=4096), None, LoadSettings(cache_tokens=4096))


@pytest.fixture(scope="module", params=[TURNS, WITH_TOOLS], ids=["plain", "with tools"])
def either(request: pytest.FixtureRequest, tiny: Callable[..., Any]) -> LanguageModel:
    """A model whose template writes messages as it is shown them; it has a place for tools, or not."""
    return make_model(tiny, request.param)


@pytest.fixture(scope="module")
def placed(tiny: Callable[..., Any]) -> LanguageModel:
    """The one that has a place for tools, and so for calls."""
    return make_model(tiny, WITH_TOOLS)


def shown(model: LanguageModel, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What the template is shown of messages; `/tokenize` must be told the same."""
    worker = Scripted("Yes.")
    with serving(make_context(model, worker=worker)) as client:
        reply = client.post(CHAT, json=chat(messages=list(messages)))
        assert reply.status_code == 200, reply.text
        assert reply.json()["stride"]["ignored"] == []  # labels are no fields of the request
        counted = client.post("/tokenize", json={"messages": list(messages)}).json()["count"]
    prompt = prompt_of(model, worker.sequences[-1])
    assert reply.json()["usage"]["prompt_tokens"] == counted
    return [json.loads(line) for line in prompt.splitlines()]


def test_a_developer_is_the_system(either: LanguageModel) -> None:
    for role in ("system", "developer"):
        assert shown(either, {"role": role, "content": "Be kind."}, USER) == [
            {"role": "system", "content": "Be kind."},
            USER,
        ]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_a_name_is_shown_to_the_template(either: LanguageModel, role: str) -> None:
    _, turn = shown(either, USER, {"role": role, "content": "x", "name": "Ann"})
    assert turn == {"role": "system" if role == "developer" else role, "content": "x", "name": "Ann"}
    _, turn = shown(either, USER, {"role": role, "content": "x", "name": None})
    assert "name" not in turn


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_labels_are_not_shown(either: LanguageModel, role: str) -> None:
    message = {"role": role, "content": "a\nb"}
    parts = [{"type": "text", "text": "a"} | LABELS, {"type": "text", "text": "b", "cache_control": None}]
    plain = shown(either, USER, message)
    for labelled in (message | LABELS, message | {"content": parts}, message | dict.fromkeys(LABELS)):
        assert shown(either, USER, labelled) == plain


def test_labels_of_calls_are_not_shown(placed: LanguageModel) -> None:
    function = CALL["function"] | LABELS | {"parsed_arguments": {"city": "elsewhere"}}
    call = CALL | LABELS | {"index": 0, "function": function}
    answer = {"role": "tool", "tool_call_id": "one", "content": [{"type": "text", "text": "Rain."} | LABELS]}
    turns = shown(placed, USER, {"role": "assistant", "tool_calls": [call]}, answer | LABELS)
    assert turns[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [SHOWN_CALL]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "one", "name": "weather"},
    ]


def test_what_an_assistant_is_given_it_may_give_back(either: LanguageModel) -> None:
    """As openai's client and others write it, with all that they add."""
    returned = {
        "role": "assistant",
        "content": "So.",
        "refusal": None,
        "annotations": [{"type": "url_citation", "url_citation": {"url": "x"}}],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "parsed": {"a": 1},
        **LABELS,
    }
    assert shown(either, USER, returned) == [USER, {"role": "assistant", "content": "So."}]


@pytest.mark.parametrize("content", [None, "", []], ids=str)
def test_an_assistant_may_have_said_nothing(either: LanguageModel, content: Any) -> None:
    assert shown(either, USER, {"role": "assistant", "content": content})[1] == {"role": "assistant", "content": ""}
    assert shown(either, USER, {"role": "assistant"})[1] == {"role": "assistant", "content": ""}
    assert shown(either, USER, {"role": "assistant", "tool_calls": []})[1] == {"role": "assistant", "content": ""}


def test_a_refusal_is_what_was_said(either: LanguageModel) -> None:
    part = {"type": "refusal", "refusal": "I will not."}
    for message in ({"refusal": "I will not."}, {"content": None, "refusal": "I will not."}, {"content": [part]}):
        assert shown(either, {"role": "assistant", **message})[0]["content"] == "I will not."
    both = {"role": "assistant", "content": "Well, yes.", "refusal": "I will not."}
    assert shown(either, both)[0]["content"] == "Well, yes."
    parts = [{"type": "text", "text": "Hm."}, part | LABELS]
    assert shown(either, {"role": "assistant", "content": parts})[0]["content"] == "Hm.\nI will not."


def test_what_was_thought_is_shown_by_one_name(either: LanguageModel) -> None:
    said = {"role": "assistant", "content": "So."}
    for fields in (
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"reasoning_content": "Hm.", "reasoning": "Other."},
        {"reasoning_content": None, "reasoning": "Hm."},
    ):
        assert shown(either, said | fields) == [said | {"reasoning_content": "Hm."}]
    for fields in ({"reasoning_content": ""}, {"reasoning": None}):
        assert shown(either, said | fields) == [said]


@pytest.mark.parametrize("arguments", ["", " ", None])
def test_calls_without_arguments_have_none(placed: LanguageModel, arguments: str | None) -> None:
    function = {"name": "weather"} | ({} if arguments is None else {"arguments": arguments})
    call = {"id": "one", "function": function}  # and `type` may be missing
    turn = shown(placed, USER, {"role": "assistant", "tool_calls": [call]})[1]
    assert turn["tool_calls"] == [SHOWN_CALL | {"function": {"name": "weather", "arguments": {}}}]


def test_calls_and_text_stand_side_by_side(placed: LanguageModel) -> None:
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL], "reasoning_content": "Hm."}
    assert shown(placed, USER, message)[1] == message | {"tool_calls": [SHOWN_CALL]}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}, "content.0.type"),
        ({"role": "user", "content": "x", "refusal": "no"}, "refusal"),
        ({"role": "user", "content": "x", "reasoning_content": "x"}, "reasoning_content"),
        ({"role": "user", "content": "x", "tool_calls": []}, "tool_calls"),
        ({"role": "user", "content": "x", "cache_control": "x"}, "cache_control"),
        ({"role": "developer", "content": None}, "content"),
        ({"role": "assistant", "content": "x", "audio": {"id": "x"}}, "audio"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": ""}}, "function_call"),
        ({"role": "assistant", "content": [{"type": "image_url"}]}, "content.0"),
        ({"role": "assistant", "content": [{"type": "text", "text": "x", "more": 1}]}, "content.0.more"),
        ({"role": "assistant", "tool_calls": [{"function": CALL["function"]}]}, "tool_calls.0.id"),
        ({"role": "assistant", "tool_calls": [CALL | {"id": ""}]}, "tool_calls.0.id"),
        ({"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}, "tool_calls.0.type"),
        ({"role": "assistant", "tool_calls": [CALL | {"index": "0"}]}, "tool_calls.0.index"),
        ({"role": "assistant", "tool_calls": [CALL | {"more": 1}]}, "tool_calls.0.more"),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "weather", "arguments": {}}}]},
            "tool_calls.0.function.arguments",
        ),
        ({"role": "tool", "content": None, "tool_call_id": "one"}, "content"),
        ({"role": "function", "name": "f", "content": "x"}, ""),
    ],
    ids=str,
)
def test_what_is_refused_of_messages(refusing: TestClient, message: dict[str, Any], param: str) -> None:
    error = refusal(refusing.post(CHAT, json=chat(messages=[USER, message])))
    assert str(error["param"]).startswith(f"messages.1.{param}".rstrip("."))


@pytest.fixture(scope="module")
def refusing(placed: LanguageModel) -> Any:
    with serving(make_context(placed, worker=Scripted("Never."))) as client:
        yield client
