"""JSON schemas as requests mean them, before they are made grammars."""

from typing import Any

from stridelm.serve.errors import ApiError

Schema = dict[str, Any]

_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
"""Those that the grammar knows. The standard has others be annotations."""
_ONE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else", "unevaluatedItems")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold a schema, a list of schemas, schemas by name."""


def meant(schema: Schema, *, is_strict: bool) -> Schema:
    """`oneOf` is any of them: the grammar cannot count. Strict schemas are closed: what they do not name is not there.
    The schema must not nest deep."""
    if "x-guidance" in schema:
        raise ApiError(400, "the schema cannot be used: x-guidance is not supported")
    made = dict(schema)
    if isinstance(form := made.get("format"), str) and form not in _FORMATS:
        del made["format"]
    if is_strict and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    for name in _ONE:
        if isinstance(made.get(name), dict):
            made[name] = meant(made[name], is_strict=is_strict)
    for name in _MANY:
        if isinstance(made.get(name), list):
            made[name] = [_meant(each, is_strict) for each in made[name]]
    for name in _NAMED:
        if isinstance(made.get(name), dict):
            made[name] = {key: _meant(each, is_strict) for key, each in made[name].items()}
    return made


def _meant(schema: object, is_strict: bool) -> object:
    return meant(schema, is_strict=is_strict) if isinstance(schema, dict) else schema
