"""Schemas as clients mean them: made grammars by a real matcher, they take what was meant and nothing else."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from grammars import compiled
from stridelm.api import LanguageModel
from stridelm.serve.errors import ApiError
from stridelm.serve.grammars.compile import SPACING
from stridelm.serve.grammars.json_schema import meant

INTEGER = {"type": "integer"}
BASE: dict[str, Any] = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}
MORE: dict[str, Any] = {"type": "object", "properties": {"b": INTEGER}, "required": ["b"]}
TOKENIZER = LLTokenizer("byte")


def writes(schema: dict[str, Any], value: object) -> bool:
    """Whether the value may be a whole answer."""
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(meant(schema)), overrides=SPACING)
    assert not LLMatcher.validate_grammar(grammar, TOKENIZER)
    matcher = LLMatcher(TOKENIZER, grammar)
    tokens = TOKENIZER.tokenize_str(json.dumps(value))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def check(schema: dict[str, Any], right: list[Any], wrong: list[Any]) -> None:
    before = json.dumps(schema)
    for value in right:
        assert writes(schema, value), value
    for value in wrong:
        assert not writes(schema, value), value
    assert json.dumps(schema) == before  # it is a request's own


def test_one_of_is_any_of_them() -> None:
    check({"oneOf": [{"type": "integer"}, {"type": "number"}, {"const": "x"}]}, [3, 0.5, "x"], ["y", None])
    check({"oneOf": [BASE, MORE]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {}])
    check({"type": "array", "items": {"oneOf": [INTEGER, {"type": "null"}]}}, [[1, None]], [["x"]])


def test_formats_that_are_not_known_are_labels() -> None:
    for unknown in ("color", "int32", "phone", ""):
        check({"type": "string", "format": unknown}, ["red", ""], [3])
    check({"type": "string", "format": "date"}, ["2024-02-29"], ["today", "2024-13-01"])
    check({"type": "array", "items": {"type": "string", "format": "color"}}, [["red"]], [[1]])
    check({"$ref": "#/$defs/c", "$defs": {"c": {"type": "string", "format": "color"}}}, ["red"], [1])
    check({"$ref": "#/components/c", "components": {"c": {"type": "string", "format": "color"}}}, ["red"], [1])
    color = {"type": "string", "format": "color"}
    check({"type": "array", "items": [color]}, [["red"]], [[1]])
    check({"type": "array", "items": [INTEGER], "additionalItems": color}, [[1, "red"]], [[1, 1]])


def test_names_of_properties_are_no_keywords() -> None:
    properties = dict.fromkeys(("format", "oneOf", "properties", "x-guidance", "additionalProperties"), INTEGER)
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    whole = dict.fromkeys(properties, 1)
    check(schema, [whole], [whole | {"format": "x"}, {"format": 1}, whole | {"more": 1}])
    assert meant(schema)["properties"] == properties
    inner = {"type": "object", "properties": {"format": {"type": "string", "format": "color"}}, "required": ["format"]}
    assert meant(inner)["properties"] == {"format": {"type": "string"}}


def test_values_are_not_read_as_schemas() -> None:
    value = {"format": "color", "oneOf": [1], "x-guidance": 1, "properties": {}}
    for schema in ({"enum": [value]}, {"const": value}, {"default": value, "type": "integer"}, {"examples": [value]}):
        assert meant(schema) == schema
    check({"const": value}, [value], [{}])


def test_objects_are_closed_unless_the_schema_says_otherwise() -> None:
    check(BASE, [{"a": 1}], [{"a": 1, "b": 1}, {}])
    check({"type": "object", "properties": {}}, [{}], [{"a": 1}])
    check(BASE | {"additionalProperties": True}, [{"a": 1, "b": "x"}], [{}])
    check(BASE | {"additionalProperties": {"type": "string"}}, [{"a": 1, "b": "x"}], [{"a": 1, "b": 1}])
    check({"type": "object"}, [{}, {"a": 1}], [[]])
    check({}, [3, {"a": [1]}], [])


@pytest.mark.parametrize(
    ("around", "wrap"),
    [
        ({"type": "object", "properties": {"x": "HERE"}}, lambda value: {"x": value}),
        ({"type": "array", "items": "HERE"}, lambda value: [value]),
        ({"type": "array", "prefixItems": ["HERE"]}, lambda value: [value]),
        ({"anyOf": ["HERE", {"type": "null"}]}, lambda value: value),
        ({"oneOf": ["HERE", {"type": "null"}]}, lambda value: value),
        ({"$ref": "#/$defs/x", "$defs": {"x": "HERE"}}, lambda value: value),
        ({"$ref": "#/definitions/x", "definitions": {"x": "HERE"}}, lambda value: value),
        ({"type": "object", "patternProperties": {"^x$": "HERE"}}, lambda value: {"x": value}),
        ({"type": "object", "additionalProperties": "HERE"}, lambda value: {"x": value}),
    ],
    ids=lambda part: next(reversed(part)) if isinstance(part, dict) else "",
)
def test_objects_within_are_closed_too(around: dict[str, Any], wrap: Any) -> None:
    def within(schema: dict[str, Any]) -> dict[str, Any]:
        return json.loads(json.dumps(around).replace('"HERE"', json.dumps(schema)))

    check(within(BASE), [wrap({"a": 1})], [wrap({"a": 1, "b": 1})])
    check(within(BASE | {"additionalProperties": True}), [wrap({"a": 1, "b": 1})], [wrap({})])


def test_parts_of_an_object_are_not_closed() -> None:
    both = [{"a": 1, "b": 1}], [{"a": 1}, {"b": 1}]
    check({"allOf": [BASE, MORE]}, *both)
    check(BASE | {"allOf": [MORE]}, *both)
    check(BASE | {"anyOf": [MORE, {"properties": {"c": INTEGER}, "required": ["c"]}]}, [{"a": 1, "c": 1}], [{"a": 1}])
    check(BASE | {"required": ["a", "b"]}, [{"a": 1, "b": "x"}], [{"a": 1}])
    check(BASE | {"patternProperties": {"^x": INTEGER}}, [{"a": 1, "x1": 1}], [{"a": 1, "x1": "x"}])


def test_definitions_that_others_add_to_are_open() -> None:
    both = [{"a": 1, "b": 1}], [{"a": 1}, {"b": 1}]
    for name in ("$defs", "definitions"):
        reference = {"$ref": f"#/{name}/base"}
        check({"allOf": [reference, MORE], name: {"base": BASE}}, *both)
        check({**reference, **MORE, name: {"base": BASE}}, *both)
    check({"allOf": [{"$ref": "#/$defs/a~01b"}, MORE], "$defs": {"a~1b": BASE}}, *both)  # ~0 is ~, ~1 is /


OTHER: dict[str, Any] = {"type": "object", "properties": {"c": INTEGER}, "required": ["c"]}
DEFINED: dict[str, Any] = {"base": BASE, "other": OTHER}
BASE_REF, OTHER_REF = ({"$ref": f"#/$defs/{name}"} for name in DEFINED)


def in_property(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [{"type": "object", "properties": {"m": part}, "required": ["m"]} for part in parts]}


@pytest.mark.parametrize(
    "schema",
    [
        MORE | {"allOf": [BASE_REF]},
        MORE | {"oneOf": [BASE_REF, OTHER_REF]},
        MORE | {"anyOf": [BASE_REF, OTHER_REF]},
        BASE_REF | {"anyOf": [MORE, OTHER]},
        {"allOf": [BASE], "anyOf": [MORE, OTHER]},
        {"anyOf": [BASE, OTHER], "oneOf": [MORE, OTHER]},
        {"anyOf": [BASE, OTHER], "required": ["b"]},
        {"allOf": [{"anyOf": [BASE_REF, OTHER_REF]}, MORE]},
        {"$ref": "#/$defs/kid", "$defs": DEFINED | {"kid": MORE | {"allOf": [BASE_REF]}}},
        {
            "$ref": "#/$defs/kid",
            "$defs": DEFINED | {"kid": {"allOf": [{"$ref": "#/$defs/again"}, MORE]}, "again": BASE_REF},
        },
        {"type": "object", "additionalProperties": True, "anyOf": [BASE, OTHER]},
    ],
    ids=str,
)
def test_what_stands_beside_a_part_may_name_more(schema: dict[str, Any]) -> None:
    schema = {"$defs": DEFINED} | schema
    either = [{"a": 1, "b": 1}, {"b": 1, "a": 1}]  # the order is the grammar's own
    assert any(writes(schema, value) for value in either)
    assert not any(writes(schema, value | {"a": "x"}) for value in either)
    for missing in ({"a": 1},) if "additionalProperties" not in schema else ():
        assert not writes(schema, missing)


def test_what_two_parts_say_of_the_same_property_is_both() -> None:
    check(in_property(BASE, MORE), [{"m": {"a": 1, "b": 1}}], [{"m": {"a": 1}}, {"m": {"b": 1}}])
    properties = {"p": BASE, "q": {"allOf": [{"$ref": "#/properties/p"}, MORE]}}
    check({"type": "object", "properties": properties, "required": ["q"]}, [{"q": {"a": 1, "b": 1}}], [{"q": {"a": 1}}])
    items = {"type": "array", "items": BASE, "anyOf": [{"items": MORE}]}
    check(items, [[{"a": 1, "b": 1}]], [[{"a": 1}]])


def test_definitions_that_nobody_adds_to_stay_closed() -> None:
    """Also beside others, below an `allOf` of one, and where a part only requires properties."""
    schema = {
        "type": "object",
        "properties": {"x": {"allOf": [BASE_REF, MORE]}, "y": OTHER_REF},
        "required": ["y"],
        "$defs": DEFINED,
    }
    check(schema, [{"y": {"c": 1}}], [{"y": {"c": 1, "d": 1}}])
    check({"allOf": [BASE_REF], "title": "x", "$defs": DEFINED}, [{"a": 1}], [{"a": 1, "b": 1}])
    required = {"type": "object", "properties": {"x": BASE}, "anyOf": [{"required": ["x"]}, {"required": ["z"]}]}
    check(required, [{"x": {"a": 1}}], [{"x": {"a": 1, "b": 1}}])


def test_a_long_chain_of_parts_is_left_open() -> None:
    chain = {f"d{n}": {"type": "object", "properties": {"n": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(30)}
    schema = {"allOf": [{"$ref": "#/$defs/d0"}, MORE], "$defs": chain | {"d30": BASE}}
    assert meant(schema) == meant(schema, closes=False) == schema


def test_objects_may_be_left_open() -> None:
    schema = BASE | {"$defs": DEFINED, "properties": {"a": {"type": "string", "format": "color"}, "b": MORE}}
    assert meant(schema, closes=False) == schema | {"properties": {"a": {"type": "string"}, "b": MORE}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "x-guidance": {"lenient": True}},
        {"type": "object", "properties": {"a": {"x-guidance": {}}}},
        {"anyOf": [{"items": {"x-guidance": {}}}]},
    ],
    ids=str,
)
def test_what_speaks_to_the_library_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="x-guidance is not supported") as refused:
        meant(schema)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?<=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        ("a(?!b)", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        ("(", "unclosed group"),
        ("[z-a]", "invalid character class range"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_told_why(language_model: LanguageModel, pattern: str, reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        compiled(language_model, {"type": "string", "pattern": pattern})
    assert refused.value.status == 400 and reason in refused.value.message
    assert refused.value.message.startswith("the schema cannot be used: ") and "\n" not in refused.value.message
