"""Throughput of `stridelm serve` under load: the built-in model, float32, greedy, users who ask again and again.

    python bench/serving.py [--rounds 8] [--tokens 64] [--users 1 2 4 8 16] [--json bench/results/serving.json]

A real server, spoken to over HTTP. In every round, for every number of users, plain decoding and `auto` take turns on
the same prompts, all users at once; eight users also ask one after the other. A ratio is that of two throughputs of one
round, so that a slow moment of the machine hits both. Prompts are read before the clock starts: reading them costs both
the same, and what is measured is how fast answers are written. An answer ends where the model ends it, at the same
place for both.
"""

import argparse
import asyncio
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

from decoders import KINDS, MATHS, STUDENT_T
from plain import machine
from stridelm.prompts import read_prompts

PLAIN, AUTO = "autoregressive", "auto"
SEQUENTIAL_USERS = 8
BAR = 0.97


@dataclass(frozen=True)
class Burst:
    """Answers to some prompts, asked at once or one after the other."""

    seconds: float
    tokens: int
    forwards: int
    texts: tuple[str, ...]

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds


@contextmanager
def server(arguments: list[str]) -> Iterator[str]:
    """A server of its own; gives its address."""
    command = [sys.executable, "-m", "stridelm", "serve", "--port", "0", *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
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


async def burst(
    client: httpx.AsyncClient, prompts: list[str], decoder: str, tokens: int, *, at_once: bool = True
) -> Burst:
    started = time.perf_counter()
    if at_once:
        replies = await asyncio.gather(*(ask(client, prompt, decoder, tokens) for prompt in prompts))
    else:
        replies = [await ask(client, prompt, decoder, tokens) for prompt in prompts]
    return Burst(
        time.perf_counter() - started,
        sum(reply["usage"]["completion_tokens"] for reply in replies),
        sum(reply["stride"]["forwards"] for reply in replies),
        tuple(reply["choices"][0]["message"]["content"] for reply in replies),
    )


async def measure(address: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry per round and cell."""
    pool = [str(line.prompt) for file in (MATHS, KINDS) for line in read_prompts(file)]
    shuffled = random.Random(options.seed)
    measured: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=address, timeout=600) as client:
        for number in range(options.rounds):
            for users in options.users:
                prompts = shuffled.sample(pool, users)
                await burst(client, prompts, PLAIN, 1)
                order = (PLAIN, AUTO) if number % 2 else (AUTO, PLAIN)
                found = {name: await burst(client, prompts, name, options.tokens) for name in order}
                entry = _entry(number, users, found)
                if users == SEQUENTIAL_USERS:
                    for name in order:
                        alone = await burst(client, prompts, name, options.tokens, at_once=False)
                        entry[f"{name} one by one"] = alone.throughput
                measured.append(entry)
                print(f"round {number + 1}, {users} users: {AUTO}/{PLAIN} {entry['ratio']:.2f}", flush=True)
    return measured


def _entry(number: int, users: int, found: dict[str, Burst]) -> dict[str, Any]:
    same = sum(ours == theirs for ours, theirs in zip(found[AUTO].texts, found[PLAIN].texts, strict=True))
    return {
        "round": number,
        "users": users,
        PLAIN: found[PLAIN].throughput,
        AUTO: found[AUTO].throughput,
        "ratio": found[AUTO].throughput / found[PLAIN].throughput,
        "tokens per forward": found[AUTO].tokens / found[AUTO].forwards,
        "same": same,
    }


def summary(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for users in sorted({entry["users"] for entry in measured}):
        own = [entry for entry in measured if entry["users"] == users]
        ratios = [entry["ratio"] for entry in own]
        low, mean, high = interval(ratios)
        line = {
            "users": users,
            "plain tokens/s": statistics.median(entry[PLAIN] for entry in own),
            "auto tokens/s": statistics.median(entry[AUTO] for entry in own),
            "ratio": mean,
            "low": low,
            "high": high,
            "tokens per forward": statistics.mean(entry["tokens per forward"] for entry in own),
            "same": f"{sum(entry['same'] for entry in own)} of {users * len(own)}",
            "never below plain": high >= BAR,
        }
        if users == SEQUENTIAL_USERS:
            for name in (PLAIN, AUTO):
                gains = [entry[name] / entry[f"{name} one by one"] for entry in own]
                line[f"{name}: at once over one by one"] = interval(gains)
        lines.append(line)
    return lines


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean with its 95 % interval, by Student's t over the rounds."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, mean, mean
    half = STUDENT_T.get(len(values), 2.2) * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean, mean + half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="the most tokens of an answer")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seed", type=int, default=0, help="which prompts are drawn")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    with server([]) as address:
        measured = asyncio.run(measure(address, options))
    lines = summary(measured)
    for line in lines:
        print(json.dumps(line))
    if options.json:
        figures = {
            "machine": machine(os.cpu_count() or 1),
            "command": " ".join(sys.argv),
            "summary": lines,
            "measured": measured,
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
