"""Limits on a body's content. Everything is counted before it is validated, so that no body takes long to check."""

from typing import Any

import orjson

from stridelm.serve.errors import ApiError

_MAX_BRACKETS = 200_000
"""Maximum number of opening brackets in a body, including those in strings: 200,000 empty lists take 40 ms to parse."""
_MAX_FIELDS = 1024
"""Maximum number of fields of an object."""
_MAX_VALUES = 100_000
"""Maximum number of values in all lists and objects together, at any depth; lists of tokens do not count."""
_MAX_PROMPTS = 4096
"""Maximum number of prompts per request."""
_TOKEN_FIELDS = ("prompt", "tokens")
"""Fields that may be long lists of numbers."""


def parse(body: bytes, most_tokens: int) -> Any:
    """Parse a body, if it is JSON and within the limits. `most_tokens`: maximum length of a list of tokens."""
    if not body:
        raise ApiError(400, "the body is empty: it must be a JSON object")
    if body.count(b"[") + body.count(b"{") > _MAX_BRACKETS:
        raise ApiError(400, f"the body has more than {_MAX_BRACKETS} opening brackets")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if isinstance(value, dict):
        _check_object(value, None)
        left = _MAX_VALUES
        for name, held in value.items():
            if name in _TOKEN_FIELDS:
                _check_tokens(held, name, most_tokens)
            else:
                left = _count_values(held, name, left)
    return value


def _count_values(value: object, name: str, left: int) -> int:
    """Count the values inside `value`; returns how many more values the body may have."""
    level = [value]
    while level:
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                _check_object(each, name)
            if isinstance(each, dict | list):
                left -= len(each)
                if left < 0:
                    raise ApiError(400, f"{name}: it holds too much, a body may hold {_MAX_VALUES} values", param=name)
                inner += each.values() if isinstance(each, dict) else each
        level = inner
    return left


def _check_object(value: dict[str, Any], name: str | None) -> None:
    if len(value) > _MAX_FIELDS:
        where = name or "the body"
        raise ApiError(400, f"{where}: an object of {len(value)} fields, there may be {_MAX_FIELDS}", param=name)


def _check_tokens(value: object, name: str, most: int) -> None:
    if not isinstance(value, list):
        return
    is_many = bool(value) and not isinstance(value[0], int)
    if len(value) > (_MAX_PROMPTS if is_many else most):
        if is_many:
            raise ApiError(400, f"{name}: a list of {len(value)}, there may be {_MAX_PROMPTS}", param=name)
        raise too_long(name, f"{len(value)} tokens", most)
    for each in value if is_many else ():
        if isinstance(each, list) and len(each) > most:
            raise too_long(name, f"{len(each)} tokens", most)


def too_long(name: str, what: str, most: int) -> ApiError:
    """The error for a prompt that does not fit."""
    message = f"{name}: these are {what}, but the model takes {most} tokens with the answer"
    return ApiError(400, message, param=name, code="context_length_exceeded")
