"""Grammars of calls, by a real matcher: what may be a whole answer, and what may not."""

from typing import Any

import pytest

from stridelm.serve.schemas.chat import Function
from stridelm.serve.tools.forms import FORMATS, HERMES, MISTRAL, Call, ToolFormat
from stridelm.serve.tools.grammar import call_or_json, may_call, must_call
from tool_asking import CALLS, FUNCTIONS, accepts


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


ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/b"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"b": {"enum": ["x"]}},
}


@pytest.mark.parametrize("form", FORMATS, ids=["hermes", "mistral", "llama"])
def test_a_grammar_takes_a_call_or_json_and_nothing_else(form: ToolFormat) -> None:
    many = call_or_json(form, FUNCTIONS, ANSWER, many=True, special={})
    one = call_or_json(form, FUNCTIONS, ANSWER, many=False, special={})
    for grammar in (many, one):
        assert accepts(grammar, form.write(CALLS[:1])) and accepts(grammar, form.write(CALLS[1:]))
        for answer in ('{"a": 1}', '{"a":-12,"b":"x"}', '{\n  "a": 1\n}'):
            assert accepts(grammar, answer)
        for wrong in (
            *("", "text", "{}", '{"a": "1"}', '{"a": 1, "b": "y"}', '{"a": 1, "c": 1}', "[1]", '{"a": 1} {"a": 1}'),
            *(form.write([Call("weather", {"city": 3})]), form.write([Call("nobody", {})]), form.write(CALLS)[:-3]),
            *(form.write(CALLS[:1]) + '{"a": 1}', '{"a": 1}' + form.write(CALLS[:1]), "So: " + form.write(CALLS[:1])),
        ):
            assert not accepts(grammar, wrong), wrong
    assert accepts(many, form.write(CALLS)) and not accepts(one, form.write(CALLS))


def test_a_marker_that_is_a_token_is_forced_before_calls_alone() -> None:
    grammar = call_or_json(MISTRAL, FUNCTIONS, ANSWER, many=True, special={"[TOOL_CALLS]": 5})
    assert grammar.startswith('start: answer | <[5]> " [" call')


@pytest.mark.parametrize("form", FORMATS, ids=["hermes", "mistral", "llama"])
def test_functions_take_what_they_name(form: ToolFormat) -> None:
    """Strict or not, and also within, unless they say otherwise."""
    inner = {"type": "object", "properties": {"b": {"type": "string"}}}
    parameters = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    for strict in (None, False, True):
        function = Function(name="f", parameters=parameters, strict=strict)
        closed = must_call(form, [function], many=False, special={})
        assert accepts(closed, form.write([Call("f", {"a": {"b": "x"}})]))
        for more in ({"a": {}, "c": 1}, {"a": {"c": 1}}):
            assert not accepts(closed, form.write([Call("f", more)]))
    free = Function(name="f", parameters=parameters | {"additionalProperties": True}, strict=True)
    open_ = must_call(form, [free], many=False, special={})
    assert accepts(open_, form.write([Call("f", {"a": {}, "c": 1})]))
    assert not accepts(open_, form.write([Call("f", {"a": {"c": 1}})]))


def test_schemas_of_functions_mean_what_those_of_answers_do() -> None:
    """`oneOf` is any of them, formats that are not known are no more than a label."""
    parameters = {
        "type": "object",
        "properties": {
            "format": {"type": "string", "format": "color"},
            "size": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        },
        "required": ["format", "size"],
    }
    for strict in (True, False):
        function = Function(name="f", parameters=parameters, strict=strict)
        for grammar in (
            must_call(HERMES, [function], many=False, special={}),
            may_call(HERMES, [function], many=False),
            call_or_json(HERMES, [function], ANSWER, many=False, special={}),
        ):
            assert accepts(grammar, HERMES.write([Call("f", {"format": "red", "size": 3})]))
            assert accepts(grammar, HERMES.write([Call("f", {"format": "red", "size": 0.5})]))
            assert not accepts(grammar, HERMES.write([Call("f", {"format": "red", "size": "3"})]))
            assert not accepts(grammar, HERMES.write([Call("f", {"size": 3})]))
