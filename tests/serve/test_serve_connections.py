"""What a connection may cost: memory, turns of the event loop, places. No honest client pays for the others."""

import asyncio
import gc
import json
import logging
import resource
import socket
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from itertools import pairwise

import orjson
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from raw_http import LONGEST_TICK, answer, connect, head, resident, ticking
from real_server import ThreadServer, completion, serve_in_thread, until
from stridelm.api import LanguageModel
from stridelm.params import InputError
from stridelm.serve.http import protocol, sse
from stridelm.serve.settings import ServeSettings

TEXT = "/v1/completions"
KEY = "open sesame"
LARGE = json.dumps(completion(prompt=[[7] * 1900] * 8, max_tokens=0, echo=True, logprobs=20)).encode()
"""Its reply has 5 MB."""


def post(body: bytes) -> bytes:
    return head(TEXT, f"content-length: {len(body)}") + body


def length_of(reply: bytes) -> int:
    """The bytes of a whole reply, by its beginning."""
    before, _, _ = reply.partition(b"\r\n\r\n")
    return len(before) + 4 + int(before.lower().split(b"content-length: ")[1].split(b"\r\n")[0])


def open_connections(server: ThreadServer) -> list[protocol.Protocol]:
    return list(server.server.server_state.connections)  # type: ignore[arg-type]


def flood(connection: socket.socket, most: int) -> int:
    """Send until nothing is taken for a second; how many bytes were taken."""
    sent = 0
    connection.settimeout(1)
    try:
        while sent < most:
            sent += connection.send(bytes(2**18))
    except TimeoutError:
        pass
    return sent


@pytest.fixture(scope="module")
def locked(roomy_model: LanguageModel) -> Iterator[ThreadServer]:
    """A server with a key."""
    with serve_in_thread(roomy_model, ServeSettings(port=0, grace=0, api_key=KEY)) as running:
        yield running


# Reading


def test_what_comes_behind_an_open_answer_waits_at_the_client(roomy_model: LanguageModel) -> None:
    with serve_in_thread(roomy_model) as server, connect(server, received=4096) as connection:
        connection.sendall(post(json.dumps(completion(max_tokens=2000, stream=True, logprobs=20, n=4)).encode()))
        until(lambda: server.context.worker.running > 0)
        before = resident()
        assert flood(connection, 64 * 2**20) < 16 * 2**20  # what the system takes for both sides
        assert resident() - before < 16 * 2**20


def test_the_rest_of_refused_bodies_is_dropped_as_it_comes(locked: ThreadServer) -> None:
    with connect(locked) as connection:
        refused = post(b"x" * 300_000)
        connection.sendall(refused + refused + head(TEXT, "content-length: 9000000000"))
        before, most = resident(), 0
        for _ in range(50):
            assert flood(connection, 2**21) >= 2**21
            most = max(most, resident())
        assert most - before < 16 * 2**20


@pytest.mark.parametrize("reads", [False, True])
def test_a_body_that_breaks_behind_its_reply_ends_the_connection(locked: ThreadServer, reads: bool) -> None:
    with connect(locked) as connection:
        connection.sendall(head(TEXT, "transfer-encoding: chunked"))
        assert connection.recv(2**12).startswith(b"HTTP/1.1 401")
        connection.sendall(b"2400\r\n" + b"x" * 0x2400 + b"\r\nzz\r\n")
        if reads:
            assert b"HTTP/1.1" not in answer(connection)  # what is left of the first reply
    until(lambda: not open_connections(locked))


def test_a_body_that_breaks_ends_its_request(roomy_model: LanguageModel) -> None:
    with serve_in_thread(roomy_model) as server, connect(server) as connection:
        connection.sendall(head(TEXT, "transfer-encoding: chunked") + b"zz\r\n")
        said = answer(connection)
        assert said.startswith(b"HTTP/1.1 400") and said.count(b"HTTP/1.1") == 1
        until(lambda: server.server._traffic.under_way == 0)


