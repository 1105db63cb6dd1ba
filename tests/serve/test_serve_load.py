"""Many users of a real server: all answers right, nothing broken off, and nothing left behind.

STRIDELM_SOAK_USERS, STRIDELM_SOAK_SECONDS and STRIDELM_SOAK_CANCELLATIONS size the slow tests."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from asking import TEXT
from load import Asked, come, leave_in_the_middle, make_pool
from real_server import NAME, ProcessServer, completion, serve_in_process, until
from stridelm.api import LanguageModel, load
from stridelm.models.adapter import save_adapter
from stridelm.settings import LoadSettings
from tiny import load_tiny, random_adapter

CONTEXT = 2048
CACHE_TOKENS = 2048
"""Less than what 64 users need: some answers make room for others and are read again."""
USERS = int(os.environ.get("STRIDELM_SOAK_USERS", "64"))
SECONDS = float(os.environ.get("STRIDELM_SOAK_SECONDS", "600"))
CANCELLATIONS = int(os.environ.get("STRIDELM_SOAK_CANCELLATIONS", "2000"))

Start = Callable[[], Any]


@pytest.fixture(scope="module")
def parts(tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folders of a tiny model, its adapter and its draft model."""
    model = tiny_folder(max_position_embeddings=CONTEXT)
    adapter = tmp_path_factory.mktemp("adapter")
    save_adapter(adapter, random_adapter(load_tiny(model)))
    return {"model": str(model), "adapter": str(adapter), "draft_model": str(tiny_folder(seed=1))}


@pytest.fixture(scope="module")
def model(parts: dict[str, str]) -> LanguageModel:
    return load(**parts, settings=LoadSettings(device="cpu"))


@pytest.fixture(scope="module")
def pool(model: LanguageModel) -> list[Asked]:
    return make_pool(model)


@pytest.fixture
def start(parts: dict[str, str], tmp_path: Path) -> Start:
    options = ("--adapter", parts["adapter"], "--draft-model", parts["draft_model"], "--served-model-name", NAME)
    sizes = ("--cache-tokens", str(CACHE_TOKENS), "--threads", "1")
    return lambda: serve_in_process(parts["model"], tmp_path / "log", *options, *sizes)


def gauges(client: httpx.Client) -> dict[str, float]:
    """Every metric without its labels; of those with several, the sum."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def is_idle(client: httpx.Client) -> bool:
    now = gauges(client)
    return not any(now[f"vllm:{name}"] for name in ("num_requests_running", "num_requests_waiting"))


def assert_nothing_left(client: httpx.Client) -> dict[str, float]:
    until(lambda: is_idle(client))
    now = gauges(client)
    assert now["vllm:kv_cache_usage_perc"] == 0
    return now


def soak(server: ProcessServer, pool: list[Asked], users: int, seconds: float) -> None:
    tally, memory = asyncio.run(come(server.url, server.process.pid, pool, users, seconds))
    with server.client() as client:
        now = assert_nothing_left(client)
    numbers = {
        name: round(now[f"vllm:{name}_total"])
        for name in ("generation_tokens", "num_preemptions", "prefix_cache_hits", "request_success")
    }
    print(f"\n{users} users, {seconds:g} s: {dict(tally.endings)}, statuses {dict(tally.statuses)}, {numbers}")
    print(f"resident memory: {memory}")
    assert not tally.complaints, f"{len(tally.complaints)} complaints, the first: {tally.complaints[:5]}"
    assert set(tally.statuses) == {200} and tally.statuses[200] > users
    assert {"whole", "stream", "slow stream", "left stream"} <= set(tally.endings)
    assert "Traceback" not in server.log
    memory.assert_no_leak()


def test_many_users_get_right_answers(start: Start, pool: list[Asked]) -> None:
    with start() as server:
        soak(server, pool, users=8, seconds=4)


@pytest.mark.slow
def test_many_more_users_for_long(start: Start, pool: list[Asked]) -> None:
    with start() as server:
        soak(server, pool, USERS, SECONDS)


def cancel(server: ProcessServer, model: LanguageModel, count: int) -> None:
    """Close so many streams, and ask once more."""

    def body(number: int) -> dict[str, Any]:
        # Each with a prompt of its own, a few tokens to many, and more to write than there is time for.
        prompt = f"{number} " * (1 + number % 60)
        return completion(prompt, max_tokens=1000, stream=True, logit_bias={"256": -100})

    came = asyncio.run(leave_in_the_middle(server.url, body, count, at_once=8))
    with server.client() as client:
        before = time.monotonic()
        reply = client.post(TEXT, json=completion("And now?"))
        seconds = time.monotonic() - before
        now = assert_nothing_left(client)
    aborted = int(now["vllm:request_success_total"]) - 1
    print(f"\n{count} streams closed {dict(came)}, {aborted} of them begun; the next reply took {seconds:.3f} s")
    assert came["in the text"] and sum(came.values()) == count and "finished" not in came
    [choice] = reply.json()["choices"]
    expected = model.generate("And now?", decoder="autoregressive", raw=True)
    assert expected.text.startswith(choice["text"]) and choice["text"]
    assert "Traceback" not in server.log


def test_streams_that_are_closed_leave_nothing(start: Start, model: LanguageModel) -> None:
    with start() as server:
        cancel(server, model, 60)


@pytest.mark.slow
def test_very_many_streams_that_are_closed_leave_nothing(start: Start, model: LanguageModel) -> None:
    with start() as server:
        cancel(server, model, CANCELLATIONS)
