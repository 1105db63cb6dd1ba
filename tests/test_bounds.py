"""How much a body may hold: what is too much is refused by the field that holds it, before anything looks at it."""

import json
from typing import Any

import pytest

from stridelm.serve.bounds import parse
from stridelm.serve.errors import ApiError

MOST = 512


def refused(value: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        parse(value if isinstance(value, bytes) else json.dumps(value).encode(), MOST)
    assert raised.value.status == 400
    return raised.value


def nested(depth: int, inner: Any = 1) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": 1, "prompt": "x"},
        {str(number): 0 for number in range(1024)},
        {"logit_bias": {str(number): 0 for number in range(1024)}},
        {"prompt": [1] * MOST},
        {"prompt": [[1] * MOST] * 4096},
        {"prompt": ["x"] * 4096},
        {"tokens": [1] * MOST},
        {"stop": ["x"] * 100_000},
        {"messages": [{"role": "user", "content": "x"}] * 33_000},
        {"a": nested(200)},
        {"prompt": "[" * 199_999},
        [1, 2],
        3,
        None,
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_fits_is_read_as_it_is(value: Any) -> None:
    assert parse(json.dumps(value).encode(), MOST) == value


@pytest.mark.parametrize(
    ("value", "param", "words"),
    [
        ({str(number): 0 for number in range(1025)}, None, "the body: an object of 1025 fields, there may be 1024"),
        ({"logit_bias": {str(number): 0 for number in range(1025)}}, "logit_bias", "an object of 1025 fields"),
        ({"tools": [{"a": [{str(number): 0 for number in range(1025)}]}]}, "tools", "an object of 1025 fields"),
        ({"stop": ["x"] * 100_001}, "stop", "it holds too much, a body may hold 100000 values"),
        ({"a": [0] * 60_000, "b": [[0] * 300] * 150}, "b", "it holds too much"),
        ({"messages": [{"role": "user", "content": "x"}] * 34_000}, "messages", "it holds too much"),
        ({"prompt": ["x"] * 4097}, "prompt", "a list of 4097, there may be 4096"),
        ({"prompt": [[1]] * 4097}, "prompt", "a list of 4097"),
        ({"prompt": "[" * 200_000}, None, "more than 200000 opening brackets"),
        ({"prompt": "[{" * 100_000}, None, "more than 200000 opening brackets"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_is_too_much_is_refused_by_name(value: Any, param: str | None, words: str) -> None:
    error = refused(value)
    assert error.param == param and words in error.message and error.message.startswith(param or "the body")


@pytest.mark.parametrize("value", [{"prompt": [1] * 513}, {"prompt": [[1], [1] * 513]}, {"tokens": [1] * 513}], ids=len)
def test_more_tokens_than_the_model_takes_are_told_as_such(value: dict[str, Any]) -> None:
    error = refused(value)
    assert error.code == "context_length_exceeded" and error.param in value
    assert "513 tokens" in error.message and "512" in error.message


def test_what_is_no_json_is_told() -> None:
    assert refused(b"").message == "the body is empty: it must be a JSON object"
    for body in (b" ", b"{", b"{'a': 1}", b"NaN", b'"\\ud800"', b"\xff", b"[" * 100_000, b"{} {}"):
        error = refused(body)
        assert error.message.startswith("the body is not JSON: ") and error.param is None