def test_a_connection_that_fails_is_cut_off_alone(locked: ThreadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(H11Protocol, "data_received", fail)
        with connect(locked) as connection:
            connection.sendall(b"GET")
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    with locked.client() as client:
        assert client.get("/health").status_code == 200


def test_many_connections_of_tiny_chunks_hold_up_nobody(locked: ThreadServer) -> None:
    """They are refused, and what they send is parsed all the same."""
    connections = [connect(locked) for _ in range(30)]

    def send(connection: socket.socket) -> None:
        connection.sendall(head(TEXT, "transfer-encoding: chunked") + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")

    threads = [threading.Thread(target=send, args=(each,)) for each in connections]
    with ticking(locked), locked.client() as client:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.get("/health").status_code == 200
    for connection in connections:
        connection.close()


# Writing


def test_a_client_that_reads_slowly_gets_all(roomy_model: LanguageModel) -> None:
    """Its reply takes several times the patience with those that read nothing."""
    with (
        serve_in_thread(roomy_model, ServeSettings(port=0, grace=0, send_seconds=0.75)) as server,
        connect(server, received=2**16) as connection,
    ):
        connection.sendall(post(LARGE))
        said = connection.recv(2**16)
        while len(said) < length_of(said):
            time.sleep(0.03)
            piece = connection.recv(2**16)
            assert piece, f"cut off after {len(said)} bytes"
            said += piece


def test_a_reply_that_is_still_being_sent_is_not_displaced(roomy_model: LanguageModel) -> None:
    with serve_in_thread(roomy_model) as server, connect(server, received=2**16) as connection:
        server.server.config.http_protocol_class.most = 4  # type: ignore[union-attr]
        connection.sendall(post(LARGE))
        said = connection.recv(2**16)
        (reading,) = open_connections(server)
        until(lambda: reading.cycle.response_complete)
        assert reading.transport.get_write_buffer_size()
        others = [connect(server) for _ in range(8)]
        until(lambda: len(open_connections(server)) <= 4)
        while len(said) < length_of(said):
            piece = connection.recv(2**20)
            assert piece, f"cut off after {len(said)} bytes"
            said += piece
        for other in others:
            other.close()


def test_patience_ends_with_the_connection(roomy_model: LanguageModel, caplog: pytest.LogCaptureFixture) -> None:
    """Paused first, closed for its silence then: only one timer is left, and none when all was read."""
    with serve_in_thread(roomy_model, ServeSettings(port=0, grace=0, send_seconds=1)) as server:
        server.server.config.timeout_keep_alive = 0.1  # type: ignore[assignment]
        with connect(server, received=2**16) as connection, caplog.at_level(logging.INFO):
            connection.sendall(post(LARGE))
            until(lambda: any(each.transport.is_closing() for each in open_connections(server)))
            said = answer(connection)
            assert len(said) == length_of(said)
            time.sleep(1.2)
        assert not [record for record in caplog.records if record.name in ("asyncio", protocol.log.name)]


def test_a_client_needs_time_to_read() -> None:
    with pytest.raises(InputError, match="send_seconds must be more than 0"):
        ServeSettings(send_seconds=0)


async def turns_while(work: Awaitable[bytes]) -> tuple[bytes, float]:
    """What the work gives, and the longest that the event loop was busy meanwhile."""
    task, ticks = asyncio.ensure_future(work), [time.thread_time()]
    while not task.done():
        await asyncio.sleep(0)
        ticks.append(time.thread_time())
    return task.result(), max(later - earlier for earlier, later in pairwise(ticks))


def test_a_long_chunk_is_written_beside_the_event_loop() -> None:
    """One that echoes a prompt of 40,000 tokens with their probabilities."""
    columns = {"tokens": ["abcd"] * 40_000, "top_logprobs": [{f"t{each}": each / 7 for each in range(21)}] * 40_000}
    chunk = {"choices": [{"index": 0, "text": "abcd" * 40_000, "logprobs": columns}]}
    event, longest = asyncio.run(turns_while(sse._event(chunk)))
    assert event == b"data: " + orjson.dumps(chunk) + b"\n\n"
    assert longest < LONGEST_TICK


# Places


def test_stalled_bodies_keep_nobody_out(roomy_model: LanguageModel) -> None:
    """On overflow the one that has been arriving the longest ends, not whoever sends."""
    with serve_in_thread(roomy_model, ServeSettings(port=0, grace=0, max_body=2**16)) as server:
        stalled: list[socket.socket] = []
        for _ in range(16):
            stalled.append(connect(server))
            stalled[-1].sendall(head(TEXT, f"content-length: {2**16}") + b" " * (2**16 - 9))
            until(lambda: server.server._traffic.under_way == len(stalled))
        time.sleep(0.2)  # until they are as far as they get
        body = json.dumps(completion(user="x" * 9000)).encode()
        with connect(server) as late:
            late.sendall(head(TEXT, f"content-length: {len(body)}", "connection: close") + body[:-1])
            assert stalled[0].recv(2**12).startswith(b"HTTP/1.1 503")
            late.sendall(body[-1:])
            assert answer(late).startswith(b"HTTP/1.1 200")
        stalled[1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            stalled[1].recv(1)
        for connection in stalled:
            connection.close()


def limited(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    """A process that may open so many files; gives what it was set to."""
    changes: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changes.append(limits))
    return changes


def test_open_files_are_asked_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    changes = limited(monkeypatch, 1024, resource.RLIM_INFINITY)
    assert protocol.most_connections(500) == 500 and not changes
    assert protocol.most_connections(5000) == 5000 and changes == [(5128, resource.RLIM_INFINITY)]
    assert not caplog.records
    changes = limited(monkeypatch, 1024, 4096)
    assert protocol.most_connections(5000) == 3968 and changes == [(4096, 4096)]
    assert "ulimit -n" in caplog.text


def test_what_was_loaded_is_not_walked_by_the_garbage_collector(roomy_model: LanguageModel) -> None:
    with serve_in_thread(roomy_model):
        assert gc.get_freeze_count() > 10_000
