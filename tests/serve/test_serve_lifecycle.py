"""How a server lives and dies: real signals to real processes, and engines that break."""

import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from command_line import Call, assert_refused
from real_server import (
    NAME,
    ProcessServer,
    ThreadServer,
    completion,
    events,
    serve_in_process,
    serve_in_thread,
    until,
)
from stridelm.api import LanguageModel
from stridelm.cli import serve as serve_command
from stridelm.light import install_command
from stridelm.serve.settings import ServeSettings

LONG = 800
"""Tokens of an answer that is still open after a few requests: a second or more."""
TOO_LONG = 15_000


def long_completion(max_tokens: int) -> dict[str, Any]:
    return completion(max_tokens=max_tokens, stream=True, stride={"decoder": "autoregressive"})


@pytest.fixture
def start(tiny_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """`stridelm serve` of a tiny model that can write for long."""

    def serve(*options: str, **environment: str) -> Any:
        folder = tiny_folder(max_position_embeddings=16384)
        given = ("--served-model-name", NAME, "--cache-tokens", "32768", "--threads", "1", *options)
        return serve_in_process(folder, tmp_path / "log", *given, **environment)

    return serve


def written(found: list[dict[str, Any] | str]) -> list[dict[str, Any]]:
    """The events that carry text or how the answer ended."""
    return [each for each in found if isinstance(each, dict) and each.get("choices")]


def assert_ends_with_error(found: list[dict[str, Any] | str], word: str) -> None:
    last = next(each for each in reversed(found) if isinstance(each, dict))
    assert set(last["error"]) == {"message", "type", "param", "code"} and word in last["error"]["message"]
    assert all(each["choices"][0]["finish_reason"] is None for each in written(found))


# Leaving


def test_a_signal_lets_open_answers_finish(start: Callable[..., Any]) -> None:
    server: ProcessServer
    with start("--grace", "50") as server, server.client() as client, server.client() as other:
        for part in (NAME, "auto", "32768"):
            assert part in server.ready_line
        with client.stream("POST", "/v1/completions", json=long_completion(LONG)) as response:
            stream = events(response)
            found = [next(stream)]
            server.terminate()
            until(lambda: other.get("/health").status_code == 503)
            health, refused = other.get("/health"), other.post("/v1/completions", json=completion())
            found += list(stream)
        assert health.json() == {"status": "draining"}
        assert refused.status_code == 503 and "is shutting down" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) == 50
        assert refused.json()["error"]["type"] == "server_error"
        assert found[-1] == "[DONE]"
        assert written(found)[-1]["choices"][0]["finish_reason"] == "length"
        assert server.wait() == 0
        assert '"POST /v1/completions HTTP/1.1" 503' in server.log
        assert "WARNING" not in server.log and "Traceback" not in server.log


def test_what_does_not_finish_in_time_ends_with_an_error(start: Callable[..., Any]) -> None:
    server: ProcessServer
    with start("--grace", "0.3", STRIDELM_API_KEY="of the environment") as server:
        with server.client() as stranger:
            assert stranger.get("/v1/models").status_code == 401
        with (
            server.client(authorization="Bearer of the environment") as client,
            client.stream("POST", "/v1/completions", json=long_completion(TOO_LONG)) as response,
        ):
            stream = events(response)
            found = [next(stream)]
            server.terminate()
            found += list(stream)
        assert_ends_with_error(found, "is shutting down")
        assert server.wait() == 0
        assert "1 requests are given up" in server.log and "Traceback" not in server.log


def test_a_second_signal_ends_the_process(start: Callable[..., Any]) -> None:
    server: ProcessServer
    with (
        start("--grace", "3600", "--host", "0.0.0.0") as server,
        server.client() as other,
        server.client() as client,
        client.stream("POST", "/v1/completions", json=long_completion(TOO_LONG)) as response,
    ):
        assert "WARNING" in server.log and "STRIDELM_API_KEY" in server.log  # everyone may come in
        next(stream := events(response))
        server.process.send_signal(signal.SIGINT)
        until(lambda: other.get("/health").status_code == 503)
        server.terminate()
        assert server.wait() == 128 + signal.SIGTERM
        with pytest.raises(httpx.TransportError):
            list(stream)


