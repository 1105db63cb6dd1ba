"""Many users of a server at once: a pool of requests whose answers are known beforehand, users who send them in all
ways that users have, and a watch on the server's memory."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from asking import CHAT, TEXT
from grammars import compiled
from real_server import NAME, PATIENCE
from stepping import step_of
from stridelm.api import LanguageModel
from stridelm.params import SamplingParams
from stridelm.settings import PLAIN, DecodeSettings

DECODERS = ("auto", PLAIN, "ngram", "draft", "self", "ensemble")
"""All that promise the text of one token at a time."""
_MEGABYTE = 2**20


@dataclass(frozen=True)
class Asked:
    """A request and its right answer."""

    path: str
    body: dict[str, Any]
    choices: list[tuple[str, str]]
    """Text and finish reason of each choice."""


def make_pool(model: LanguageModel, count: int = 40) -> list[Asked]:
    """Requests of all kinds. The answers come from plain decoding, one sequence at a time."""
    draw = random.Random(6)
    return [_asked(model, draw, number) for number in range(count)]


def _asked(model: LanguageModel, draw: random.Random, number: int) -> Asked:
    prompt = " ".join(draw.choices(("one", "two", "three", "four", "five"), k=draw.randint(1, 40)))
    given: dict[str, Any] = {"max_tokens": draw.choice((4, 16, 64, 256)), "seed": draw.getrandbits(32)}
    given["temperature"] = draw.choice((0, 0, 0.7, 1.0))
    if number % 4 == 1:
        given["stop"] = draw.choices("etaoin shrdlu", k=2)
    decoder = {"decoder": DECODERS[number % len(DECODERS)]}
    body = {"model": NAME, "n": 1 + (number % 5 == 2), "stride": decoder} | given
    is_chat, is_json = number % 2 == 0, number % 10 == 4
    if is_json:
        body["response_format"] = {"type": "json_object"}
    body |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    given["stop"] = tuple(given.get("stop", ()))
    params = SamplingParams(**given)
    tokens = model.encode(prompt, raw=not is_chat)
    start = compiled(model, {"type": "object"}) if is_json else None
    choices: list[tuple[str, str]] = []
    for choice in range(body["n"]):
        sequence = model.sequence(list(tokens), params, DecodeSettings(PLAIN))
        sequence.choice, sequence.grammar = choice, start() if start else None
        model.engine.add(sequence)
        text = ""
        while sequence.finish_reason is None:
            for _, stride in step_of(model.engine):
                text += stride.text
        choices.append((text, sequence.finish_reason))
    return Asked(CHAT if is_chat else TEXT, body, choices)


@dataclass
class Tally:
    """What the users saw."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    endings: Counter[str] = field(default_factory=Counter[str])
    """How requests ended, by how they were read."""
    complaints: list[str] = field(default_factory=list)
    """What was wrong: answers, statuses, streams that broke off."""


