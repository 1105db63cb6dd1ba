"""What stands around the API: who is let in, how much may come in, what the server tells about itself."""

import asyncio
import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.types import Message

import stridelm
from assembly import assembled
from real_server import NAME, ThreadServer, completion, events, serve_in_thread
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.serve.http import protocol
from stridelm.serve.http.middleware import RequestIds, SizeLimit
from stridelm.serve.settings import ServeSettings
from stridelm.settings import LoadSettings
from tiny import CONTEXT

KEY = "sésame, open"
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(server: ThreadServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


def assert_refused(response: httpx.Response, status: int, *words: str) -> None:
    """In OpenAI's form."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"]


# Who is let in


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics", "/openapi.json", "/nowhere", "/health/"])
def test_every_route_but_health_asks_for_the_key(language_model: LanguageModel, path: str) -> None:
    with (
        serve_in_thread(language_model, ServeSettings(port=0, grace=0, api_key=KEY)) as server,
        server.client() as client,
    ):
        assert client.get("/health").json() == {"status": "ok"}
        for given in (
            None,
            "Bearer",
            "Bearer wrong",
            f"Basic {KEY}",
            KEY,
            f"Bearer {KEY}x",
            f"Bearer {KEY[:-1]}",
        ):
            headers = {} if given is None else {b"authorization": given.encode()}
            refused = client.get(path, headers=headers)
            assert_refused(refused, 401, "API key")
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        known = client.get(path, headers={b"authorization": f"bearer {KEY}".encode()})
        assert known.status_code == (404 if path in ("/nowhere", "/health/") else 200)


def test_a_request_without_the_key_is_refused_before_its_body_is_read(language_model: LanguageModel) -> None:
    settings = ServeSettings(port=0, grace=0, api_key=KEY, max_body=100)
    with serve_in_thread(language_model, settings) as server, server.client() as client:
        assert_refused(client.post("/v1/completions", content=b"x" * 1000), 401)
        known = {b"authorization": f"Bearer {KEY}".encode()}
        assert_refused(client.post("/v1/completions", content=b"x" * 1000, headers=known), 413)


# How much may come in


def test_a_body_that_is_too_large_is_refused(language_model: LanguageModel) -> None:
    with (
        serve_in_thread(language_model, ServeSettings(port=0, grace=0, max_body=1000)) as server,
        server.client() as client,
    ):
        fits = json.dumps(completion("a")).encode()
        fits += b" " * (1000 - len(fits))
        pieces = iter([fits[:10], fits[10:]])
        assert client.post("/v1/completions", content=fits, headers=JSON).status_code == 200
        assert client.post("/v1/completions", content=pieces, headers=JSON).status_code == 200
        for body in (fits + b" ", fits + b" " * 2**22):
            assert_refused(client.post("/v1/completions", content=body, headers=JSON), 413, "1000 bytes")
            chunked = (body[start : start + 2**16] for start in range(0, len(body), 2**16))
            assert_refused(client.post("/v1/completions", content=chunked, headers=JSON), 413, "1000 bytes")
        # The rest of what was refused is not taken for a request.
        assert client.get("/version").status_code == 200


def test_nothing_is_read_of_a_body_whose_length_is_too_much(server: ThreadServer) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-length", str(2**40))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def size_limit(messages: list[Message], **settings: Any) -> list[Message]:
    """What the layer sends when these messages come in, the last of them never being followed by another."""
    sent: list[Message] = []

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(_: Any, receive: Any, send: Any) -> None:
        await send(await receive())

    layer = SizeLimit(app, **settings)
    asyncio.run(layer({"type": "http", "path": "/", "query_string": b"", "headers": []}, receive, send))
    return sent


def test_a_body_that_trickles_in_is_given_up() -> None:
    piece: Message = {"type": "http.request", "body": b"x", "more_body": True}
    start, body = size_limit([piece, piece], most=100, seconds=0.01)
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert b"did not arrive" in body["body"]


def test_a_body_is_handed_on_in_one_piece() -> None:
    pieces: list[Message] = [{"type": "http.request", "body": b"ab", "more_body": True}] * 2
    (message,) = size_limit([*pieces, {"type": "http.request"}], most=4)
    assert message == {"type": "http.request", "body": b"abab", "more_body": False}


def test_a_client_that_leaves_within_its_body_gets_nothing() -> None:
    assert size_limit([{"type": "http.disconnect"}], most=100) == []


def test_headers_have_a_limit(client: httpx.Client) -> None:
    assert client.get("/version", headers={"x-long": "x" * 60_000}).status_code == 200
    assert_refused(client.get("/version", headers={"x-long": "x" * 70_000}), 400, "65536 bytes")
    assert client.get("/version", headers={"x-long": "x" * 2**20}).status_code == 400


def test_a_connection_that_never_asks_is_closed(
    server: ThreadServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)
    host, port = server.url.removeprefix("http://").split(":")
    for said in (b"", b"GET /version HTTP/1.1\r\nhost: me\r\n"):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(said)
            assert connection.recv(1) == b""
    # One that asks for something that takes longer is not.
    with client.stream("POST", "/v1/completions", json=completion(max_tokens=400, stream=True)) as response:
        assert list(events(response))[-1] == "[DONE]"


# What the server tells about itself


def test_health_version_and_models(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/version").json() == {"version": stridelm.__version__}
    listed = client.get("/v1/models").json()
    (model,) = listed["data"]
    assert listed["object"] == "list"
    assert (model["id"], model["object"], model["owned_by"]) == (NAME, "model", "stridelm")
    assert model["max_model_len"] == CONTEXT
    assert model["decoders"] == ["auto", "autoregressive", "self", "draft", "ngram", "ensemble", "adaptive", "static"]


def test_models_tells_what_this_model_can_do(tiny: Callable[..., Checkpoint]) -> None:
    plain = assembled(tiny("llama"), None, LoadSettings(cache_tokens=64))
    with serve_in_thread(plain) as server, server.client() as client:
        (model,) = client.get("/v1/models").json()["data"]
    assert model["max_model_len"] == 64
    assert model["decoders"] == ["auto", "autoregressive", "ngram", "ensemble"]


def test_one_maximum_length_is_told_everywhere_and_kept(tiny: Callable[..., Checkpoint]) -> None:
    """The cache has whole blocks: seven of 16 tokens where 100 were asked for."""
    model = assembled(tiny("llama"), None, LoadSettings(cache_tokens=100))
    forced = {"logit_bias": {"256": -100}, "prompt": [1] * 12}
    with serve_in_thread(model) as server, server.client() as client:
        (card,) = client.get("/v1/models").json()["data"]
        cut = client.post("/tokenize", json={"prompt": "x"}).json()
        about = client.get("/playground/about").json()
        whole = client.post("/v1/completions", json=completion(max_tokens=100, **forced))
        longer = client.post("/v1/completions", json=completion(max_tokens=101, **forced))
    assert model.max_length == card["max_model_len"] == cut["max_model_len"] == about["max_model_len"] == 112
    assert whole.json()["usage"]["total_tokens"] == 112
    assert_refused(longer, 400, "room for 100")


def test_every_reply_has_a_request_id(client: httpx.Client) -> None:
    first, second = client.get("/version"), client.get("/version")
    assert re.fullmatch("[0-9a-f]{32}", first.headers["x-request-id"])
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    for path in ("/version", "/nowhere"):
        assert client.get(path, headers={"x-request-id": "mine-1.2_3"}).headers["x-request-id"] == "mine-1.2_3"
    for odd in ("a b", "x" * 129, "a;b"):
        assert client.get("/version", headers={"x-request-id": odd}).headers["x-request-id"] != odd


def test_what_nobody_caught_is_told_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: Any) -> None:
        raise OSError("/secret/path")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(RequestIds(broken))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get("/", headers={"x-request-id": "mine"})

    response = asyncio.run(ask())
    assert_refused(response, 500, "mine")
    assert "secret" not in response.text
    assert response.headers["x-request-id"] == "mine"
    assert "/secret/path" in caplog.text and "mine" in caplog.text
