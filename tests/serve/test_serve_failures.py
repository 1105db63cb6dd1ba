"""Requests that come at a bad moment: the queue is full, the engine crashes or stops, the client leaves."""

import asyncio
import json
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import CHAT, TEXT, chat, make_app, make_context, refusal, serving, submitted, text
from stridelm.api import LanguageModel
from stridelm.engine.worker import Worker
from stridelm.serve.context import Context

NO_END = {"logit_bias": {"256": -100}}
CRASHED = "the engine has crashed: the server must be started anew"
STOPPED = "the server is shutting down: ask again when it is back"


def test_a_full_queue_says_when_to_come_again(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "waiting", property(lambda worker: 255))
    assert client.post(CHAT, json=chat()).status_code == 200
    reply = client.post(CHAT, json=chat(n=2))
    assert refusal(reply, 429)["message"] and int(reply.headers["retry-after"]) >= 1


def crash_after(model: LanguageModel, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step, left = model.engine.step, iter(range(steps))

    def limited() -> Any:
        if next(left, None) is None:
            raise RuntimeError("secret: /home/someone")
        return step()

    monkeypatch.setattr(model.engine, "step", limited)


def test_a_crash_ends_a_stream_with_an_error_event(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_after(language_model, 4, monkeypatch)
    with serving(make_context(language_model)) as client:
        stride = {"decoder": "autoregressive"}
        reply = client.post(CHAT, json=chat(stream=True, logprobs=True, max_tokens=20, n=2, stride=stride))
        *_, last = reply.text.strip().split("\n\n")
        event, data = last.split("\n")
        error = json.loads(data.removeprefix("data: "))["error"]
        assert event == "event: error" and error["code"] == 503 and error["message"] == CRASHED
        assert "[DONE]" not in reply.text and "secret" not in reply.text and reply.text.count("data: ") > 4
        refused = refusal(client.post(CHAT, json=chat()), 503)
        assert refused["type"] == "server_error" and refused["message"] == CRASHED


def test_a_crash_before_the_first_token_has_a_status(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_after(language_model, 0, monkeypatch)
    with serving(make_context(language_model)) as client:
        assert refusal(client.post(CHAT, json=chat(stream=True)), 503)["message"] == CRASHED


def test_an_engine_that_was_told_to_stop_says_so(language_model: LanguageModel) -> None:
    context = make_context(language_model)
    with serving(context) as client:
        assert client.post(CHAT, json=chat()).status_code == 200
        context.worker.stop()
        for path, body in ((CHAT, chat()), (CHAT, chat(stream=True)), (TEXT, text())):
            error = refusal(client.post(path, json=body), 503)
            assert error["type"] == "server_error" and error["message"] == STOPPED


def test_what_nobody_foresaw_tells_nothing_of_the_inside(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("/secret/path")

    monkeypatch.setattr("stridelm.serve.chat_answers.check_queue", fail)
    reply = client.post(CHAT, json=chat())
    assert refusal(reply, 500)["type"] == "server_error" and "secret" not in reply.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_answers(
    language_model: LanguageModel, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = language_model.engine.step

    def slow() -> Any:
        time.sleep(0.02)
        return step()

    monkeypatch.setattr(language_model.engine, "step", slow)
    context = make_context(language_model)
    body = json.dumps(chat(stream=stream, max_tokens=400, n=2, **NO_END)).encode()
    sent = asyncio.run(_leave_early(context, body))
    sequences = submitted(context)
    assert len(sequences) == 2 and all(each.output and each.finish_reason is None for each in sequences)
    assert bool(sent) == stream
    assert language_model.engine.forward.cache.free_blocks == language_model.engine.forward.cache.block_count


async def _leave_early(context: Context, body: bytes) -> list[bytes]:
    """Ask, wait until something is written, leave. Returns what was sent before."""
    sent: list[bytes] = []
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
    }

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        while not all(len(sequence.output) > 3 for sequence in submitted(context)):
            await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"].startswith(b"data"):
            sent.append(message["body"])

    context.worker.start()
    try:
        await make_app(context)(scope, receive, send)
        while not context.worker.is_idle:
            await asyncio.sleep(0.01)
    finally:
        context.worker.stop()
    return sent
