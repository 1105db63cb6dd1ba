"""JSON schemas as clients mean them, before they are compiled to grammars."""

from typing import Any
from urllib.parse import unquote

from stridelm.serve.errors import ApiError

Schema = dict[str, Any]
Path = tuple[str, ...]
"""A location in a schema, as the parts of a JSON pointer."""

_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
"""The formats that the grammar supports. By the standard, others are annotations only."""
_COMBINING = {"allOf", "anyOf", "oneOf"}
_CONDITIONS = {"not", "if", "then", "else", "contains", "dependentSchemas", "dependencies"}
"""Keywords whose schemas test a value, or apply only to some values: they never describe a value completely."""
_PARTS = _COMBINING | _CONDITIONS | {"$ref"}
"""Keywords by which other schemas describe the same value."""
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
"""Keywords that hold schemas by name."""
_INSIDE = {
    *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("items", "prefixItems", "additionalItems", "unevaluatedItems"),
}
"""Keywords that describe the contents of an object or a list."""
_DESCRIBING = _PARTS | _INSIDE | {"required"}
_ADDING = _PARTS | {"patternProperties", "unevaluatedProperties"}
"""Keywords by which an object may have properties besides those named in `properties`."""
_VALUES = {"const", "enum", "default", "example", "examples"}
"""Keywords that hold values, which may look like schemas."""
_PASSES = 8


def meant(schema: Schema, *, closes: bool = True) -> Schema:
    """The schema, rewritten: an object has the properties that its schema names and no others, unless the schema says
    otherwise. Clients mean this even if they do not say so, and a model that may go on adding properties does. `oneOf`
    is treated as any of its schemas, since the grammar cannot count matches. The schema must not be nested deeply.
    `closes`: False leaves objects as open as they are by the standard."""
    opened: set[Path] = set()
    for _ in range(_PASSES if closes else 0):
        reading = _Reading(opened)
        made = reading.schema(schema, (), closes=True)
        if reading.added_to <= opened:
            return made
        opened |= reading.added_to  # schemas that these refer to may have to be open, too
    return _Reading(None).schema(schema, (), closes=False)


class _Reading:
    """One pass over a schema."""

    def __init__(self, opened: set[Path] | None) -> None:
        """`opened`: locations of schemas that somewhere describe only a part of an object; None: all do."""
        self._opened = opened
        self.added_to: set[Path] = set()
        """Locations that are referred to from a place where other schemas may name more properties."""

    def schema(self, schema: Schema, path: Path, *, closes: bool) -> Schema:
        """`closes`: False if other schemas may name more properties."""
        if "x-guidance" in schema:
            raise ApiError(400, "the schema cannot be used: x-guidance is not supported")
        closes = closes and self._opened is not None and path not in self._opened
        made = {name: self._keyword(schema, name, (*path, name), closes=closes) for name in schema}
        if isinstance(form := made.get("format"), str) and form not in _FORMATS:
            del made["format"]
        if isinstance(reference := made.get("$ref"), str) and not (closes and _is_alone(schema, "$ref")):
            self.added_to.add(_place(reference))
        if closes and _is_complete(made):
            made.setdefault("additionalProperties", False)
        return made

    def _keyword(self, schema: Schema, name: str, path: Path, *, closes: bool) -> object:
        held = schema[name]
        if name in _VALUES:
            return held
        if name in _COMBINING:
            is_whole = closes and _is_alone(schema, name) and (name != "allOf" or _is_one(held))
        elif name in _INSIDE:
            is_whole = closes and not _is_refined(schema)
        else:  # definitions are complete, wherever they are, also under keywords that only references use
            is_whole = name not in _CONDITIONS
        if isinstance(held, list):
            return [self._inside(each, (*path, str(number)), is_whole) for number, each in enumerate(held)]
        if isinstance(held, dict) and name in _NAMED:
            return {key: self._inside(each, (*path, key), is_whole) for key, each in held.items()}
        return self._inside(held, path, is_whole)

    def _inside(self, held: object, path: Path, is_whole: bool) -> object:
        return self.schema(held, path, closes=is_whole) if isinstance(held, dict) else held


def _is_alone(schema: Schema, name: str) -> bool:
    """Whether no other keyword of the schema describes the same value."""
    return not schema.keys() & _DESCRIBING - {name}


def _is_one(held: object) -> bool:
    return isinstance(held, list) and len(held) == 1


def _is_refined(schema: Schema) -> bool:
    """Whether other schemas may describe more of an object's contents: those that only require properties do not."""
    parts = [part for name in schema.keys() & _COMBINING for part in _listed(schema[name])]
    is_required_only = all(isinstance(part, dict) and not part.keys() & _DESCRIBING - {"required"} for part in parts)
    return not is_required_only or bool(schema.keys() & _PARTS - _COMBINING)


def _listed(held: object) -> list[object]:
    return held if isinstance(held, list) else [held]


def _is_complete(schema: Schema) -> bool:
    """Whether the schema names all properties of an object, and nothing else in it may name more."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return not schema.keys() & _ADDING and all(name in properties for name in required if isinstance(name, str))


def _place(reference: str) -> Path:
    """The location that a reference within the schema points to; the grammar follows no others (URLs, anchors)."""
    pointer = unquote(reference.removeprefix("#"))
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
