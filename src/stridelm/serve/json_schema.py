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
_BESIDE = {"not", "if", "then", "else"}
"""Those of them that speak of the object that they stand in."""
_ADDING = {"allOf", "anyOf", "oneOf", "$ref", "if", "patternProperties", "unevaluatedProperties", "dependentSchemas"}
"""Keywords by which an object may have properties that are not named beside them."""


def meant(schema: Schema, *, closes: bool = True) -> Schema:
    """An object has the properties that its schema names and no others, unless the schema says otherwise: clients mean
    it so, also where they do not say, and a model that may go on naming properties does. `oneOf` is any of them: the
    grammar cannot count. The schema must not nest deep. `closes`: False where other schemas may name more properties.
    """
    if "x-guidance" in schema:
        raise ApiError(400, "the schema cannot be used: x-guidance is not supported")
    made = dict(schema)
    if isinstance(form := made.get("format"), str) and form not in _FORMATS:
        del made["format"]
    if closes and _is_complete(made):
        made.setdefault("additionalProperties", False)
    for name in _ONE:
        if isinstance(made.get(name), dict):
            made[name] = meant(made[name], closes=name not in _BESIDE)
    for name in _MANY:
        if isinstance(made.get(name), list):
            is_alone = name == "prefixItems" or (name != "allOf" and "properties" not in made)
            made[name] = [_meant(each, is_alone and (closes or name == "prefixItems")) for each in made[name]]
    for name in _NAMED:
        if isinstance(made.get(name), dict):
            made[name] = {key: _meant(each, name != "dependentSchemas") for key, each in made[name].items()}
    return made


def _is_complete(schema: Schema) -> bool:
    """Whether it names all properties of an object: nothing else in it may name more."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return not schema.keys() & _ADDING and all(name in properties for name in required if isinstance(name, str))


def _meant(schema: object, closes: bool) -> object:
    return meant(schema, closes=closes) if isinstance(schema, dict) else schema
