"""Tools: told to the model by its template, called in its own form, read out of its text."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import CHAT, NotedGrammars, Scripted, chat, chunks, make_context, refusal, serving
from assembly import assembled
from stridelm.api import LanguageModel
from stridelm.serve.settings import ServeSettings
from stridelm.serve.tools.forms import HERMES, LLAMA, MISTRAL, ToolFormat
from stridelm.settings import LoadSettings
from tool_asking import (
    CALLS,
    CLOCK,
    END,
    LOOP,
    PLACE,
    WEATHER,
    accepts,
    ask,
    called,
    gathered,
    prompt_of,
    scripted,
    template,
    without_ids,
)


@pytest.fixture
def with_template(tiny: Callable[..., Any]) -> Callable[[str | None], LanguageModel]:
    """The tiny model with another chat template."""

    def make(given: str | None) -> LanguageModel:
        target = tiny("llama")
        tokenizer = copy.deepcopy(target.tokenizer)
        tokenizer.chat_template = given
        # Nothing is run here, so that a context may be pretended that has room for descriptions in bytes.
        target = replace(target, tokenizer=tokenizer, context_length=4096)
        return assembled(target, None, LoadSettings(cache_tokens=4096))

    return make


def streamed(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of the answer that `ask` asks for."""
    return chunks(client.post(CHAT, json=chat(**{"tools": [WEATHER, CLOCK]} | fields, stream=True)))


@pytest.fixture
def model(with_template: Callable[[str | None], LanguageModel], tiny: Callable[..., Any]) -> LanguageModel:
    """With its own template, which has no place for tools."""
    return with_template(tiny("llama").tokenizer.chat_template)


def test_a_template_without_a_place_for_tools_is_told_in_words(model: LanguageModel) -> None:
    with scripted(model, "Yes.") as (client, worker):
        assert ask(client)["message"] == {"role": "assistant", "content": "Yes."}
        prompt = prompt_of(model, worker.sequences[-1])
        assert prompt.startswith("[system] You can call functions.") and '"name":"weather"' in prompt
        assert "<tool_call>" in prompt and prompt.endswith("\n[user] hello\n[assistant] ")
        ask(client, messages=[{"role": "system", "content": "Be kind."}, *chat()["messages"]])
        assert prompt_of(model, worker.sequences[-1]).startswith("[system] Be kind.\n\nYou can call")
        ask(client, tool_choice="none")
        assert prompt_of(model, worker.sequences[-1]) == "[user] hello\n[assistant] "


HISTORY = [
    {"role": "user", "content": "How is it?"},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "one", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}},
            {"id": "two", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "one", "content": "Rain."},
    {"role": "tool", "tool_call_id": "two", "content": [{"type": "text", "text": "Noon."}], "name": "clock"},
]


def test_calls_and_what_they_gave_are_rendered_without_a_place_for_them(model: LanguageModel) -> None:
    with scripted(model, "So.") as (client, worker):
        ask(client, messages=HISTORY, tool_choice="none")
        assert prompt_of(model, worker.sequences[-1]) == (
            '[user] How is it?\n[assistant] <tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n'
            '</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\n'
            '[user] <tool_response>\n{"name":"weather","content":"Rain."}\n</tool_response>\n'
            '<tool_response>\n{"name":"clock","content":"Noon."}\n</tool_response>\n[assistant] '
        )


def test_calls_and_what_they_gave_are_rendered_by_the_template(
    with_template: Callable[[str | None], LanguageModel],
) -> None:
    model = with_template(template("<tool_call>"))
    with scripted(model, "So.") as (client, worker):
        ask(client, messages=HISTORY)
        prompt = prompt_of(model, worker.sequences[-1])
    assert '"name": "weather", "description": "Tells it."' in prompt.splitlines()[0]
    assert '[assistant] <tool_call>{"city": "Bern"}<tool_call>{}[tool] Rain.[tool] Noon.' in prompt


def with_arguments(arguments: str | None) -> list[dict[str, Any]]:
    """A chat in which a function was called with these; None: with none at all."""
    function = {"name": "weather"} | ({} if arguments is None else {"arguments": arguments})
    return [*chat()["messages"], {"role": "assistant", "tool_calls": [{"id": "one", "function": function}]}]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "Bern"}', '{"city": "Bern"}'),
        (None, "{}"),
        ("", "{}"),
        (" \n", "{}"),
        ("[]", "[]"),
        ("{", '"{"'),
        ('{"city": ', '"{\\"city\\": "'),
        ("NaN", '"NaN"'),
    ],
)
def test_arguments_in_a_chat(
    with_template: Callable[[str | None], LanguageModel],
    model: LanguageModel,
    arguments: str | None,
    shown: str,
) -> None:
    """Those that are no JSON, because a model wrote them wrongly or had no room, are shown to it as they are."""
    with scripted(model, "So.") as (client, worker):
        ask(client, messages=with_arguments(arguments), tool_choice="none")
        assert f'{{"name": "weather", "arguments": {shown}}}\n' in prompt_of(model, worker.sequences[-1])
    placed = with_template(template("<tool_call>"))
    with scripted(placed, "So.") as (client, worker):
        ask(client, messages=with_arguments(arguments))
        assert prompt_of(placed, worker.sequences[-1]).endswith(f"[assistant] <tool_call>{shown}")


