"""Requests that mean no good, or mean well and err: each gets an answer or a refusal, and the server outlives all."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest
from pydantic import BaseModel

from real_server import NAME, ThreadServer, serve_in_thread, until
from stridelm.api import LanguageModel
from stridelm.serve.messages.request import MessagesRequest
from stridelm.serve.responses.request import LOGPROBS, ResponsesRequest
from stridelm.serve.schemas.chat import ChatRequest
from stridelm.serve.schemas.common import GenerationFields
from stridelm.serve.schemas.text import CompletionRequest
from stridelm.serve.settings import ServeSettings
from stridelm.settings import DECODERS

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": NAME, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 3},
    TEXT: {"model": NAME, "prompt": "hello", "max_tokens": 4, "seed": 3},
    RESPONSES: {"model": NAME, "input": "hello", "max_output_tokens": 4, "seed": 3},
    MESSAGES: {"model": NAME, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 3},
}
SCHEMAS: dict[str, type[BaseModel]] = {
    CHAT: ChatRequest,
    TEXT: CompletionRequest,
    RESPONSES: ResponsesRequest,
    MESSAGES: MessagesRequest,
}
REPLIES = {CHAT: "choices", TEXT: "choices", RESPONSES: "output", MESSAGES: "content"}
"""The field that has the answer."""
NUMBERS = (
    *(str(2**63), str(2**64), "1" + "0" * 400, "-1", "0", "1", "0.5", "1e308", "-1e308", "1e999", "-0.0", "1e-320"),
    *("NaN", "Infinity", "-Infinity", "true", '"7"', "null", "[]", "{}"),
)
"""JSON, or what is taken for it."""
NO_JSON = ("NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400)
"""Not read at all, so that no field can be named; the last two are infinite as floating-point numbers."""
LOSSY = ("adaptive", "static")


@pytest.fixture(scope="module")
def server(roomy_model: LanguageModel) -> Iterator[ThreadServer]:
    with serve_in_thread(roomy_model, ServeSettings(port=0, grace=0)) as running:
        yield running
        assert_unharmed(running)


@pytest.fixture(scope="module")
def client(server: ThreadServer) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


def assert_unharmed(server: ThreadServer) -> None:
    """Nothing is open, no block of any cache is lost, and it goes on."""
    with server.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.post(TEXT, json=BODIES[TEXT]).status_code == 200
    model, worker = server.context.model, server.context.worker
    assert model.loaded.draft is not None
    for cache in (model.engine.forward.cache, model.loaded.draft.forward.cache):
        until(lambda cache=cache: cache.free_blocks == cache.block_count)
        cache.check_integrity()
    assert worker.waiting == 0


def post(client: httpx.Client, route: str, body: Any) -> httpx.Response:
    """`body`: an object, or text that may not even be JSON."""
    content = body if isinstance(body, str) else json.dumps(body)
    return client.post(route, content=content, headers={"content-type": "application/json"})


def answered(reply: httpx.Response) -> dict[str, Any] | None:
    """The error, in OpenAI's form, unless there is an answer. Anthropic's does not name the field, but its message
    begins with it."""
    route = reply.request.url.path
    if reply.status_code == 200:
        assert reply.json()[REPLIES[route]]
        return None
    assert 400 <= reply.status_code < 500, reply.text
    error = reply.json()["error"]
    if route.startswith(MESSAGES):
        error |= {"param": error["message"], "code": reply.status_code}
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert error["message"] and "Traceback" not in error["message"]
    return error


def numbers(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The path of every field that takes a whole number or a number, also inside of others."""
    for name, field in model.model_fields.items():
        kinds = set(_leaves(field.annotation))
        if kinds & {int, float}:
            yield (name,)
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from ((name, *inner) for inner in numbers(kind))


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    if not get_args(annotation):
        yield annotation
    for inner in get_args(annotation):
        yield from _leaves(inner)


FIELDS = [
    (route, path)
    for route, schema in SCHEMAS.items()
    for path in numbers(schema)
    if route in (CHAT, TEXT) or path[0] not in GenerationFields.model_fields  # which all routes share
]


