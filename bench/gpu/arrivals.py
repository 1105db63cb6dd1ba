"""Parts of gpu/run.py about what users get: `arrivals`, where they come and go; `agreement` with `stridelm bench`.

A part yields its figures again and again, each time with more in them: what was measured is kept, whatever comes next.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.answers import WAYS, Timed, answer
from bench.gpu.subject import Subject
from bench.gpu.timing import ratios, rounded, summary
from stridelm import SamplingParams
from stridelm.api import LanguageModel
from stridelm.bench.measures import decode_speed
from stridelm.bench.records import Question
from stridelm.bench.subjects.ours import ours
from stridelm.engine.worker import Event, Worker
from stridelm.settings import PLAIN, DecodeSettings
from stridelm.stats import path_in_words
from stridelm.types import Sequence

Figures = dict[str, Any]
DECODERS = ("auto", "auto", "self", PLAIN)
FILTERS: tuple[dict[str, Any], ...] = (
    {}, {}, {"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 0.7, "top_k": 40, "min_p": 0.02},
)  # fmt: skip
"""Greedy and sampled."""
FEWEST = 200
"""Answers that say something."""
LEAVES = 0.3
"""The share of users who leave before their answer is whole."""


@dataclass(frozen=True, slots=True)
class Request:
    """Hashable by its number: the same request is asked many times, by several users at once, too."""

    number: int
    prompt: tuple[int, ...]
    decoder: str
    params: SamplingParams = field(compare=False)

    def sequence(self, model: LanguageModel) -> Sequence:
        return model.sequence(list(self.prompt), self.params, model.check(self.decoder))


class Crowd:
    """Up to `users` users, one more every `gap` seconds; who has an answer, or leaves, asks something else."""

    def __init__(self, worker: Worker, model: LanguageModel, requests: list[Request], seed: int) -> None:
        self.worker, self.model, self.requests = worker, model, requests
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.answers: list[tuple[Request, tuple[int, ...], bool]] = []
        """What was written, and whether it is whole."""
        self.errors: list[str] = []
        self.tokens = 0
        self._open: dict[Sequence, tuple[Request, int]] = {}
        """With the number of tokens at which its user leaves."""
        self._lock = threading.Lock()

    def stay(self, users: int, gap: float, seconds: float) -> float:
        """Let users come and ask for so long, three times as long where steps are captured meanwhile and few are
        answered; then let all who are there finish or leave. Returns how long that took."""
        began = time.perf_counter()
        present = 0
        while self.worker.is_healthy:
            elapsed = time.perf_counter() - began
            if elapsed > seconds and (len(self.answers) >= FEWEST or elapsed > 3 * seconds):
                break
            present = max(present, min(users, 1 + int(elapsed / gap)))
            with self._lock:
                missing = present - len(self._open)
            for _ in range(missing):
                self._ask()
            time.sleep(0.002)
        while not self.worker.is_idle and self.worker.is_healthy:
            time.sleep(0.002)
        return time.perf_counter() - began

    def _ask(self) -> None:
        request = self.random.choice(self.requests)
        sequence = request.sequence(self.model)
        leaves = self.random.random() < LEAVES
        at = self.random.randrange(1, request.params.max_tokens) if leaves else request.params.max_tokens + 1
        with self._lock:
            self._open[sequence] = request, at
        self.counts["asked"] += 1
        self.worker.submit(sequence, lambda event: self._receive(sequence, event))

    def _receive(self, sequence: Sequence, event: Event) -> None:
        """In the worker's thread."""
        request, leaves_at = self._open.get(sequence, (None, 0))
        if request is None:
            return  # it has left
        if isinstance(event, Exception):
            self.errors.append(repr(event))
        self.tokens += 0 if isinstance(event, Exception) else len(event.tokens)
        is_whole = sequence.finish_reason is not None
        if isinstance(event, Exception) or is_whole or len(sequence.output) >= leaves_at:
            self.answers.append((request, tuple(sequence.output), is_whole))
            self.counts["whole" if is_whole else "left"] += 1
            self.counts["sampled" if request.params.temperature else "greedy"] += 1
            self.counts["own forwards"] += sequence.stats.own_forwards
            self.counts["host forwards"] += sequence.stats.forwards - sequence.stats.own_forwards
            if not is_whole:
                self.worker.cancel(sequence)
            with self._lock:
                del self._open[sequence]


def requests_of(subject: Subject) -> list[Request]:
    sizes = subject.sizes
    prompts = subject.short_prompts(sizes.requests)
    dice = random.Random(0)
    return [
        Request(
            number,
            tuple(prompts[number]),
            DECODERS[number % len(DECODERS)],
            SamplingParams(dice.randrange(8, sizes.user_tokens + 1), seed=number, **FILTERS[number % len(FILTERS)]),
        )
        for number in range(sizes.requests)
    ]