def test_arguments_may_not_be_deep(model: LanguageModel) -> None:
    with scripted(model, "") as (client, _):
        deep = with_arguments('{"a":' * 100 + "1" + "}" * 100)
        error = refusal(client.post(CHAT, json=chat(messages=deep)))
        assert error["param"] == "messages" and "deep" in error["message"]
        assert client.post(CHAT, json=chat(messages=with_arguments('{"a":' * 64 + "1" + "}" * 64))).status_code == 200


def test_what_a_call_gave_may_name_the_function(model: LanguageModel) -> None:
    """By its own name, by that of the call, or not at all."""
    answered = {"role": "tool", "tool_call_id": "unheard", "content": "Rain."}
    with scripted(model, "So.") as (client, worker):
        ask(client, messages=[*chat()["messages"], answered | {"name": "weather"}], tool_choice="none")
        assert '{"name":"weather","content":"Rain."}' in prompt_of(model, worker.sequences[-1])
        for name in (None, ""):
            error = refusal(client.post(CHAT, json=chat(messages=[*chat()["messages"], answered | {"name": name}])))
            assert error["param"] == "messages" and "unheard" in error["message"]


@pytest.mark.parametrize(
    ("marker", "form"), [("<tool_call>", HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|python_tag|>", LLAMA)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_read_in_the_model_s_own_form(
    with_template: Callable[[str | None], LanguageModel], marker: str, form: ToolFormat, stream: bool
) -> None:
    with scripted(with_template(template(marker)), form.write(CALLS)) as (client, _):
        choice = gathered(streamed(client)) if stream else ask(client)
        message = choice["message"]
        assert message["content"] is None and choice["finish_reason"] == "tool_calls"
        assert called(message) == CALLS
        ids = [call["id"] for call in message["tool_calls"]]
        assert len(set(ids)) == 2 and all(
            len(each) == 9 if form is MISTRAL else each.startswith("call_") for each in ids
        )


def test_text_and_calls_in_a_stream(model: LanguageModel) -> None:
    text = "Let me look.\n" + HERMES.write(CALLS[:1])
    with scripted(model, text) as (client, _):
        choice = ask(client)
        assert choice["message"]["content"] == "Let me look." and called(choice["message"]) == CALLS[:1]
        sent = streamed(client)
        assert without_ids(gathered(sent)) == without_ids(choice)
        # Each piece of the arguments is sent as soon as it is written, three characters a step.
        pieces = [piece for chunk in sent for piece in chunk["choices"][0]["delta"].get("tool_calls", ())]
        assert len(pieces) > 4 and all(len(piece["function"]["arguments"]) <= 3 for piece in pieces)
    with scripted(model, text[:-20], ending="length") as (client, _):
        choice = ask(client)
        assert choice["finish_reason"] == "length"
        [call] = choice["message"]["tool_calls"]
        assert '{"city": "Zürich"}'.startswith(call["function"]["arguments"]) and len(call["function"]["arguments"]) > 4
        assert without_ids(gathered(streamed(client))) == without_ids(choice)


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
@pytest.mark.parametrize(
    ("marker", "form"), [("<tool_call>", HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|python_tag|>", LLAMA)]
)
def test_a_stream_of_calls_says_what_the_reply_says(
    with_template: Callable[[str | None], LanguageModel], marker: str, form: ToolFormat, size: int
) -> None:
    model, written = with_template(template(marker)), form.write(CALLS)
    turned = form.begin + form.before + f'{{"{form.arguments}": {{}}, "name": "clock"}}' + form.after + form.end
    for text in (written, written[:-4], written[: len(written) // 2], turned, "Just text.", f"Text. {written}"):
        with scripted(model, text, size=size) as (client, _):
            for fields in ({}, {"parallel_tool_calls": False}):
                choice = ask(client, **fields)
                assert without_ids(gathered(streamed(client, **fields))) == without_ids(choice)
                is_called = "tool_calls" in choice["message"]
                assert choice["finish_reason"] == ("tool_calls" if is_called else "stop")


def test_without_tools_calls_are_text(model: LanguageModel) -> None:
    text = HERMES.write(CALLS)
    with scripted(model, text) as (client, _):
        assert ask(client, tools=None)["message"] == {"role": "assistant", "content": text}
        assert ask(client, tools=[])["message"]["content"] == text
        assert ask(client, tool_choice="none")["message"]["content"] == text
        assert ask(client, tools=[CLOCK])["message"]["content"].count("weather") == 1  # not one of its tools


def test_a_call_is_forced_by_a_grammar(model: LanguageModel) -> None:
    grammars = NotedGrammars(lambda: None)  # type: ignore[arg-type,return-value]
    named = {"type": "function", "function": {"name": "clock"}}
    with scripted(model, HERMES.write(CALLS[1:]), grammars=grammars) as (client, _):
        ask(client)
        assert grammars.asked == []
        assert called(ask(client, tool_choice="required")["message"]) == CALLS[1:]
        assert accepts(grammars.asked[-1], HERMES.write(CALLS))
        ask(client, tool_choice="required", parallel_tool_calls=False)
        assert accepts(grammars.asked[-1], HERMES.write(CALLS[:1])) and not accepts(
            grammars.asked[-1], HERMES.write(CALLS)
        )
        choice = ask(client, tool_choice=named)
        assert choice["finish_reason"] == "tool_calls"
        assert accepts(grammars.asked[-1], HERMES.write(CALLS[1:]))
        assert not accepts(grammars.asked[-1], HERMES.write(CALLS[:1]))
        strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        ask(client, tools=[strict])
        assert accepts(grammars.asked[-1], "text") and not accepts(grammars.asked[-1], "<tool_call>text")
    with scripted(model, "", grammars=NotedGrammars()) as (client, _):
        body = chat(tools=[CLOCK], tool_choice="required")
        assert refusal(client.post(CHAT, json=body))["param"] == "tools"  # what the compiler refuses


@pytest.mark.parametrize(
    ("marker", "form"), [("<tool_call>", HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|python_tag|>", LLAMA)]
)
def test_an_answer_of_a_form_may_be_a_call_instead(
    with_template: Callable[[str | None], LanguageModel], marker: str, form: ToolFormat
) -> None:
    grammars = NotedGrammars(lambda: None)  # type: ignore[arg-type,return-value]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    model = with_template(template(marker))
    with scripted(model, form.write(CALLS[:1]), grammars=grammars) as (client, _):
        choice = ask(client, response_format=asked)
        assert called(choice["message"]) == CALLS[:1] and choice["finish_reason"] == "tool_calls"
        assert accepts(grammars.asked[-1], form.write(CALLS)) and accepts(grammars.asked[-1], '{"a": 1}')
        for wrong in ('{"a": 1, "b": 2}', "{}", "text"):
            assert not accepts(grammars.asked[-1], wrong)
        ask(client, response_format={"type": "json_object"}, parallel_tool_calls=False)
        assert accepts(grammars.asked[-1], '{"a": 1, "b": 2}') and not accepts(grammars.asked[-1], form.write(CALLS))
        # A call that must be leaves no room for the form, and none that may not be leaves nothing but it.
        ask(client, response_format=asked, tool_choice="required")
        assert not accepts(grammars.asked[-1], '{"a": 1}') and accepts(grammars.asked[-1], form.write(CALLS))
        ask(client, response_format=asked, tool_choice="none")
        assert grammars.asked[-1] == schema | {"additionalProperties": False}
    for answer in ('{"a": 1}', '{"a":\n 1}'):
        with scripted(model, answer, grammars=grammars) as (client, _):
            choice = ask(client, response_format=asked)
            assert choice["message"] == {"role": "assistant", "content": answer} and choice["finish_reason"] == "stop"
            assert gathered(streamed(client, response_format=asked)) == choice


def test_tools_need_not_be_there_to_be_chosen_freely(model: LanguageModel) -> None:
    with scripted(model, "Yes.") as (client, worker):
        for tools in (None, []):
            for fields in ({"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": True}):
                assert ask(client, tools=tools, **fields)["message"]["content"] == "Yes."
                assert prompt_of(model, worker.sequences[-1]) == "[user] hello\n[assistant] "


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "clock"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"title": "x" * 500}}}]}, "tools"),
        ({"tools": [CLOCK] * 129}, "tools"),
    ],
    ids=str,
)
def test_what_is_refused_of_tools(model: LanguageModel, change: dict[str, Any], param: str) -> None:
    settings = ServeSettings(max_schema=400)
    with serving(make_context(model, settings, worker=Scripted("x"))) as client:
        assert refusal(client.post(CHAT, json=chat(**{"tools": [WEATHER]} | change)))["param"] == param


