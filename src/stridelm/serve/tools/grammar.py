"""Grammars that make a model call functions, in its own format."""

import json
from typing import Any

from stridelm.serve.grammars.compile import SPACING, WHITE_SPACE
from stridelm.serve.grammars.json_schema import meant
from stridelm.serve.schemas.chat import Function
from stridelm.serve.tools.forms import ToolFormat

_NO_ARGUMENTS: dict[str, Any] = {"properties": {}, "additionalProperties": False}
# If any white space were allowed, a weak model could write nothing else.
_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", ", "coerce_one_of": True}


def must_call(
    form: ToolFormat, functions: list[Function], *, many: bool, special: dict[str, int], closes: bool = True
) -> str:
    """A Lark grammar for one or more calls. `special`: the tokenizer's special tokens, which text is never encoded to,
    by name; `closes`: as in `meant`, here and below."""
    more = f"({_quoted(form.between)} call)*" if many and form.between else ""
    begin = next((name for name in special if form.begin.startswith(name)), "")
    opening = f"<[{special[begin]}]> " if begin else ""
    rest = form.begin.removeprefix(begin)
    start = f"start: {opening}{_literal(rest)}call {more} {_literal(form.end)}"
    return "\n".join(
        [start, f"call: {_literal(form.before)}body {_literal(form.after)}", *_bodies(form, functions, closes)]
    )


def call_or_json(
    form: ToolFormat,
    functions: list[Function],
    schema: dict[str, Any],
    *,
    many: bool,
    special: dict[str, int],
    closes: bool = True,
) -> str:
    """A grammar for one or more calls, or for JSON that matches a schema."""
    start, call, *bodies = must_call(form, functions, many=many, special=special, closes=closes).split("\n")
    if not (form.begin or form.before):
        bodies = _loose_bodies(form, functions, closes)
    answer = json.dumps({**schema, "x-guidance": SPACING})
    return "\n".join([start.replace("start:", "start: answer |", 1), f"answer: %json {answer}", call, *bodies])


def may_call(form: ToolFormat, functions: list[Function], *, many: bool, closes: bool = True) -> str:
    """A grammar for text without a call, or for text followed by calls that match their schemas."""
    opening = form.openings[0]
    assert form.opens_anywhere and form.before.startswith(opening)
    rest = form.before.removeprefix(opening)
    more = f"({_quoted(form.between + opening)} call)*" if many else ""
    return "\n".join(
        [
            f"start: TEXT | OPENED call {more}",
            f"TEXT: /(?s:.*)/ & ~/(?s:.*{opening}.*)/",
            f"OPENED: TEXT {_quoted(opening)}",
            f"call: {_literal(rest)}body {_literal(form.after)}",
            *_bodies(form, functions, closes),
        ]
    )


def _bodies(form: ToolFormat, functions: list[Function], closes: bool) -> list[str]:
    """Each function's JSON is a rule of its own, because a schema's references are resolved from its own root."""
    lines = ["body: " + " | ".join(f"body_{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        opening = '{"name": ' + json.dumps(function.name) + ', "' + form.arguments + '": '
        parameters = meant(function.parameters or _NO_ARGUMENTS, closes=closes)
        schema = {**parameters, "type": "object", "x-guidance": _SPACING}
        lines.append(f'body_{index}: {_quoted(opening)} arguments_{index} "}}"')
        lines.append(f"arguments_{index}: %json {json.dumps(schema)}")
    return lines


def _loose_bodies(form: ToolFormat, functions: list[Function], closes: bool) -> list[str]:
    """The same in single JSON tokens, with white space between them. If a JSON answer can begin like a call, the lexer
    would match only the call's beginning if that were one long literal."""
    lines = ["body: " + " | ".join(f"body_{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        words = ("{", '"name"', ":", json.dumps(function.name), ",", f'"{form.arguments}"', ":")
        schema = {**meant(function.parameters or _NO_ARGUMENTS, closes=closes), "type": "object", "x-guidance": SPACING}
        lines.append(f"body_{index}: " + " WS? ".join(map(_quoted, words)) + f' WS? arguments_{index} WS? "}}"')
        lines.append(f"arguments_{index}: %json {json.dumps(schema)}")
    return [*lines, f"WS: /{WHITE_SPACE}/"]


def _quoted(text: str) -> str:
    return json.dumps(text)


def _literal(text: str) -> str:
    return f"{_quoted(text)} " if text else ""
