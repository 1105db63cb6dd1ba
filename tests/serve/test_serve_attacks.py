"""Nobody can stall the others: whatever is sent, the event loop goes on, memory comes back, and others are answered."""

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from assembly import assembled
from raw_http import answer, connect, head, resident, ticking
from real_server import NAME, PATIENCE, ThreadServer, completion, events, serve_in_thread, until
from stridelm.api import LanguageModel
from stridelm.models.tokenizer import Tokenizer
from stridelm.serve.settings import ServeSettings
from stridelm.settings import LoadSettings
from tiny import load_tiny

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}
MOST_MEMORY = 200 * 2**20
"""Bytes that may stay in use behind an attack."""


@pytest.fixture(scope="module")
def server(roomy_model: LanguageModel) -> Iterator[ThreadServer]:
    with serve_in_thread(roomy_model) as running:
        yield running


def memory() -> int:
    gc.collect()
    return resident()


def many(piece: str, count: int) -> str:
    return "[" + ",".join([piece] * count) + "]"


def with_field(base: dict[str, object], name: str, value: str) -> bytes:
    """A request that says `value` in one field."""
    return json.dumps(base | {name: "HERE"}).replace('"HERE"', value).encode()


def chat(name: str, value: str) -> bytes:
    return with_field({"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}, name, value)


def text(name: str, value: str) -> bytes:
    return with_field({"model": NAME, "prompt": "x", "max_tokens": 2}, name, value)


def fields(count: int) -> str:
    return "{" + ",".join(f'"f{index}": 1' for index in range(count)) + "}"


def tool(parameters: str) -> str:
    return '[{"type": "function", "function": {"name": "f", "parameters": ' + parameters + "}}]"


def described(description: str) -> str:
    return '[{"type": "function", "function": {"name": "f", "description": ' + description + "}}]"


def calls(arguments: str) -> str:
    call = '{"id": "a", "function": {"name": "f", "arguments": "' + arguments + '"}}'
    return '[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [' + call + "]}]"


def message(content: str) -> str:
    return '[{"role": "user", "content": ' + content + "}]"


SIZE = 4 * 2**20 - 1000
LONG = json.dumps("word " * (SIZE // 5))
PART = '{"type": "text", "text": ""}'
CALLS = '[{"role": "assistant", "tool_calls": ' + many('{"id": "a", "function": {"name": "f"}}', 90_000) + "}]"
TURN = '{"role": "tool", "tool_call_id": "a", "content": ""}'
ATTACKS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "two million numbers as messages": (CHAT, lambda: chat("messages", many("1", 2_000_000))),
    "400,000 numbers as messages": (CHAT, lambda: chat("messages", many("1", 400_000))),
    "30,000 numbers as messages": (CHAT, lambda: chat("messages", many("1", 30_000))),
    "33,000 messages": (CHAT, lambda: chat("messages", many('{"role": "user", "content": "x"}', 33_000))),
    "30,000 answers of tools": (
        CHAT,
        lambda: chat("messages", '[{"role": "user", "content": "x"},' + many(TURN, 24_000)[1:]),
    ),
    "90,000 calls": (CHAT, lambda: chat("messages", CALLS)),
    "140,000 parts": (CHAT, lambda: chat("messages", message(many(PART, 140_000)))),
    "45,000 parts": (CHAT, lambda: chat("messages", message(many(PART, 45_000)))),
    "45,000 wrong parts": (CHAT, lambda: chat("messages", message(many('{"type": 1, "text": 1}', 45_000)))),
    "a long message": (CHAT, lambda: chat("messages", message(LONG))),
    "a long description": (CHAT, lambda: chat("tools", described(LONG))),
    "long arguments": (CHAT, lambda: chat("messages", calls(many("1", SIZE // 2 - 100)))),
    "long spaced arguments": (CHAT, lambda: chat("messages", calls("[" + " " * (SIZE - 200) + "]"))),
    "a long tool": (CHAT, lambda: chat("tools", tool(f'{{"description": {LONG}}}'))),
    "a wide tool": (CHAT, lambda: chat("tools", tool(fields(1000)))),
    "a tool of 300,000 fields": (CHAT, lambda: chat("tools", tool(fields(300_000)))),
    "a tool with a long list": (CHAT, lambda: chat("tools", tool('{"enum": ' + many("1", 1_900_000) + "}"))),
    "a tool of 90,000 fields in objects": (CHAT, lambda: chat("tools", tool(f'{{"enum": {many(fields(900), 100)}}}'))),
    "nothing but brackets": (CHAT, lambda: chat("metadata", many("[]", 1_300_000))),
    "180,000 brackets": (CHAT, lambda: chat("metadata", many("[]", 180_000))),
    "a deep body": (CHAT, lambda: chat("metadata", "[" * 100_000)),
    "a deep body that orjson reads": (CHAT, lambda: chat("metadata", '{"a":' * 1000 + "1" + "}" * 1000)),
    "labels of 4 MB": (CHAT, lambda: chat("user", LONG)),
    "a model of 4 MB": (CHAT, lambda: with_field({"messages": [{"role": "user", "content": "x"}]}, "model", LONG)),
    "an unknown field of 4 MB": (CHAT, lambda: ("{" + LONG + ": 1}").encode()),
    "300,000 unknown fields": (CHAT, lambda: fields(300_000).encode()),
    "1,000 unknown fields": (CHAT, lambda: fields(1000).encode()),
    "a list": (CHAT, lambda: many("1", 2_000_000).encode()),
    "a number": (CHAT, lambda: b"1" * SIZE),
    "no JSON": (CHAT, lambda: b"x" * SIZE),
    "a million stops": (TEXT, lambda: text("stop", many('"a"', 1_000_000))),
    "50,000 stops": (TEXT, lambda: text("stop", many('"a"', 50_000))),
    "50,000 wrong stops": (TEXT, lambda: text("stop", many('""', 50_000))),
    "biases": (TEXT, lambda: text("logit_bias", fields(300_000))),
    "1,000 wrong biases": (TEXT, lambda: text("logit_bias", fields(1000))),
    "two million negative tokens": (TEXT, lambda: text("prompt", many("-1", 1_300_000))),
    "2,000 negative tokens": (TEXT, lambda: text("prompt", many("-1", 2000))),
    "numbers that are no tokens": (TEXT, lambda: text("prompt", many("0.5", 900_000))),
    "a million prompts": (TEXT, lambda: text("prompt", many('"a"', 1_000_000))),
    "4,000 prompts": (TEXT, lambda: text("prompt", many('"' + "a " * 250 + '"', 4000))),
    "256 prompts": (TEXT, lambda: text("prompt", many('"' + "a " * 900 + '"', 256))),
    "lists of tokens": (TEXT, lambda: text("prompt", many(many("5", 500), 4000))),
    "200 lists of tokens that are none": (TEXT, lambda: text("prompt", many(many("5", 2000)[:-1] + ",-1]", 200))),
    "a long prompt": (TEXT, lambda: text("prompt", LONG)),
    "a long suffix": (TEXT, lambda: text("suffix", LONG)),
    "a long text to cut": ("/tokenize", lambda: b'{"return_token_strs": true, "prompt": ' + LONG.encode() + b"}"),
    "a text to cut": ("/tokenize", lambda: b'{"return_token_strs": true, "prompt": "' + b"x" * 20_000 + b'"}'),
    "a long chat to cut": ("/tokenize", lambda: f'{{"messages": {message(LONG)}}}'.encode()),
    "two million tokens": ("/detokenize", lambda: f'{{"tokens": {many("1", 2_000_000)}}}'.encode()),
    "2,000 tokens": ("/detokenize", lambda: f'{{"tokens": {many("70", 2000)}}}'.encode()),
}


TOO_LONG = {
    "a long message",
    "a long description",
    "long arguments",
    "long spaced arguments",
    "a long prompt",
    "a long text to cut",
    "a long chat to cut",
}
"""Refused by their characters, without being cut into tokens."""


@pytest.mark.parametrize("name", ATTACKS)
def test_no_body_holds_up_the_others(server: ThreadServer, name: str) -> None:
    path, make = ATTACKS[name]
    body = make()
    assert len(body) <= 4 * 2**20
    with server.client() as client:
        client.get("/health")
        before = memory()
        with ticking(server):
            reply = client.post(path, content=body, headers=JSON)
        assert reply.status_code in (200, 400, 404, 429), reply.text
        assert len(reply.content) < 2**20
        if name in TOO_LONG:
            assert "characters" in reply.json()["error"]["message"]
        del reply
        assert memory() - before < MOST_MEMORY


def test_the_tokenizer_of_the_package_holds_up_nobody_either(tiny_folder: Callable[..., Path]) -> None:
    """The others here are served with transformers' own."""
    folder = tiny_folder(max_position_embeddings=2048)
    target = replace(load_tiny(folder), tokenizer=cast(Any, Tokenizer.from_folder(folder)))
    with serve_in_thread(assembled(target, None, LoadSettings(cache_tokens=8192))) as own, own.client() as client:
        for name in sorted(TOO_LONG):
            path, make = ATTACKS[name]
            with ticking(own):
                reply = client.post(path, content=make(), headers=JSON)
            assert "characters" in reply.json()["error"]["message"], name
        with ticking(own):
            assert client.post(TEXT, json=completion(prompt="x " * 900)).status_code == 200


def test_probabilities_of_long_prompts_are_told_meanwhile(server: ThreadServer) -> None:
    prompts = [[5 + index % 50] * 1900 for index in range(16)]
    body = completion(prompt=prompts, max_tokens=0, echo=True, logprobs=20)
    with server.client() as client, ticking(server):
        reply = client.post(TEXT, json=body)
    assert reply.status_code == 200, reply.text
    assert len(reply.json()["choices"][15]["logprobs"]["tokens"]) == 1900


def test_tiny_chunks_do_not_hold_up_the_others(server: ThreadServer) -> None:
    body = text("prompt", '"' + "x" * 200_000 + '"')
    with connect(server) as connection, ticking(server):
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        connection.sendall(head(TEXT, "transfer-encoding: chunked", "connection: close") + chunks + b"0\r\n\r\n")
        assert b"context_length_exceeded" in answer(connection)


def test_many_headers_and_requests_in_one_piece_do_not_either(server: ThreadServer) -> None:
    with connect(server) as connection, ticking(server):
        connection.sendall(head("/health", *["a:b"] * 12_000, "connection: close", method="GET"))
        assert answer(connection).startswith(b"HTTP/1.1 200")
    with connect(server) as connection, ticking(server):
        last = head("/health", "connection: close", method="GET")
        connection.sendall(head("/health", method="GET") * 2000 + last)
        assert answer(connection).count(b"HTTP/1.1 200") == 2001


@pytest.mark.parametrize("count", [630, 200])
@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nhost: me\r\n", head(CHAT, "content-length: 9") + b"{"])
def test_half_open_connections_keep_nobody_out(roomy_model: LanguageModel, said: bytes, count: int) -> None:
    settings = ServeSettings(port=0, grace=0, max_queue=1, max_sequences=1)  # with room for 514 connections
    with serve_in_thread(roomy_model, settings) as server:
        held = [connect(server) for _ in range(count)]
        try:
            for connection in held:
                connection.sendall(said)
            for path in ("/health", "/metrics", "/v1/models"):
                with server.client() as client:
                    assert client.get(path).status_code == 200, path
            with server.client() as client:
                assert client.post(TEXT, json=completion()).status_code == 200
            assert len(server.server.server_state.connections) <= 514 + 3
        finally:
            for connection in held:
                connection.close()


@pytest.mark.parametrize("key", [None, "the right one"])
def test_two_lengths_of_one_body_end_the_connection(roomy_model: LanguageModel, key: str | None) -> None:
    """Whoever sends them, also without the key."""
    smuggled = head("/version", method="GET")
    settings = ServeSettings(port=0, grace=0, api_key=key)
    for given in ("authorization: Bearer wrong", f"authorization: Bearer {key}"):
        headers = ("transfer-encoding: chunked", "content-length: 5", given)
        with serve_in_thread(roomy_model, settings) as server, connect(server) as connection:
            connection.sendall(head(TEXT, *headers) + b"0\r\n\r\n" + smuggled)
            said = answer(connection)
        assert said.startswith(b"HTTP/1.1 400") and b"connection: close" in said.lower()
        assert said.count(b"HTTP/1.1") == 1


@contextmanager
def silent_clients(server: ThreadServer) -> Iterator[Callable[[], int]]:
    """Two that ask for four long answers each and read nothing; gives how many of the answers are held."""
    scheduler = server.context.model.engine.scheduler
    body = json.dumps(completion(max_tokens=2000, stream=True, logprobs=20, n=4)).encode()
    connections = [connect(server, received=4096) for _ in range(2)]
    try:
        for connection in connections:
            connection.sendall(head(TEXT, f"content-length: {len(body)}") + body)
        yield lambda: sum(sequence.is_held for sequence in [*scheduler.running, *scheduler.waiting])
    finally:
        for connection in connections:
            connection.close()


def test_clients_that_do_not_read_hold_nobody_up(roomy_model: LanguageModel) -> None:
    """They take all places and nearly all of the cache. Whoever comes is answered while they are still there."""
    settings = ServeSettings(port=0, grace=0, send_seconds=PATIENCE, max_sequences=4)
    with serve_in_thread(roomy_model, settings) as server, silent_clients(server) as held, server.client() as client:
        until(lambda: held() == 8)
        reply = client.post(TEXT, json=completion(prompt="somebody else " * 40, max_tokens=64)).json()
        assert reply["choices"][0]["finish_reason"]
        with client.stream("POST", TEXT, json=completion(max_tokens=64, stream=True)) as stream:
            assert list(events(stream))[-1] == "[DONE]"
        assert held() == 8


def test_clients_that_do_not_read_are_cut_off(roomy_model: LanguageModel) -> None:
    with serve_in_thread(roomy_model, ServeSettings(port=0, grace=0, send_seconds=0.5)) as server:
        with silent_clients(server):
            until(lambda: server.context.worker.running > 0)
            until(lambda: server.context.worker.is_idle)
            until(lambda: not server.server.server_state.connections)
        assert server.context.worker.waiting == 0


def test_a_whole_reply_that_nobody_reads_ends_as_well(roomy_model: LanguageModel) -> None:
    settings = ServeSettings(port=0, grace=0, send_seconds=0.5)
    with serve_in_thread(roomy_model, settings) as other:
        body = json.dumps(completion(prompt=[[7] * 1900] * 8, max_tokens=0, echo=True, logprobs=20)).encode()
        with connect(other, received=4096) as connection:
            connection.sendall(head(TEXT, f"content-length: {len(body)}") + body)
            until(lambda: bool(other.server.server_state.connections))
            until(lambda: not other.server.server_state.connections)


def test_bodies_on_their_way_have_a_limit_together(roomy_model: LanguageModel) -> None:
    settings = ServeSettings(port=0, grace=0, max_body=2**16)
    with serve_in_thread(roomy_model, settings) as server:
        held = [connect(server) for _ in range(24)]
        try:
            for connection in held:
                connection.sendall(head(TEXT, f"content-length: {2**16}") + b" " * (2**16 - 1))
            refused = 0
            for connection in held:
                connection.settimeout(0.5)
                try:
                    refused += connection.recv(2**12).startswith(b"HTTP/1.1 503")
                except TimeoutError:
                    continue
            assert 4 <= refused <= 9
        finally:
            for connection in held:
                connection.close()


def test_others_are_told_how_the_server_is_meanwhile(server: ThreadServer) -> None:
    """All attacks at once, by several clients."""
    bodies = [(path, make()) for path, make in ATTACKS.values()]

    def attack(part: list[tuple[str, bytes]]) -> None:
        with server.client() as client:
            for path, body in part:
                client.post(path, content=body, headers=JSON)

    threads = [threading.Thread(target=attack, args=(bodies[start::4],)) for start in range(4)]
    before = memory()
    with server.client() as client, ticking(server):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert client.get("/health").status_code == 200
            time.sleep(0.01)
    del bodies
    assert memory() - before < MOST_MEMORY


def test_a_client_that_leaves_is_noticed(server: ThreadServer) -> None:
    aborted = 'finished_reason="abort"'

    def count() -> float:
        with server.client() as client:
            lines = client.get("/metrics").text.splitlines()
        (line,) = (each for each in lines if each.startswith("vllm:request_success_total") and aborted in each)
        return float(line.split()[-1])

    before = count()
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url, timeout=0.05) as client:
        client.post(TEXT, json=completion(max_tokens=2000, logit_bias={}))
    until(lambda: server.context.worker.is_idle)
    assert count() == before + 1