def test_forms_that_are_not_known(with_template: Callable[[str | None], LanguageModel]) -> None:
    with scripted(with_template(PLACE + LOOP + END), "x") as (client, _):
        assert refusal(client.post(CHAT, json=chat(tools=[CLOCK])))["param"] == "tools"
        assert client.post(CHAT, json=chat()).status_code == 200
    strict = {"type": "function", "function": {"name": "clock", "strict": True}}
    with scripted(with_template(template("[TOOL_CALLS]")), "x") as (client, _):
        assert refusal(client.post(CHAT, json=chat(tools=[strict])))["param"] == "tools"


def test_what_a_template_refuses_is_told(with_template: Callable[[str | None], LanguageModel]) -> None:
    for given in ("{{ raise_exception('only users, please') }}", "{{ messages[5].content }}{{ 1 / 0 }}"):
        with scripted(with_template("{% if messages | length > 1 %}" + given + "{% endif %}x"), "x") as (client, _):
            assert client.post(CHAT, json=chat()).status_code == 200
            error = refusal(client.post(CHAT, json=chat(messages=chat()["messages"] * 2)))
            assert error["param"] == "messages" and ("only users" in error["message"]) == ("raise" in given)
    with scripted(with_template(None), "x") as (client, _):
        assert "no chat template" in refusal(client.post(CHAT, json=chat()))["message"]
