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
_DEFINITIONS = ("$defs", "definitions")
_BESIDE = {"not", "if", "then", "else"}
"""Those of them that speak of the object that they stand in."""
_ADDING = {"allOf", "anyOf", "oneOf", "$ref", "if", "patternProperties", "unevaluatedProperties", "dependentSchemas"}
"""Keywords by which an object may have properties that are not named beside them."""


def meant(schema: Schema) -> Schema:
    """An object has the properties that its schema names and no others, unless the schema says otherwise: clients mean
    it so, also where they do not say, and a model that may go on naming properties does. `oneOf` is any of them: the
    grammar cannot count. The schema must not nest deep."""
    return _meant_of(schema, closes=True, closes_definitions=not _adds(schema))


def _meant_of(schema: Schema, *, closes: bool, closes_definitions: bool) -> Schema:
    """`closes`: False where other schemas may name more properties."""
    if "x-guidance" in schema:
        raise ApiError(400, "the schema cannot be used: x-guidance is not supported")

    def inside(held: object, closes: bool) -> object:
        is_schema = isinstance(held, dict)
        return _meant_of(held, closes=closes, closes_definitions=closes_definitions) if is_schema else held

    made = dict(schema)
    if isinstance(form := made.get("format"), str) and form not in _FORMATS:
        del made["format"]
    if closes and _is_complete(made):
        made.setdefault("additionalProperties", False)
    for name in _ONE:
        if isinstance(made.get(name), dict):
            made[name] = inside(made[name], name not in _BESIDE)
    for name in _MANY:
        if isinstance(made.get(name), list):
            is_alone = name == "prefixItems" or (name != "allOf" and "properties" not in made)
            made[name] = [inside(each, is_alone and (closes or name == "prefixItems")) for each in made[name]]
    for name in _NAMED:
        if isinstance(made.get(name), dict):
            is_whole = closes_definitions if name in _DEFINITIONS else name != "dependentSchemas"
            made[name] = {key: inside(each, is_whole) for key, each in made[name].items()}
    return made


def _is_complete(schema: Schema) -> bool:
    """Whether it names all properties of an object: nothing else in it may name more."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return not schema.keys() & _ADDING and all(name in properties for name in required if isinstance(name, str))


def _adds(schema: object) -> bool:
    """Whether a definition may be only a part of an object somewhere."""
    match schema:
        case dict():
            parts = schema.get("allOf")
            is_part = (
                isinstance(parts, list) and len(parts) > 1 and any(isinstance(p, dict) and "$ref" in p for p in parts)
            )
            return is_part or ("$ref" in schema and "properties" in schema) or any(map(_adds, schema.values()))
        case list():
            return any(map(_adds, schema))
    return False