def test_a_server_with_nothing_to_do_leaves_at_once(language_model: LanguageModel) -> None:
    with serve_in_thread(language_model, ServeSettings(port=0, grace=3600)) as server, server.client() as client:
        assert client.get("/health").status_code == 200  # and the connection stays open
        server.drain()
        server.wait()


def test_a_request_that_came_before_the_signal_is_answered(language_model: LanguageModel) -> None:
    """Also one that the engine has not heard of yet: its body is still on its way."""
    with serve_in_thread(language_model, ServeSettings(port=0, grace=50)) as server, server.client() as other:
        body = httpx.Request("POST", server.url, json=completion()).content
        host, port = server.url.removeprefix("http://").split(":")
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:5])
            until(lambda: server.server._traffic.under_way == 1)
            server.drain()
            assert other.post("/v1/completions", json=completion()).status_code == 503
            connection.sendall(body[5:])
            reply = b"".join(iter(lambda: connection.recv(65536), b""))
        assert reply.startswith(b"HTTP/1.1 200")
        assert b'"length"' in reply
        server.wait()


# Breaking


def test_a_crash_of_the_engine_is_told_to_everyone(server: ThreadServer) -> None:
    engine, is_read = server.context.model.engine, threading.Event()
    step, before = engine.step, iter(range(3))

    def step_or_break() -> Any:
        """Break when two answers have been on their way for some steps, and the test has seen both."""
        if len(engine.scheduler.running) == 2 and next(before, None) is None:
            is_read.wait(60)
            raise RuntimeError("/secret: out of memory")
        return step()

    engine.step = step_or_break
    request = long_completion(480)
    with (
        server.client() as client,
        client.stream("POST", "/v1/completions", json=request) as first,
        client.stream("POST", "/v1/completions", json=request) as second,
    ):
        streams = [events(first), events(second)]
        found = [[next(stream)] for stream in streams]
        is_read.set()
        for each, stream in zip(found, streams, strict=True):
            each += stream
            assert_ends_with_error(each, "has crashed")
            assert "secret" not in str(each)
        until(lambda: client.get("/health").status_code == 503)
        assert client.get("/health").json() == {"status": "failed"}
        refused = client.post("/v1/completions", json=completion())
        assert refused.status_code == 503 and "has crashed" in refused.text
        assert "secret" not in refused.text
        assert client.get("/metrics").status_code == 200
    assert isinstance(server.context.worker.failure, RuntimeError)


# The command


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_refused(call("serve", "--port", port, "--model", "/there/is/none"), "cannot listen", port, "--port")
    assert_refused(call("serve", "--host", "no.such.host.invalid"), "cannot listen", "no.such.host.invalid")


@pytest.mark.parametrize(
    ("option", "value"), [("--port", "65536"), ("--api-key", " "), ("--max-body", "0"), ("--grace", "-1")]
)
def test_settings_that_cannot_be_are_refused(call: Call, option: str, value: str) -> None:
    assert_refused(call("serve", option, value), option.removeprefix("--").replace("-", "_"))


def test_a_missing_extra_is_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_command, "_PACKAGES", ("no_such_package",))
    assert_refused(call("serve"), "no_such_package", install_command("serve"))


@pytest.mark.parametrize(
    ("model", "name"), [("smollm2", "smollm2"), ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"), ("FOLDER", "own"), (".", "own")]
)
def test_a_model_goes_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, name: str) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert serve_command._own_name(model.replace("FOLDER", str(folder))) == name


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_a_loopback_is_known(host: str, is_loopback: bool) -> None:
    assert serve_command._is_loopback(host) == is_loopback


def test_a_server_listens_on_ipv6(language_model: LanguageModel) -> None:
    with (
        serve_in_thread(language_model, ServeSettings(host="::1", port=0, grace=0)) as server,
        server.client() as client,
    ):
        assert server.url.startswith("http://[::1]:")
        assert client.get("/health").status_code == 200


def test_the_code_of_a_models_folder_is_never_run(call: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """And nobody is asked whether it may be: a server has nobody to ask."""
    folder, trace = tmp_path / "model", tmp_path / "was-here"
    shutil.copytree(tiny_folder(), folder)
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": named}))
    (folder / "own.py").write_text(f"open({str(trace)!r}, 'w')\n")
    refused = call("serve", "--port", "0", "--model", folder, stdin=b"y\n")
    assert refused.status == 2 and "config" in refused.err
    assert not trace.exists()
