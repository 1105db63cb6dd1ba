"""How much a body may hold. Everything is counted before it is looked at, so that no body takes long."""

from typing import Any

import orjson

from stridelm.serve.errors import ApiError

_BRACKETS = 200_000
"""Opening brackets of a body, those in strings as well: 200,000 empty lists take 40 ms to read."""
_FIELDS = 1024
"""Of one object."""
_VALUES = 100_000
"""All that lists and objects hold, however deep, but for lists of tokens."""
_LISTS = 4096
"""Prompts of one request."""
_OF_TOKENS = ("prompt", "tokens")
"""Fields that may be long lists of numbers."""


def parse(body: bytes, most_tokens: int) -> Any:
    """What a body says, if it is JSON and not too much of it. `most_tokens`: the longest list of tokens."""
    if not body:
        raise ApiError(400, "the body is empty: it must be a JSON object")
    if body.count(b"[") + body.count(b"{") > _BRACKETS:
        raise ApiError(400, f"the body has more than {_BRACKETS} opening brackets")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if isinstance(value, dict):
        _check_object(value, None)
        left = _VALUES
        for name, held in value.items():
            if name in _OF_TOKENS:
                _check_tokens(held, name, most_tokens)
            else:
                left = _counted(held, name, left)
    return value


def _counted(value: object, name: str, left: int) -> int:
    """How many values may still come behind this one."""
    level = [value]
    while level:
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                _check_object(each, name)
            if isinstance(each, dict | list):
                left -= len(each)
                if left < 0:
                    raise ApiError(400, f"{name}: it holds too much, a body may hold {_VALUES} values", param=name)
                inner += each.values() if isinstance(each, dict) else each
        level = inner
    return left


def _check_object(value: dict[str, Any], name: str | None) -> None:
    if len(value) > _FIELDS:
        where = name or "the body"
        raise ApiError(400, f"{where}: an object of {len(value)} fields, there may be {_FIELDS}", param=name)


def _check_tokens(value: object, name: str, most: int) -> None:
    if not isinstance(value, list):
        return
    is_many = bool(value) and not isinstance(value[0], int)
    if len(value) > (_LISTS if is_many else most):
        if is_many:
            raise ApiError(400, f"{name}: a list of {len(value)}, there may be {_LISTS}", param=name)
        raise too_long(name, f"{len(value)} tokens", most)
    for each in value if is_many else ():
        if isinstance(each, list) and len(each) > most:
            raise too_long(name, f"{len(each)} tokens", most)


def too_long(name: str, what: str, most: int) -> ApiError:
    """A prompt that does not fit."""
    message = f"{name}: these are {what}, but the model takes {most} tokens with the answer"
    return ApiError(400, message, param=name, code="context_length_exceeded")
