"""How much a body may hold: what is too much is refused by the field that holds it, before anything looks at it."""

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, models, normalizers
from tokenizers import Tokenizer as Backend

from stridelm.models.tokenizer import Tokenizer
from stridelm.serve.errors import ApiError
from stridelm.serve.http.bounds import parse
from stridelm.serve.text_bound import TextBound
from tokenizer_folders import KINDS

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


# Texts

NORMALIZERS: dict[str, normalizers.Normalizer | None] = {
    "none": None,
    "composed": normalizers.NFC(),
    "stripped": normalizers.Strip(),
    "collapsed": normalizers.Replace(Regex(r"\s+"), " "),
    "Bert's": normalizers.BertNormalizer(),
    "shortened": normalizers.Replace("word", "w"),
    "without accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
}
TEXTS = [
    "word " * 4000,
    " " * 20_000,
    "\n\u3000\t" * 7000,
    "e\u0301\x00" * 7000,
    "\u4e2d" * 20_000,
    "<end>" + " " * 20_000,
]


def byte_level(normalizer: normalizers.Normalizer | None = None, *, strips: bool = False) -> Tokenizer:
    backend = KINDS["byte level"]()
    if normalizer is not None:
        backend.normalizer = normalizer  # type: ignore[assignment]
    backend.add_special_tokens([AddedToken("<end>", rstrip=strips, special=True)])
    return Tokenizer(backend, special_tokens={})


TOKENIZERS = {
    **{name: lambda normalizer=normalizer: byte_level(normalizer) for name, normalizer in NORMALIZERS.items()},
    "stripping": lambda: byte_level(strips=True),
    "of nothing": lambda: Tokenizer(Backend(models.BPE()), special_tokens={}),
    **{name: lambda make=make: Tokenizer(make(), special_tokens={}) for name, make in KINDS.items()},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_text_that_is_refused_by_its_characters_has_too_many_tokens(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    bound = TextBound(tokenizer, 100)
    refused = [text for text in TEXTS if bound.excess([text])]
    assert all(len(tokenizer.encode(text, add_special_tokens=False)) > 100 for text in refused)
    # Of those that have a bound, words are refused.
    has_bound = name in ("none", "composed", "stripped", "stripping", "byte level", "byte fallback")
    assert (TEXTS[0] in refused) == has_bound
    assert not bound.excess(["word"] * 20)
