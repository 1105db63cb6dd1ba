"""The playground's server side: its page and who may see it, and the race of two answers on one engine."""

import asyncio
import itertools
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from real_server import NAME, ThreadServer, events, serve_in_thread, until
from stridelm.api import LanguageModel
from stridelm.cache.kv_cache import BLOCK_SIZE
from stridelm.engine.worker import Worker
from stridelm.params import SamplingParams
from stridelm.serve.playground.files import FOLDER, read_page
from stridelm.serve.playground.race import Race
from stridelm.serve.settings import ServeSettings
from stridelm.settings import PLAIN, DecodeSettings
from stridelm.types import Sequence, Stride

MAX_BYTES = 130_000
EXACT = ("auto", "self", "ngram", "draft", "ensemble")
MESSAGES = [{"role": "user", "content": "one two three one two three"}]
KEY = "a key"
END = 256


@pytest.fixture(scope="module")
def server(roomy_model: LanguageModel) -> Iterator[ThreadServer]:
    with serve_in_thread(roomy_model) as running:
        yield running
        cache = running.context.model.engine.forward.cache
        until(lambda: cache.free_blocks == cache.block_count)
        cache.check_integrity()


@pytest.fixture
def client(server: ThreadServer) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


def body(decoder: str = "self", **fields: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": MESSAGES, "max_tokens": 40, "stride": {"decoder": decoder}} | fields


def race(client: httpx.Client, decoder: str = "self", **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a race says first, and its strides."""
    with client.stream("POST", "/playground/race", json=body(decoder, **fields)) as response:
        assert response.status_code == 200, response.read()
        start, *strides, done = list(events(response))
    assert done == "[DONE]"
    assert isinstance(start, dict)
    return start, [each for each in strides if isinstance(each, dict)]


def tokens(strides: list[dict[str, Any]], lane: int) -> list[int]:
    return [each["token"] for stride in strides if stride["lane"] == lane for each in stride["forward"]["emitted"]]


# The page


def test_the_page_is_small_and_asks_nobody_else() -> None:
    files = {file.name: file.read_text() for file in FOLDER.iterdir()}
    assert sum(len(text.encode()) for text in files.values()) < MAX_BYTES
    for name, text in files.items():
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, f"{name} names {addresses}"
        for markup in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval("):
            assert markup not in text, f"{name} makes markup of text: {markup}"
        assert not re.search(r"\son\w+=|\sstyle=", text) or name != "index.html"


def test_every_file_is_served_under_a_strict_policy(client: httpx.Client) -> None:
    for path, file in read_page().items():
        reply = client.get(path)
        assert reply.status_code == 200 and reply.content == file.body
        policy = reply.headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "connect-src 'self'" in policy
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        again = client.get(path, headers={"if-none-match": reply.headers["etag"]})
        assert again.status_code == 304 and not again.content
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert client.get("/playground/main.js").headers["content-type"].startswith("text/javascript")
    for nowhere in ("/playground/", "/playground/../app.py", "/playground/nothing.js", "/index.html"):
        assert client.get(nowhere).status_code == 404


def test_everything_that_the_page_names_is_there() -> None:
    page = read_page()
    for file in FOLDER.iterdir():
        text = file.read_text()
        named = re.findall(r"(?:src|href)=\"(/[^\"]*)\"", text)
        named += [f"/playground/{name}" for name in re.findall(r"from \"\./([^\"]+)\"", text)]
        assert not [name for name in named if name not in page], file.name


def test_with_a_key_the_page_is_open_and_the_rest_is_not(language_model: LanguageModel) -> None:
    settings = ServeSettings(port=0, grace=0, api_key=KEY)
    with serve_in_thread(language_model, settings) as server, server.client() as client:
        assert all(client.get(path).status_code == 200 for path in read_page())
        assert client.get("/playground/about").status_code == 401
        assert client.post("/playground/race", json=body()).status_code == 401
        known = {"authorization": f"Bearer {KEY}"}
        assert client.get("/playground/about", headers=known).json()["model"] == NAME


def test_the_dials_are_told_what_the_model_can_do(client: httpx.Client) -> None:
    about = client.get("/playground/about").json()
    decoders = {each["name"]: each for each in about["decoders"]}
    assert list(decoders) == client.get("/v1/models").json()["data"][0]["decoders"]
    assert "tolerance" in decoders["auto"]["takes"] and "threshold" in decoders["adaptive"]["takes"]
    assert decoders[PLAIN]["takes"] == [] and about["max_model_len"] > 0


# The race


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("decoder", EXACT)
def test_both_lanes_write_what_the_model_writes(client: httpx.Client, decoder: str, temperature: float) -> None:
    start, strides = race(client, decoder, temperature=temperature, seed=7)
    assert start["seed"] == 7
    assert [each["decoder"] for each in start["lanes"]] == [PLAIN, decoder]
    assert all(each["exact"] for each in start["lanes"])
    asked = {"model": NAME, "messages": MESSAGES, "max_tokens": 40, "temperature": temperature, "seed": 7}
    reply = client.post("/v1/chat/completions", json=asked | {"stride": {"decoder": PLAIN}}).json()
    for lane in (0, 1):
        own = [each for each in strides if each["lane"] == lane]
        assert "".join(each["text"] for each in own) == reply["choices"][0]["message"]["content"]
        assert own[-1]["finish_reason"] == reply["choices"][0]["finish_reason"]
        assert [each["finish_reason"] for each in own[:-1]] == [None] * (len(own) - 1)
    assert tokens(strides, 0) == tokens(strides, 1)


def test_without_a_seed_both_lanes_share_one(client: httpx.Client) -> None:
    start, strides = race(client, "ngram", temperature=1.0)
    assert tokens(strides, 0) == tokens(strides, 1)
    _, again = race(client, "ngram", temperature=1.0, seed=start["seed"])
    assert tokens(again, 0) == tokens(strides, 0)


def test_the_lane_that_is_behind_goes_next(client: httpx.Client) -> None:
    _, strides = race(client)
    clocks, running = [0.0, 0.0], {0, 1}
    for stride in strides:
        lane = stride["lane"]
        assert clocks[lane] == min(clocks[each] for each in running)
        assert stride["seconds"] > clocks[lane]
        clocks[lane] = stride["seconds"]
        if stride["finish_reason"]:
            running.remove(lane)
    assert not running


def test_both_lanes_read_the_whole_prompt_however_often_it_was_read(client: httpx.Client) -> None:
    for _ in range(2):
        start, strides = race(client, "ngram")
        for lane in (0, 1):
            first = next(each for each in strides if each["lane"] == lane)
            pending = [row for row in first["forward"]["rows"] if row["kind"] == "pending"]
            assert len(pending) == start["prompt_tokens"]


def test_lanes_that_do_not_fit_beside_each_other_are_refused(client: httpx.Client, server: ThreadServer) -> None:
    """They would make room for each other again and again, and read their texts anew on their clocks."""
    start, _ = race(client)
    most = server.context.model.engine.forward.cache.block_count // 2 * BLOCK_SIZE - start["prompt_tokens"]
    reply = client.post("/playground/race", json=body(max_tokens=most + 1))
    assert reply.status_code == 400 and str(most) in reply.json()["error"]["message"]


def test_a_race_that_nobody_reads_pauses_and_goes_on(server: ThreadServer) -> None:
    model, worker = server.context.model, server.context.worker
    params = SamplingParams(max_tokens=60, logit_bias={END: float("-inf")})
    prompt = model.target.tokenizer.encode("one two three")
    lanes = [model.sequence(list(prompt), params, DecodeSettings(name)) for name in (PLAIN, "ngram")]

    async def read_slowly() -> list[list[int]]:
        running = Race(worker, lanes, max_unread=6, resume_below=3)
        await asyncio.to_thread(until, lambda: all(lane.is_held for lane in lanes))
        assert all(lane.stats.forwards < 60 for lane in lanes), "held before the end"
        texts: list[list[int]] = [[], []]
        async for lane, _, stride in running.moments():
            texts[lane] += stride.tokens
        return texts

    plain, other = asyncio.run(read_slowly())
    assert plain == other and len(plain) == 60


def test_a_race_ends_with_an_error_when_the_engine_stops(language_model: LanguageModel) -> None:
    with serve_in_thread(language_model) as server, server.client() as client:
        step = server.context.worker.engine.step
        steps = itertools.count()

        def fails_later() -> list[tuple[Sequence, Stride | Exception]]:
            if next(steps) > 4:
                raise RuntimeError("broken on purpose")
            return step()

        server.context.worker.engine.step = fails_later  # type: ignore[method-assign]
        with client.stream("POST", "/playground/race", json=body("ngram")) as response:
            *_, last = list(events(response))
        assert isinstance(last, dict) and "crashed" in last["error"]["message"]


def test_a_tolerant_decoder_does_not_claim_to_be_exact(client: httpx.Client) -> None:
    start, _ = race(client, stride={"decoder": "self", "tolerance": 0.5})
    assert [each["exact"] for each in start["lanes"]] == [True, False]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stride": {"decoder": PLAIN}}, "stride.decoder"),
        ({"stride": {"decoder": "nothing"}}, "stride"),
        ({"stride": {"decoder": "self", "trace": True}}, "stride.trace"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"stream": True}, "stream"),
    ],
)
def test_what_cannot_be_raced_is_refused(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    reply = client.post("/playground/race", json=body() | fields)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param


def test_a_full_queue_says_when_to_come_again(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "waiting", ServeSettings().max_queue - 1)
    reply = client.post("/playground/race", json=body())
    assert reply.status_code == 429 and int(reply.headers["retry-after"]) > 0


def test_whoever_leaves_a_race_leaves_nothing_behind(server: ThreadServer, client: httpx.Client) -> None:
    with client.stream("POST", "/playground/race", json=body(max_tokens=400)) as response:
        assert len(list(itertools.islice(events(response), 3))) == 3
    until(lambda: server.context.worker.is_idle)
    cache = server.context.model.engine.forward.cache
    until(lambda: cache.free_blocks == cache.block_count)


def test_a_race_among_others_gets_to_its_end(server: ThreadServer, client: httpx.Client) -> None:
    """Held lanes keep nobody else from being answered, nor the other way round."""
    asked = {"model": NAME, "messages": MESSAGES, "max_tokens": 300, "temperature": 0}
    with client.stream("POST", "/v1/chat/completions", json=asked | {"stream": True}) as other:
        lines = other.iter_lines()
        next(lines)
        with server.client() as second:
            _, strides = race(second, "ngram")
        assert tokens(strides, 0) == tokens(strides, 1)
        assert "data: [DONE]" in list(lines)