def test_the_fields_with_numbers_are_found() -> None:
    found = {".".join(path) for _, path in FIELDS}
    assert {
        "max_tokens",
        "top_logprobs",
        "temperature",
        "logit_bias",
        "prompt",
        "stride.k",
        "stride.tolerance",
        "max_output_tokens",
        "thinking.budget_tokens",
    } <= found


@pytest.mark.parametrize(("route", "path"), FIELDS, ids=lambda part: part if isinstance(part, str) else ".".join(part))
def test_any_number_is_answered_or_refused(client: httpx.Client, route: str, path: tuple[str, ...]) -> None:
    statuses: dict[str, int] = {}
    for number in NUMBERS:
        more = {"logprobs": True} if route == CHAT else {"include": [LOGPROBS]}
        body = BODIES[route] | (more if path == ("top_logprobs",) else {})
        place: Any = "HERE"
        for name in reversed(path[1:]):
            place = {name: place}
        reply = post(client, route, json.dumps(body | {path[0]: place}).replace('"HERE"', number))
        error = answered(reply)
        statuses[number] = reply.status_code
        if error is not None and number not in NO_JSON:
            assert str(error["param"]).startswith(path[0]), (number, error)
    assert {statuses[number] for number in NO_JSON} == {400}
    if path[0] not in ("logit_bias", "prompt", "messages", "chat_template_kwargs", "thinking"):
        wrong = ('"7"', "[]", "{}", "true", "-1e308", "1e308")
        assert {statuses[number] for number in wrong} == {400}, statuses
        assert statuses["null"] == (400 if SCHEMAS[route].model_fields[path[0]].is_required() else 200), statuses
    assert 400 in statuses.values()


@pytest.mark.parametrize("path", [("logit_bias", "65"), ("prompt", 0), ("prompt", 0, 0)], ids=str)
def test_any_number_inside_of_others_too(client: httpx.Client, path: tuple[Any, ...]) -> None:
    for number in NUMBERS:
        place: Any = "HERE"
        for part in reversed(path[1:]):
            place = {part: place} if isinstance(part, str) else [place]
        reply = post(client, TEXT, json.dumps(BODIES[TEXT] | {path[0]: place}).replace('"HERE"', number))
        error = answered(reply)
        assert error is None or number in NO_JSON or str(error["param"]).startswith(path[0])
        assert (error is None) <= (number in ("0", "1", "0.5", "-1", "-0.0", "1e-320", '"7"')), (number, reply.text)


