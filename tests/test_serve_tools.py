"""Tools: told to the model by its template, called in its own form, read out of its text."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from starlette.testclient import TestClient

from asking import CHAT, NotedGrammars, Scripted, chat, chunks, make_context, refusal, serving
from assembly import assembled
from stridelm.api import LanguageModel
from stridelm.serve.chat_schema import Function
from stridelm.serve.settings import ServeSettings
from stridelm.serve.tool_grammar import may_call, must_call
from stridelm.serve.tool_reader import CallReader, Found
from stridelm.serve.tools import FORMATS, HERMES, LLAMA, MISTRAL, Call, ToolFormat
from stridelm.settings import LoadSettings
from stridelm.types import Sequence

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}, "$defs": {"name": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALLS = [Call("weather", {"city": "Zürich"}), Call("clock", {})]

_LOOP = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}"
_TOOLS = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
_CALLED = "{% for c in m['tool_calls'] or [] %}MARK{{ c['function']['arguments'] | tojson }}{% endfor %}"
_END = "\n{% endfor %}"


def template(marker: str) -> str:
    return _TOOLS + _LOOP + _CALLED.replace("MARK", marker) + _END


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


@pytest.fixture
def model(with_template: Callable[[str | None], LanguageModel], tiny: Callable[..., Any]) -> LanguageModel:
    """With its own template, which has no place for tools."""
    return with_template(tiny("llama").tokenizer.chat_template)


@contextmanager
def scripted(
    model: LanguageModel, text: str, *, grammars: NotedGrammars | None = None, ending: str = "stop", size: int = 3
) -> Iterator[tuple[TestClient, Scripted]]:
    """A server whose model always says the same."""
    worker = Scripted(text, size=size, ending=ending)
    with serving(make_context(model, grammars=grammars, worker=worker)) as client:
        yield client, worker


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    reply = client.post(CHAT, json=chat(**{"tools": [WEATHER, CLOCK]} | fields))
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def called(message: dict[str, Any]) -> list[Call]:
    return [
        Call(call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]


def prompt_of(model: LanguageModel, sequence: Sequence) -> str:
    return str(model.target.tokenizer.decode(sequence.tokens[: sequence.prompt_length]))


def read(form: ToolFormat, text: str, *, size: int = 1, many: bool = True) -> Found:
    reader = CallReader(form, {"weather", "clock"}, many=many)
    found = Found()
    for start in range(0, len(text), size):
        piece = reader.push(text[start : start + size])
        found.text += piece.text
        found.calls += piece.calls
    rest = reader.flush()
    assert len(found.calls) + len(rest.calls) == reader.calls
    return Found(found.text + rest.text, found.calls + rest.calls)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("form", FORMATS, ids=["hermes", "mistral", "llama"])
def test_what_a_form_writes_it_reads(form: ToolFormat, size: int) -> None:
    assert read(form, form.write(CALLS), size=size) == Found("", CALLS)
    assert read(form, form.write(CALLS), size=size, many=False).calls == CALLS[:1]
    # The marker is a special token in many tokenizers, which is no part of the text.
    unmarked = form.write(CALLS).removeprefix("[TOOL_CALLS] ")
    assert read(form, unmarked, size=size) == Found("", CALLS)


@pytest.mark.parametrize("size", [1, 7])
def test_text_around_calls_stays(size: int) -> None:
    call = HERMES.write(CALLS[:1])
    assert read(HERMES, f"Let me see.\n\n{call}\n", size=size) == Found("Let me see.", CALLS[:1])
    assert read(HERMES, f"a <b> {call} then {call}", size=size) == Found("a <b> then", [CALLS[0], CALLS[0]])
    assert read(HERMES, "no call, a < b \n", size=size) == Found("no call, a < b \n", [])
    for missing in range(14):  # the end was a stop string, or there was no room for it
        assert read(HERMES, call[: len(call) - missing], size=size) == Found("", CALLS[:1])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnot JSON\n</tool_call>",
        '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": "now"}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {}, "more": 1}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {"a": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {"a": "\\ud800"}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {"a": 99999999999999999999999}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": ' + '{"a": ' * 300 + "1" + "}" * 300 + "}\n</tool_call>",
        '<tool_call>\n{"name": "clock", "argu',
        "<tool_call>" + "[" * 5000 + "</tool_call>",
        "<tool_ca",
        "",
    ],
)
def test_malformed_calls_stay_text(text: str) -> None:
    assert read(HERMES, text) == Found(text, [])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (MISTRAL, "[TOOL_CALLS] [1, 2]"),
        (MISTRAL, "[1, 2] is a list"),
        (MISTRAL, "[" * 3000),
        (MISTRAL, "[TOOL_CALLS] 3"),
        (LLAMA, '{"name": "clock"} and more'),
        (LLAMA, '{"city": "here"}'),
        (LLAMA, "Plain text {"),
    ],
)
def test_answers_that_are_no_calls_stay_text(form: ToolFormat, text: str) -> None:
    assert read(form, text) == Found(text, [])


def accepts(grammar: str, text: str) -> bool:
    """Whether a text may be a whole answer."""
    tokenizer = LLTokenizer("byte")
    compiled = LLMatcher.grammar_from_lark(grammar)
    assert not LLMatcher.validate_grammar(compiled, tokenizer)
    matcher = LLMatcher(tokenizer, compiled)
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


FUNCTIONS = [Function(name="weather", parameters=CITY), Function(name="clock")]


@pytest.mark.parametrize("form", FORMATS, ids=["hermes", "mistral", "llama"])
def test_a_grammar_makes_calls(form: ToolFormat) -> None:
    many = must_call(form, FUNCTIONS, many=True, special={})
    one = must_call(form, FUNCTIONS, many=False, special={})
    assert accepts(many, form.write(CALLS)) and accepts(many, form.write(CALLS[1:]))
    assert accepts(one, form.write(CALLS[:1])) and not accepts(one, form.write(CALLS))
    for wrong in ([Call("nobody", {})], [Call("weather", {"city": 3})], [Call("clock", {"a": 1})]):
        assert not accepts(many, form.write(wrong))
    assert not accepts(many, "") and not accepts(many, "text")


def test_a_marker_that_is_a_token_is_forced_as_one() -> None:
    grammar = must_call(MISTRAL, FUNCTIONS, many=True, special={"<s>": 1, "[TOOL_CALLS]": 5})
    assert grammar.startswith('start: <[5]> " [" call')


def test_a_grammar_lets_a_model_choose() -> None:
    many, one = may_call(HERMES, FUNCTIONS, many=True), may_call(HERMES, FUNCTIONS, many=False)
    for grammar in (many, one):
        assert accepts(grammar, "Just text, a < b.") and accepts(grammar, "See: " + HERMES.write(CALLS[:1]))
        assert not accepts(grammar, HERMES.write([Call("weather", {"city": 3})]))
    assert accepts(many, HERMES.write(CALLS)) and not accepts(one, HERMES.write(CALLS))


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


@pytest.mark.parametrize("arguments", ["", "[]", "{", "NaN", '{"a":' * 100 + "1" + "}" * 100])
def test_arguments_that_are_no_object(model: LanguageModel, arguments: str) -> None:
    call = {"id": "one", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [*chat()["messages"], {"role": "assistant", "tool_calls": [call]}]
    with scripted(model, "") as (client, _):
        assert refusal(client.post(CHAT, json=chat(messages=messages)))["param"] == "messages"


@pytest.mark.parametrize(
    ("marker", "form"), [("<tool_call>", HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|python_tag|>", LLAMA)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_read_in_the_model_s_own_form(
    with_template: Callable[[str | None], LanguageModel], marker: str, form: ToolFormat, stream: bool
) -> None:
    with scripted(with_template(template(marker)), form.write(CALLS)) as (client, _):
        if not stream:
            choice = ask(client)
            message = choice["message"]
            assert message["content"] is None and choice["finish_reason"] == "tool_calls"
        else:
            parts = [
                part["choices"][0] for part in chunks(client.post(CHAT, json=chat(tools=[WEATHER, CLOCK], stream=True)))
            ]
            assert parts[-1]["finish_reason"] == "tool_calls"
            assert not any(part["delta"].get("content") for part in parts)
            calls = [call for part in parts for call in part["delta"].get("tool_calls", ())]
            assert [call["index"] for call in calls] == [0, 1]
            message = {"tool_calls": calls}
        assert called(message) == CALLS
        ids = [call["id"] for call in message["tool_calls"]]
        assert len(set(ids)) == 2 and all(
            len(each) == 9 if form is MISTRAL else each.startswith("call_") for each in ids
        )


def test_text_and_calls_in_a_stream(model: LanguageModel) -> None:
    text = "Let me look.\n" + HERMES.write(CALLS[:1])
    with scripted(model, text) as (client, _):
        parts = [part["choices"][0] for part in chunks(client.post(CHAT, json=chat(tools=[WEATHER], stream=True)))]
        assert "".join(part["delta"].get("content", "") for part in parts) == "Let me look."
        assert [called(part["delta"]) for part in parts if "tool_calls" in part["delta"]] == [CALLS[:1]]
        choice = ask(client)
        assert choice["message"]["content"] == "Let me look." and called(choice["message"]) == CALLS[:1]
    with scripted(model, text[:-20], ending="length") as (client, _):
        assert ask(client)["finish_reason"] == "length"


def test_without_tools_calls_are_text(model: LanguageModel) -> None:
    text = HERMES.write(CALLS)
    with scripted(model, text) as (client, _):
        assert ask(client, tools=None)["message"] == {"role": "assistant", "content": text}
        assert ask(client, tools=[])["message"]["content"] == text
        assert ask(client, tool_choice="none")["message"]["content"] == text
        assert ask(client, tools=[CLOCK])["message"]["content"].count("weather") == 1  # not one of its tools


def test_one_call_at_most(model: LanguageModel) -> None:
    with scripted(model, HERMES.write(CALLS)) as (client, worker):
        assert called(ask(client, parallel_tool_calls=True)["message"]) == CALLS
        assert worker.sequences[-1].params.stop == ()
        assert called(ask(client, parallel_tool_calls=False, stop="x")["message"]) == CALLS[:1]
        assert worker.sequences[-1].params.stop == ("x", "</tool_call>")


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
    ("change", "param"),
    [
        ({"tools": None, "tool_choice": "auto"}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": None, "parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"title": "x" * 500}}}]}, "tools"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=str,
)
def test_what_is_refused_of_tools(model: LanguageModel, change: dict[str, Any], param: str) -> None:
    settings = ServeSettings(max_schema=400)
    with serving(make_context(model, settings, worker=Scripted("x"))) as client:
        assert refusal(client.post(CHAT, json=chat(**{"tools": [WEATHER]} | change)))["param"] == param


def test_forms_that_are_not_known(with_template: Callable[[str | None], LanguageModel]) -> None:
    with scripted(with_template(_TOOLS + _LOOP + _END), "x") as (client, _):
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
