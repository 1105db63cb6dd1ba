"""What stands around the API: who is let in, how much may come in, what the server tells about itself."""

import asyncio
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message

import stridelm
from assembly import assembled
from real_server import NAME, ThreadServer, completion, events, serve_in_thread, until
from stridelm.api import LanguageModel
from stridelm.model.load import Checkpoint
from stridelm.serve import protocol
from stridelm.serve.middleware import RequestIds, SizeLimit
from stridelm.serve.settings import ServeSettings
from stridelm.settings import LoadSettings
from tiny import CONTEXT

KEY = "sésame, open"
JSON = {"content-type": "application/json"}
DASHBOARD = Path(__file__).parent.parent / "docs" / "grafana.json"
COUNTERS = [
    "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total", "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total", "vllm:num_preemptions_total", "stridelm:forwards_total",
    "stridelm:own_forwards_total", "stridelm:own_step_failures_total",
]  # fmt: skip
GAUGES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
HISTOGRAMS = [
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
]  # fmt: skip


@pytest.fixture
def server(language_model: LanguageModel) -> Iterator[ThreadServer]:
    with serve_in_thread(language_model) as running:
        yield running


@pytest.fixture
def client(server: ThreadServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


def samples(client: httpx.Client) -> dict[str, float]:
    """Every sample of /metrics, by its name and the labels that tell it from others."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            own = [value for name, value in sample.labels.items() if name not in ("model_name", "engine")]
            found[" ".join([sample.name, *own])] = sample.value
            if sample.name.startswith(("vllm:", "stridelm:")):
                assert sample.labels["model_name"] == NAME and sample.labels["engine"] == "0"
    return found


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


# Metrics


def test_all_metrics_are_there_before_the_first_request(client: httpx.Client) -> None:
    found = samples(client)
    for name in COUNTERS + GAUGES:
        assert found[name] == 0
    for name in HISTOGRAMS:
        assert found[f"{name}_count"] == 0
    for reason in ("stop", "length", "abort", "error"):
        assert found[f"vllm:request_success_total {reason}"] == 0


@pytest.fixture
def drafting(tiny: Callable[..., Checkpoint]) -> Iterator[httpx.Client]:
    """A client of a model that drafts for itself, and so is right."""
    model = assembled(tiny("llama"), tiny("llama"), LoadSettings(cache_tokens=4096))
    with serve_in_thread(model) as server, server.client() as client:
        yield client


DRAFTED = completion(max_tokens=40, stride={"decoder": "draft", "k": 4})


def test_metrics_count_what_was_done(drafting: httpx.Client) -> None:
    answer = drafting.post("/v1/completions", json=DRAFTED).json()
    # The reply may be here before its end is counted.
    until(lambda: samples(drafting)["vllm:e2e_request_latency_seconds_count"] == 1)
    usage, found = answer["usage"], samples(drafting)
    assert found["vllm:prompt_tokens_total"] == usage["prompt_tokens"] == len("One two three")
    assert found["vllm:prefix_cache_queries_total"] == usage["prompt_tokens"]
    assert found["vllm:generation_tokens_total"] == usage["completion_tokens"]
    (choice,) = answer["choices"]
    assert found[f"vllm:request_success_total {choice['finish_reason']}"] == 1
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    # Each token but those of the first forward has its share of the time between two forwards.
    assert 1 <= usage["completion_tokens"] - found["vllm:inter_token_latency_seconds_count"] <= 5
    spent = found["vllm:time_to_first_token_seconds_sum"] + found["vllm:inter_token_latency_seconds_sum"]
    assert spent <= found["vllm:e2e_request_latency_seconds_sum"]
    accepted, drafted = (found[f"vllm:spec_decode_num_{kind}_tokens_total"] for kind in ("accepted", "draft"))
    assert 0 < found["vllm:spec_decode_num_drafts_total"] <= found["stridelm:forwards_total"]
    assert 0 < accepted <= drafted
    assert found["stridelm:forwards_total"] + accepted == usage["completion_tokens"]
    of_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    by_position = [value for name, value in found.items() if name.startswith(of_position)]
    assert sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)
    assert found[f"{of_position} 0"] == by_position[0]


def test_prompts_that_are_known_already_are_counted_as_hits(client: httpx.Client) -> None:
    request = completion("A prompt of more than one block of the cache", stride={"decoder": "autoregressive"})
    length, found = len(request["prompt"]), list[dict[str, float]]()
    for _ in range(2):
        client.post("/v1/completions", json=request)
        found.append(samples(client))
    assert [each["vllm:prefix_cache_queries_total"] for each in found] == [length, 2 * length]
    assert [each["vllm:prefix_cache_hits_total"] for each in found] == [0, length // 16 * 16]


def test_gauges_tell_of_now(server: ThreadServer, client: httpx.Client) -> None:
    model = server.context.model
    model.engine.scheduler.most_sequences = 1
    step, may_step = model.engine.step, threading.Event()
    model.engine.step = lambda: step() if may_step.wait(60) else []
    requests = [
        threading.Thread(target=httpx.post, args=[f"{server.url}/v1/completions"], kwargs={"json": completion()})
        for _ in range(2)
    ]
    for request in requests:
        request.start()
    until(lambda: samples(client)["vllm:num_requests_waiting"] == 2)
    seen: list[dict[str, float]] = []
    model.engine.step = lambda: seen.append(samples(client)) or step()
    may_step.set()
    for request in requests:
        request.join(60)
    within = [each for each in seen if each["vllm:num_requests_running"] == 1]
    assert {each["vllm:num_requests_waiting"] for each in within} == {0, 1}
    assert all(0 < each["vllm:kv_cache_usage_perc"] < 1 for each in within)
    assert all(each["vllm:num_requests_running"] <= 1 for each in seen)
    found = samples(client)
    assert [found[name] for name in GAUGES] == [0, 0, 0]


def test_an_answer_that_nobody_wants_is_counted_as_such(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/completions", json=completion(max_tokens=400, stream=True)) as response:
        next(events(response))
    until(lambda: samples(client)["vllm:request_success_total abort"] == 1)
    assert samples(client)["vllm:e2e_request_latency_seconds_count"] == 0


# The dashboard


def test_the_dashboard_asks_for_metrics_that_there_are(drafting: httpx.Client) -> None:
    drafting.post("/v1/completions", json=DRAFTED)
    known = {name.split(" ")[0] for name in samples(drafting)}
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["templating"]["list"][0]["name"] == "datasource"
    asked: set[str] = set()
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            names = set(re.findall(r"\b(?:vllm|stridelm):\w+", target["expr"]))
            assert names and names <= known, (panel["title"], names - known)
            asked |= names
    sampled = {f"{name}_bucket" for name in HISTOGRAMS}
    assert asked >= sampled | set(COUNTERS) | set(GAUGES) | {
        "vllm:request_success_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    }