def arrivals(subject: Subject) -> Iterator[Figures]:
    """Every answer, whole or not, must be what the same request gets alone, and the cache must be empty at the end."""
    sizes, model = subject.sizes, subject.model
    requests = requests_of(subject)
    worker = Worker(model.engine)
    worker.start()
    cache, users = model.engine.forward.cache, dict[str, Figures]()
    try:
        alone = {request: _alone(worker, model, request) for request in requests}
        subject.say(f"{len(alone)} requests answered alone")
        for count in sizes.users:
            if not subject.has_time(f"{count} users"):
                continue
            crowd = Crowd(worker, model, requests, seed=count)
            seconds = crowd.stay(count, sizes.arrival_gap, sizes.stay_seconds)
            wrong = [
                {"request": request.number, "decoder": request.decoder, "tokens": len(written)}
                for request, written, is_whole in crowd.answers
                if written != alone[request][: len(written)] or (is_whole and written != alone[request])
            ]
            users[str(count)] = {
                **{name: crowd.counts[name] for name in ("asked", "whole", "left", "greedy", "sampled")},
                **{name: crowd.counts[name] for name in ("own forwards", "host forwards")},
                "compared": len(crowd.answers),
                "wrong": wrong,
                "errors": crowd.errors,
                "tokens_per_second": rounded(crowd.tokens / seconds),
                "seconds": rounded(seconds),
                "blocks_left": cache.block_count - cache.free_blocks,
                "own_step_failures": model.engine.own_steps.failures,
                "is_healthy": worker.is_healthy,
            }
            subject.say(f"{count} users: {users[str(count)]}")
            yield {"gap_milliseconds": 1000 * sizes.arrival_gap, "requests": len(requests), "users": users}
            if not worker.is_healthy:
                raise RuntimeError("the engine has ended") from worker.failure
    finally:
        worker.stop()


def _alone(worker: Worker, model: LanguageModel, request: Request) -> tuple[int, ...]:
    sequence, done = request.sequence(model), threading.Event()
    failed: list[Exception] = []

    def receive(event: Event) -> None:
        if isinstance(event, Exception):
            failed.append(event)
        if sequence.finish_reason or failed:
            done.set()

    worker.submit(sequence, receive)
    done.wait()
    if failed:
        raise failed[0]
    return tuple(sequence.output)


def agreement(subject: Subject) -> Iterator[Figures]:
    """`stridelm bench` and the part `decode` in turn, same prompts: tokens per second behind the first stride."""
    sizes, model = subject.sizes, subject.model
    benched = {each.name: each for each in ours(model, [DecodeSettings(way) for way in WAYS])}
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    same: Counter[str] = Counter()
    forwards: Counter[str] = Counter()
    own: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for each in benched.values():
        each.start()
    for group, prompts in subject.groups().items():
        speeds = found[group] = {way: {"bench": [], "decode": []} for way in WAYS}
        for turn in range(-1, sizes.rounds):  # the first warms up
            for number, prompt in enumerate(prompts):
                if not subject.has_time(f"{group}, round {turn}, from prompt {number}"):
                    break
                for way in WAYS:
                    question = Question(group, str(number), ({"role": "user", "content": prompt},), sizes.tokens)
                    asked = benched[way].ask(question)
                    timed: Timed = answer(model, prompt, way, sizes.tokens)
                    speed = decode_speed(asked)
                    if turn >= 0 and speed and timed.written:
                        speeds[way]["bench"].append(speed)
                        speeds[way]["decode"].append(1 / timed.pace)
                        same[way] += asked.tokens == timed.tokens
                        forwards[way] += asked.forwards or 0
                        own[way] += asked.own_forwards or 0
                        answers[way] += 1
        subject.say(f"{group}: {_in_short(speeds)}")
        yield {
            "tokens": sizes.tokens,
            "groups": {
                name: {
                    way: {
                        **{by: summary(speed) for by, speed in each.items()},
                        "ratio": ratios(each["bench"], each["decode"]),
                    }
                    for way, each in ways.items()
                    if each["bench"]
                }
                for name, ways in found.items()
            },
            "identical_answers": dict(same),
            "answers": dict(answers),
            "paths": {
                way: path_in_words(model.engine.forward.backend, forwards[way], own[way], answers[way])
                for way in answers
            },
        }


def _in_short(speeds: dict[str, dict[str, list[float]]]) -> str:
    return "; ".join(
        f"{way}: bench {summary(each['bench'])['median']:.0f}, decode {summary(each['decode'])['median']:.0f} tokens/s"
        for way, each in speeds.items()
        if each["bench"]
    )