def chat_of(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        pytest.param(TEXT, {"prompt": ""}, "prompt", id="empty text"),
        pytest.param(TEXT, {"prompt": []}, "prompt", id="no prompts"),
        pytest.param(TEXT, {"prompt": [""]}, "prompt", id="empty among prompts"),
        pytest.param(TEXT, {"prompt": [[]]}, "prompt", id="no tokens"),
        pytest.param(TEXT, {"prompt": ["hello", [1]]}, "prompt", id="text and tokens"),
        pytest.param(TEXT, {"prompt": [1, "hello"]}, "prompt", id="tokens and text"),
        pytest.param(TEXT, {"prompt": "x" * 5000}, "prompt", id="text over the context"),
        pytest.param(TEXT, {"prompt": [1] * 200_000}, "prompt", id="tokens over the context"),
        pytest.param(TEXT, {"prompt": ["x"] * 5000}, "prompt", id="very many prompts"),
        pytest.param(TEXT, {"prompt": ["x"] * 300}, "prompt", id="more prompts than may wait"),
        pytest.param(TEXT, {"prompt": [999]}, "prompt", id="a token that is none"),
        pytest.param(CHAT, {"messages": []}, "messages", id="no messages"),
        pytest.param(CHAT, chat_of("x" * 5000), "messages", id="chat over the context"),
        pytest.param(CHAT, chat_of([]), "messages.0.content", id="no parts"),
        pytest.param(CHAT, chat_of([{"type": "image_url"}]), "messages.0.content", id="a picture"),
        pytest.param(
            CHAT, {"messages": [{"role": "user", "content": "x"}] * 10_000}, "messages", id="very many messages"
        ),
        pytest.param(CHAT, {"messages": [{"role": "ghost", "content": "x"}]}, "messages.0", id="a role that is none"),
        pytest.param(CHAT, schema_format(nested(40)), "response_format", id="a deep schema"),
        pytest.param(CHAT, schema_format({"enum": ["x" * 70_000]}), "response_format", id="a huge schema"),
        pytest.param(CHAT, schema_format({"$ref": "#/$defs/a"}), "response_format", id="a reference to nothing"),
        pytest.param(CHAT, schema_format({"type": "psychic"}), "response_format", id="a type that is none"),
        pytest.param(TEXT, {"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias", id="a huge bias"),
        pytest.param(TEXT, {"logit_bias": {"999": 1}}, "logit_bias", id="a bias for a token that is none"),
        pytest.param(TEXT, {"logit_bias": {"٣": 1}}, "logit_bias", id="a bias by other digits"),
        pytest.param(TEXT, {"stop": ["x"] * 10_000}, "stop", id="a huge list of stops"),
        pytest.param(TEXT, {"stop": "x" * 1000}, "stop", id="a long stop"),
        pytest.param(TEXT, {"stop": ["a", ""]}, "stop", id="an empty stop"),
        pytest.param(TEXT, {"n": 1000}, "n", id="very many answers"),
        pytest.param(TEXT, {"a_field_of_the_future": 1}, "a_field_of_the_future", id="an unknown field"),
        pytest.param(RESPONSES, {"input": "x" * 5000}, "input", id="input over the context"),
        pytest.param(RESPONSES, {"input": [{"content": []}]}, "input.0", id="an item of no role"),
        pytest.param(RESPONSES, {"input": [{"role": "user", "content": "x"}] * 10_000}, "input", id="very many items"),
        pytest.param(RESPONSES, {"input": [{"type": ["message"]}]}, "input.0", id="an item whose type is a list"),
        pytest.param(RESPONSES, {"prompt": {"a": [0] * 200_000}}, "prompt", id="a stored prompt"),
        pytest.param(MESSAGES, {"messages": [{"role": "user", "content": "x"}] * 10_000}, "messages", id="many turns"),
        pytest.param(MESSAGES, {"system": "x" * 5000}, "messages", id="a system message over the context"),
        pytest.param(MESSAGES, {"stop_sequences": ["x"] * 10_000}, "stop_sequences", id="a huge list of sequences"),
        pytest.param(
            MESSAGES, {"tools": [{"name": "x" * 10**6, "input_schema": {}}]}, "tools.0.name", id="a long name"
        ),
    ],
)
def test_what_is_refused(client: httpx.Client, route: str, fields: dict[str, Any], param: str) -> None:
    reply = post(client, route, BODIES[route] | fields)
    error = answered(reply)
    assert reply.status_code == 400 and error is not None
    assert str(error["param"]).startswith(param) and len(error["message"]) < 2000


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        pytest.param(TEXT, {"prompt": "\0"}, id="NUL"),
        pytest.param(CHAT, chat_of("\0\u0001\ufffe\U0010ffff"), id="control characters"),
        pytest.param(CHAT, chat_of(""), id="an empty message"),
        pytest.param(TEXT, {"prompt": "e" + "\u0301" * 400}, id="a pile of accents"),
        pytest.param(TEXT, {"prompt": "<eos>" * 50}, id="special tokens as text"),
        pytest.param(TEXT, {"logit_bias": {str(n): -100 for n in range(260)}}, id="a bias for every token"),
        pytest.param(TEXT, {"stop": [str(n) * 16 for n in range(16)]}, id="as many stops as may be"),
        pytest.param(TEXT, {"prompt": [[0], [259]], "n": 16}, id="as many answers as may be"),
        pytest.param(CHAT, schema_format({}), id="a schema of anything"),
        pytest.param(TEXT, {"temperature": 1e-320}, id="a temperature next to none"),
        pytest.param(TEXT, {"temperature": 100, "min_p": 1, "top_k": 1, "top_p": 1e-6}, id="nothing but the best"),
    ],
)
def test_what_is_odd_and_answered(client: httpx.Client, route: str, fields: dict[str, Any]) -> None:
    assert answered(post(client, route, BODIES[route] | fields)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"x" * 10**6: 1},
        {"model": "x" * 1024},
        {"tool_choice": "x" * 10**6},
        {"logit_bias": {"x" * 10**6: 1}},
        {"stride": {"decoder": "x" * 10**6}},
        {"stride": {"x" * 10**6: 1}},
        {"messages": [{"role": "x" * 10**6, "content": ""}]},
        {"messages": [{"role": "tool", "content": "", "tool_call_id": "x" * 256}]},
        schema_format({"type": "x" * 10**4}),
        schema_format({"$ref": "x" * 10**4}),
        schema_format({"pattern": "(" * 10**4}),
    ],
    ids=lambda fields: next(iter(fields))[:20],
)
def test_a_refusal_does_not_repeat_all_that_was_said(client: httpx.Client, fields: dict[str, Any]) -> None:
    reply = post(client, CHAT, BODIES[CHAT] | fields)
    assert answered(reply) and len(reply.content) < 4000


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{"model": "tiny", "prompt": "\\ud800"}', id="a lone surrogate"),
        pytest.param('{"model": "tiny", "prompt": "x", "stop": "\\udfff\\ud800"}', id="surrogates the wrong way"),
        pytest.param('{"model": "tiny", "prompt": ' + "[" * 100_000 + "]" * 100_000 + "}", id="deep nesting"),
        pytest.param('{"model": "tiny", "prompt": ' + "[" * 200 + "]" * 200 + "}", id="some nesting"),
        pytest.param('{"a":' * 50_000 + "1" + "}" * 50_000, id="deep objects"),
        pytest.param("[]", id="a list"),
        pytest.param("null", id="nothing"),
        pytest.param("", id="empty"),
        pytest.param("{", id="cut off"),
        pytest.param('{"model": "tiny", "prompt": "x"} {}', id="two objects"),
        pytest.param('{"model": "tiny", "prompt": "x", "\\u0000": 1}', id="a field named NUL"),
    ],
)
@pytest.mark.parametrize("route", [*BODIES, f"{MESSAGES}/count_tokens", "/tokenize", "/detokenize"])
def test_bodies_that_cannot_be_read(client: httpx.Client, route: str, body: str) -> None:
    reply = post(client, route, body)
    assert reply.status_code == 400 and answered(reply), reply.text


