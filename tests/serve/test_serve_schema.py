"""What a request may hold: unknown fields, wrong types and numbers out of bounds are refused by name."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from asking import CHAT, TEXT, chat, refusal, text
from stridelm.api import LanguageModel
from stridelm.params import InputError
from stridelm.serve.http.json_body import depth

SHARED = [
    *("n", "seed", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logit_bias.65", "stride.k", "stride.k_max", "stride.threshold", "stride.tolerance"),
    *("stride.nodes", "max_tokens"),
]
NUMBERS = [(CHAT, name) for name in [*SHARED, "max_completion_tokens", "top_logprobs"]]
NUMBERS += [(TEXT, name) for name in [*SHARED, "logprobs", "prompt.0"]]
EXTREMES = ("9223372036854775808", "-1", "0", "1e308", "NaN", "-Infinity", "1.5", "true", '"1"', "1e999", "-0.0")
TAKEN_SOMEWHERE = ("-1", "0", "-0.0", "1.5")
JSON = {"content-type": "application/json"}


def body_with(path: str, place: str, value: str) -> bytes:
    """A request that says `value`, which need not be JSON, at a place."""
    body = chat(max_tokens=2) if path == CHAT else text(max_tokens=2)
    if place == "top_logprobs":
        body["logprobs"] = True
    if place == "max_completion_tokens":
        del body["max_tokens"]
    if place.startswith("stride."):
        body["stride"] = {"decoder": "adaptive" if place in ("stride.k_max", "stride.threshold") else "self"}
    names = place.split(".")
    if len(names) == 1:
        body[place] = "HERE"
    elif names[0] == "prompt":
        body["prompt"] = ["HERE"]
    else:
        body[names[0]] = body.get(names[0], {}) | {names[1]: "HERE"}
    return orjson.dumps(body).replace(b'"HERE"', value.encode())


@pytest.mark.parametrize(("path", "place"), NUMBERS)
def test_no_number_reaches_the_engine_that_should_not(client: TestClient, path: str, place: str) -> None:
    for value in EXTREMES:
        reply = client.post(path, content=body_with(path, place, value), headers=JSON)
        assert reply.status_code in (200, 400), (value, reply.text)
        if reply.status_code == 200:
            assert value in TAKEN_SOMEWHERE or (place, value) == ("prompt.0", '"1"')
        else:
            param = reply.json()["error"]["param"]
            assert param is None or place.startswith(param) or param.startswith(place.split(".")[0]), (value, param)
            assert (param is None) == (value in ("NaN", "-Infinity", "1e999")), (value, reply.text)


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"\\ud800"', b"\xff", b"[" * 3000, b'{"model": NaN}'])
def test_what_is_no_request_is_refused(client: TestClient, path: str, content: bytes) -> None:
    error = refusal(client.post(path, content=content, headers=JSON))
    assert error["type"] == "invalid_request_error" and error["message"]


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_a_body_s_refusal_says_what_is_wrong_with_it(client: TestClient, path: str) -> None:
    def message(content: bytes, **headers: str) -> str:
        status = 415 if headers else 400
        return refusal(client.post(path, content=content, headers=headers or JSON), status)["message"]

    assert message(b"") == "the body is empty: it must be a JSON object"
    assert message(b"{'model'}").startswith("the body is not JSON: ") and "line 1 column 2" in message(b"{'model'}")
    assert message(b"[]").startswith("the body: ") and message(b"null").startswith("the body: ")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json", "/"):
        assert "`Content-Type: application/json`" in message(b"{}", **{"content-type": kind})
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"):
        reply = client.post(path, content=b"[]", headers={"content-type": kind})
        assert refusal(reply)["message"].startswith("the body: ")


def test_a_body_without_a_type_is_not_read(client: TestClient) -> None:
    request = client.build_request("POST", TEXT, content=orjson.dumps(text()))
    assert "content-type" not in request.headers
    assert refusal(client.send(request), 415)["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["prompt", "suffix", "best_of", "input", "enable_thinking", "Model", ""])
def test_a_chat_refuses_fields_it_does_not_know(client: TestClient, name: str) -> None:
    error = refusal(client.post(CHAT, json=chat(**{name: None})))
    assert (error["param"] or "") == name and error["message"].endswith(": this field is not known here")


@pytest.mark.parametrize("name", ["messages", "tools", "response_format", "functions", "verbosity", "prediction"])
def test_a_completion_refuses_fields_it_does_not_know(client: TestClient, name: str) -> None:
    error = refusal(client.post(TEXT, json=text(**{name: None})))
    assert error["param"] == name and error["message"] == f"{name}: this field is not known here"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "nickname": "Ann"}]}, "messages.0.nickname"),
        ({"messages": [{"role": "user", "content": "x", "name": "x" * 257}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "nobody's"}]}, "messages"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x" * 257]}, "stop.0"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"n": 17}, "n"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"max_completion_tokens": 9}, "max_completion_tokens"),
        ({"max_tokens": 512}, "max_tokens"),
        ({"stream_options": {"include_everything": True}}, "stream_options.include_everything"),
        ({"stream_options": {"include_obfuscation": "no"}, "stream": True}, "stream_options.include_obfuscation"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"stride": {"decoder": "magic"}}, "stride"),
        ({"stride": {"decoder": "autoregressive", "k": 2}}, "stride"),
        ({"stride": {"decoder": "heads"}}, "stride"),
        ({"stride": {"magic": 1}}, "stride.magic"),
    ],
    ids=str,
)
def test_a_refusal_names_the_field(client: TestClient, change: dict[str, Any], param: str) -> None:
    assert refusal(client.post(CHAT, json=chat(**change)))["param"] == param


@pytest.mark.parametrize(("field", "param"), [("logit_bias", "logit_bias"), (None, "stride")])
def test_a_refusal_names_the_field_whatever_the_wording(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, field: str | None, param: str
) -> None:
    def refuse(*_: object) -> None:
        raise InputError("top_p and logit_bias are words of this message", field=field)

    monkeypatch.setattr(LanguageModel, "sequence", refuse)
    assert refusal(client.post(CHAT, json=chat()))["param"] == param


def test_the_model_must_be_the_served_one(client: TestClient) -> None:
    error = refusal(client.post(CHAT, json=chat(model="other")), 404)
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert refusal(client.post(TEXT, json=text(model="other")), 404)["code"] == "model_not_found"
    assert refusal(client.post("/tokenize", json={"model": "other", "prompt": "x"}), 404)["param"] == "model"


def test_a_request_that_names_no_model_means_the_one(client: TestClient) -> None:
    for path, body in ((CHAT, chat()), (TEXT, text())):
        for named in (body | {"model": None}, {name: value for name, value in body.items() if name != "model"}):
            reply = client.post(path, json=named)
            assert reply.status_code == 200 and reply.json()["model"] == "tiny"


def test_errors_hold_no_paths(client: TestClient, converted: Callable[..., Any]) -> None:
    folder = converted("llama")[0].name
    assert folder.startswith("/")
    for body in (chat("x" * 600), chat(logit_bias={"999": 1}), chat(stride={"decoder": "heads"})):
        reply = client.post(CHAT, json=body)
        assert reply.status_code == 400 and folder not in reply.text
    assert folder not in client.post(CHAT, json=chat()).text


def test_unknown_routes_and_methods_answer_in_the_same_form(client: TestClient) -> None:
    assert refusal(client.get("/v2"), 404)["message"]
    reply = client.get(CHAT)
    assert refusal(reply, 405) and reply.headers["allow"] == "POST"


def test_the_document_describes_requests_and_refusals(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path in (CHAT, TEXT, "/tokenize", "/detokenize"):
        operation = document["paths"][path]["post"]
        assert {"200", "400", "401", "404", "413", "429", "503"} <= operation["responses"].keys()
        assert "422" not in operation["responses"]
        assert operation["requestBody"]["required"]
    request = document["components"]["schemas"]["ChatRequest"]
    assert request["additionalProperties"] is False
    assert "as OpenAI has it" in request["properties"]["temperature"]["description"]


def test_depth_counts_nesting() -> None:
    assert [depth(value) for value in (1, [], {}, [1], {"a": [{}]}, [[], [[1]]])] == [0, 1, 1, 1, 3, 3]
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert depth(deep) == 5001
