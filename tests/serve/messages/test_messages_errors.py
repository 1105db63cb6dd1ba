"""Errors of /v1/messages have Anthropic's form, wherever they come from, and its clients' key is known."""

from typing import Any

import pytest

from asking import make_context, serving
from named_events import named_events
from real_server import ThreadServer, serve_in_thread
from stridelm.api import LanguageModel
from stridelm.serve.settings import ServeSettings

PATH = "/v1/messages"
KEY = "a key for friends"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 3}
JSON = {"content-type": "application/json"}


def kind_of(reply: Any) -> str:
    told = reply.json()
    assert told["type"] == "error" and set(told["error"]) == {"type", "message"} and told["error"]["message"]
    return told["error"]["type"]


def test_keys_in_either_header(language_model: LanguageModel) -> None:
    settings = ServeSettings(port=0, grace=0, api_key=KEY, max_body=1000)
    with serve_in_thread(language_model, settings) as server, server.client() as client:
        for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}, {"authorization": f"Bearer {KEY}x"}):
            for path in (PATH, f"{PATH}/count_tokens"):
                refused = client.post(path, json=BODY, headers=headers)
                assert refused.status_code == 401 and kind_of(refused) == "authentication_error"
        known = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
        for headers in (known, {"authorization": f"Bearer {KEY}"}, known | {"authorization": "Bearer other"}):
            assert client.post(PATH, json=BODY, headers=headers).status_code == 200
        large = client.post(PATH, content=b"x" * 2000, headers=known | JSON)
        assert large.status_code == 413 and kind_of(large) == "request_too_large"
        assert client.get("/v1/models", headers={"x-api-key": KEY}).status_code == 200


def test_whatever_fails_fails_in_the_same_form(server: ThreadServer) -> None:
    with server.client() as client:
        for reply, status, kind in (
            (client.post(PATH, content=b"{}", headers={"content-type": "text/plain"}), 415, "invalid_request_error"),
            (client.post(PATH, content=b"{", headers=JSON), 400, "invalid_request_error"),
            (client.get(PATH), 405, "invalid_request_error"),
            (client.post(f"{PATH}/batches", json={}), 404, "not_found_error"),
            (client.post(PATH, json=BODY, headers={"x": "y" * 70_000}), 400, "invalid_request_error"),
        ):
            assert (reply.status_code, kind_of(reply)) == (status, kind)
        assert set(client.post("/v1/messages2", json={}).json()) == {"error"}  # no route of this API


def test_a_server_that_drains_is_overloaded(language_model: LanguageModel) -> None:
    asked = BODY | {"max_tokens": 400, "stream": True, "logit_bias": {"256": -100}}
    with (
        serve_in_thread(language_model, ServeSettings(port=0, grace=30)) as server,
        server.client() as client,
        server.client() as other,
        client.stream("POST", PATH, json=asked) as running,
    ):
        server.drain()
        refused = other.post(PATH, json=BODY)
        assert refused.status_code == 503 and kind_of(refused) == "overloaded_error"
        assert "event: message_stop" in list(running.iter_lines())


def test_a_crash_ends_a_stream_with_an_error_event(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, left = language_model.engine.step, iter(range(4))

    def limited() -> Any:
        if next(left, None) is None:
            raise RuntimeError("secret: /home/someone")
        return step()

    monkeypatch.setattr(language_model.engine, "step", limited)
    with serving(make_context(language_model)) as client:
        asked = BODY | {"max_tokens": 20, "stride": {"decoder": "autoregressive"}}
        reply = client.post(PATH, json=asked | {"stream": True})
        *events, last = named_events(reply)
        assert events[0]["type"] == "message_start" and len(events) > 3 and "secret" not in reply.text
        assert last["type"] == "error" and last["error"]["type"] == "overloaded_error"
        refused = client.post(PATH, json=asked)
        assert refused.status_code == 503 and kind_of(refused) == "overloaded_error"