class User:
    """Sends one request after the other, each read in a way that is drawn."""

    def __init__(self, client: httpx.AsyncClient, pool: list[Asked], tally: Tally, seed: int) -> None:
        self._client, self._pool, self._tally, self._draw = client, pool, tally, random.Random(seed)

    async def stay(self, seconds: float) -> None:
        """A request that is open when the time is up is read to its end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await self.ask(self._draw.choice(self._pool))

    async def ask(self, asked: Asked) -> None:
        manner = self._draw.choice(("whole", "whole", "stream", "stream", "slow stream", "left", "left stream"))
        # One who leaves a stream does so in the text; one who waits for a whole reply, at any moment.
        most = self._draw.randint(1, 40) if manner == "left stream" else None
        read = self._stream(asked, manner == "slow stream", most) if "stream" in manner else self._whole(asked)
        try:
            await asyncio.wait_for(read, self._draw.uniform(0, 0.5) if manner == "left" else None)
        except TimeoutError:
            pass
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self._tally.complaints.append(f"{manner} {asked.body}: {error!r}")
        self._tally.endings[manner] += 1

    async def _whole(self, asked: Asked) -> None:
        reply = await self._client.post(asked.path, json=asked.body)
        self._tally.statuses[reply.status_code] += 1
        if reply.status_code != 200:
            self._tally.complaints.append(f"{reply.status_code} {reply.text}")
            return
        choices = reply.json()["choices"]
        texts = [choice["message"]["content"] if asked.path == CHAT else choice["text"] for choice in choices]
        self._compare(asked, [(text, each["finish_reason"]) for text, each in zip(texts, choices, strict=True)])

    async def _stream(self, asked: Asked, is_slow: bool, most: int | None) -> None:
        """`most`: after so many events it is left."""
        texts, reasons, last = ["" for _ in asked.choices], ["" for _ in asked.choices], ""
        async with self._client.stream("POST", asked.path, json=asked.body | {"stream": True}) as reply:
            self._tally.statuses[reply.status_code] += 1
            if reply.status_code != 200:
                self._tally.complaints.append(f"{reply.status_code} {(await reply.aread()).decode()}")
                return
            async for line in reply.aiter_lines():
                if not line.startswith("data:"):
                    continue
                last = line.removeprefix("data:").strip()
                for choice in [] if last == "[DONE]" else json.loads(last)["choices"]:
                    index = choice["index"]
                    texts[index] += choice["delta"].get("content", "") if asked.path == CHAT else choice["text"]
                    reasons[index] += choice["finish_reason"] or ""
                if most is not None and (most := most - 1) == 0:
                    return
                if is_slow:
                    await asyncio.sleep(self._draw.uniform(0, 0.1))
        if last != "[DONE]":
            self._tally.complaints.append(f"a stream broke off after {last}")
        self._compare(asked, list(zip(texts, reasons, strict=True)))

    def _compare(self, asked: Asked, choices: list[tuple[str, str]]) -> None:
        if choices != asked.choices:
            self._tally.complaints.append(f"{asked.body}: {choices} instead of {asked.choices}")


@dataclass
class Memory:
    """The resident memory of a process over time, in bytes."""

    process: int
    times: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    async def watch(self, every: float) -> None:
        """Until cancelled."""
        while True:
            self.times.append(asyncio.get_running_loop().time())
            self.bytes.append(self._resident())
            await asyncio.sleep(every)

    @property
    def growth(self) -> float:
        """Bytes that the second half added: the slope of its least-squares line, times its length."""
        half = len(self.times) // 2
        times, sizes = np.array(self.times[half:]), np.array(self.bytes[half:])
        slope, _ = np.polyfit(times - times[0], sizes, 1)
        return float(slope * (times[-1] - times[0]))

    def assert_no_leak(self) -> None:
        """The rule: over the second half of the run the line through all samples rises by less than 20 MB or 3 % of
        what the process had in the middle, whichever is more."""
        middle = self.bytes[len(self.bytes) // 2]
        assert self.growth < max(20 * _MEGABYTE, 0.03 * middle), f"{self.growth:.0f} bytes: {self}"

    def __str__(self) -> str:
        first, middle, last = (self.bytes[at] / _MEGABYTE for at in (0, len(self.bytes) // 2, -1))
        minutes = (self.times[-1] - self.times[len(self.times) // 2]) / 60
        rise = self.growth / _MEGABYTE
        return (
            f"{first:.1f} MB, in the middle {middle:.1f}, at the end {last:.1f}; second half {rise:+.2f} MB,"
            f" {rise / minutes:+.3f} MB a minute, {len(self.bytes)} samples"
        )

    def _resident(self) -> int:
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def async_client(url: str) -> httpx.AsyncClient:
    """As many connections as there are users."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits)


async def come(url: str, process: int, pool: list[Asked], users: int, seconds: float) -> tuple[Tally, Memory]:
    """Let users come, and stay for so long."""
    tally, memory = Tally(), Memory(process)
    watch = asyncio.create_task(memory.watch(max(0.2, seconds / 300)))
    async with async_client(url) as client:
        await asyncio.gather(*(User(client, pool, tally, seed).stay(seconds) for seed in range(users)))
    watch.cancel()
    return tally, memory


async def leave_in_the_middle(
    url: str, body: Callable[[int], dict[str, Any]], count: int, at_once: int
) -> Counter[str]:
    """Open `count` streams, `at_once` of them at a time, and close each at a random moment. Says how far they came."""
    came: Counter[str] = Counter()
    numbers = iter(range(count))

    async def open_and_close(client: httpx.AsyncClient, number: int) -> None:
        stage = "before the reply"
        moment = random.Random(number).uniform(0, 0.5)
        try:
            async with asyncio.timeout(moment), client.stream("POST", TEXT, json=body(number)) as reply:
                assert reply.status_code == 200
                stage = "before the first event"
                async for _ in reply.aiter_lines():
                    stage = "in the text"
                stage = "finished"
        except TimeoutError:
            pass
        came[stage] += 1

    async def one_after_the_other(client: httpx.AsyncClient) -> None:
        for number in numbers:
            await open_and_close(client, number)

    async with async_client(url) as client:
        await asyncio.gather(*(one_after_the_other(client) for _ in range(at_once)))
    return came
