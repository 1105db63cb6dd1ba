"""Throughput of `stridelm serve` under load: the built-in model, greedy, users who ask again and again.

    python bench/decoding/serving.py [--rounds 10] [--seconds 8] [--users 1 2 4 8 16] [--json FILE]

A real server, spoken to over HTTP. Each user asks, reads the answer and asks the next thing, around a list of prompts;
after a short start the tokens of a window are counted by the server's own counter. In every round plain decoding and
`auto` take turns with the same prompts, for every number of users. A ratio is that of two windows of one round, so that
a slow moment of the machine hits both. Prompts are read once before: reading them costs both the same, and what is
measured is how fast answers are written. All answers that both have finished are compared.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from stridelm.prompts import read_prompts

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import KINDS, MATHS, interval, machine, script_parser, write

PLAIN, AUTO = "autoregressive", "auto"
ALONE, TOGETHER = 1, 8
BAR, LEAST = 1.0, 0.95
COUNTERS = ("vllm:generation_tokens_total", "stridelm:forwards_total")
START_SECONDS = 2.0
CACHE_TOKENS = 32768


@dataclass(frozen=True)
class Window:
    """What the server wrote in some seconds."""

    seconds: float
    tokens: float
    forwards: float
    texts: dict[str, str]
    """Prompt -> answer, of those that were finished."""

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds


@contextmanager
def server(arguments: list[str]) -> Iterator[str]:
    """A server of its own; gives its address. Its log is not kept: a pipe that nobody reads would fill and stop it."""
    command = [sys.executable, "-m", "stridelm", "serve", "--port", "0", *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://[\d.]+:\d+", line):
            return found[0]
    raise RuntimeError("the server did not start")


async def ask(client: httpx.AsyncClient, prompt: str, decoder: str, tokens: int) -> dict[str, Any]:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": tokens,
        "stride": {"decoder": decoder},
    }
    reply = await client.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    return reply.json()


async def counters(client: httpx.AsyncClient) -> tuple[float, ...]:
    text = (await client.get("/metrics")).text
    found = dict(re.findall(r"^([\w:]+)\{[^}]*\} ([\d.e+]+)$", text, flags=re.MULTILINE))
    return tuple(float(found[name]) for name in COUNTERS)


async def window(client: httpx.AsyncClient, prompts: list[list[str]], decoder: str, options: Any) -> Window:
    """One list of prompts per user."""
    texts: dict[str, str] = {}

    async def use(own: list[str]) -> None:
        for prompt in itertools.cycle(own):
            reply = await ask(client, prompt, decoder, options.tokens)
            texts[prompt] = reply["choices"][0]["message"]["content"]

    users = [asyncio.create_task(use(own)) for own in prompts]
    await asyncio.sleep(START_SECONDS)
    started, before = time.perf_counter(), await counters(client)
    await asyncio.sleep(options.seconds)
    seconds, after = time.perf_counter() - started, await counters(client)
    assert not any(user.done() for user in users), "a user's request failed"
    for user in users:
        user.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    return Window(seconds, after[0] - before[0], after[1] - before[1], texts)


async def measure(address: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry per round and number of users."""
    pool = [str(line.prompt) for file in (MATHS, KINDS) for line in read_prompts(file)]
    shuffled = random.Random(options.seed)
    measured: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=address, timeout=600) as client:
        for number in range(options.rounds):
            for users in options.users:
                drawn = shuffled.sample(pool, 12 + 2 * users)
                await asyncio.gather(*(ask(client, prompt, PLAIN, 1) for prompt in drawn))
                prompts = [drawn[user::users] for user in range(users)]
                order = (PLAIN, AUTO) if number % 2 else (AUTO, PLAIN)
                found = {name: await window(client, prompts, name, options) for name in order}
                measured.append(_entry(number, users, found))
                print(f"round {number + 1}, {users} users: {measured[-1]}", flush=True)
    return measured


def _entry(number: int, users: int, found: dict[str, Window]) -> dict[str, Any]:
    both = found[AUTO].texts.keys() & found[PLAIN].texts.keys()
    return {
        "round": number,
        "users": users,
        PLAIN: found[PLAIN].throughput,
        AUTO: found[AUTO].throughput,
        "ratio": found[AUTO].throughput / found[PLAIN].throughput,
        "tokens per forward": found[AUTO].tokens / found[AUTO].forwards,
        "compared": len(both),
        "same": sum(found[AUTO].texts[prompt] == found[PLAIN].texts[prompt] for prompt in both),
    }


def summary(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_users = {
        users: [entry for entry in measured if entry["users"] == users]
        for users in {each["users"] for each in measured}
    }
    lines: list[dict[str, Any]] = []
    for users, own in sorted(by_users.items()):
        low, mean, high = interval([entry["ratio"] for entry in own])
        line: dict[str, Any] = {
            "users": users,
            "plain tokens/s": statistics.median(entry[PLAIN] for entry in own),
            "auto tokens/s": statistics.median(entry[AUTO] for entry in own),
            "ratio": mean,
            "low": low,
            "high": high,
            "tokens per forward": statistics.mean(entry["tokens per forward"] for entry in own),
            "same": f"{sum(entry['same'] for entry in own)} of {sum(entry['compared'] for entry in own)}",
            "never below plain": mean >= BAR and low >= LEAST,
        }
        if users == TOGETHER and ALONE in by_users:
            for name in (PLAIN, AUTO):
                pairs = zip(own, by_users[ALONE], strict=True)
                line[f"{name}: {TOGETHER} users over one after the other"] = interval(
                    [a[name] / b[name] for a, b in pairs]
                )
        lines.append(line)
    return lines


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a window")
    parser.add_argument("--tokens", type=int, default=96, help="the most tokens of an answer")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seed", type=int, default=0, help="which prompts are drawn")
    options = parser.parse_args()
    with server(["--cache-tokens", str(CACHE_TOKENS)]) as address:
        measured = asyncio.run(measure(address, options))
    lines = summary(measured)
    for line in lines:
        print(json.dumps(line))
    made = {"machine": machine(os.cpu_count() or 1), "command": " ".join(sys.argv)}
    write(options.json, made | {"summary": lines, "measured": measured})


if __name__ == "__main__":
    main()