SAMPLING: tuple[dict[str, Any], ...] = (
    *({"temperature": 0}, {"temperature": 1.7}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.2}, {"seed": 2**63 - 1}),
    *({"presence_penalty": 2}, {"frequency_penalty": -2}, {"repetition_penalty": 1.3}, {"logit_bias": {"65": 5}}),
    *({"stop": ["a", "b"]}, {"n": 2}, {"stream": True}),
)
FORM = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_takes_every_parameter(client: httpx.Client, decoder: str) -> None:
    own = {"stride": {"decoder": decoder}}
    everything: dict[str, Any] = {}
    for fields in SAMPLING:
        for route in (CHAT, TEXT):
            reply = post(client, route, BODIES[route] | own | fields)
            assert reply.status_code == 200, (fields, reply.text)
        everything |= fields
    assert post(client, CHAT, BODIES[CHAT] | own | FORM).status_code == 200
    assert post(client, CHAT, BODIES[CHAT] | own | FORM | everything).status_code == 200
    for route, fields in (
        (CHAT, {"logprobs": True, "top_logprobs": 2}),
        (TEXT, {"logprobs": 2}),
        (TEXT, {"logprobs": 0}),
    ):
        reply = post(client, route, BODIES[route] | own | fields)
        if decoder in LOSSY:
            assert reply.status_code == 400 and reply.json()["error"]["param"] == "logprobs"
        else:
            assert reply.status_code == 200, reply.text
