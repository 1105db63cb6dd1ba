"""A made-up bench report with everything in it: subjects that keep the text, one that does not, one that loops, a
server that tells little, long contexts and theory."""

import random
from typing import Any

from stridelm.bench.records import Answer, Quality, Record, Report

PLAIN, EXACT, LOSSY, LOOPING, SERVER = "plain", "auto", "adaptive threshold 0.9", "static k 3", "llama.cpp server"
HOSTILE = '</pre><script>alert(1)</script> & "quoted" <img src=http://example.com/x.png>'
_WORDS: tuple[str, ...] = (
    "seats",
    "are",
    "sold",
    "on",
    "Monday",
    "so",
    "we",
    "take",
    "them",
    "away",
    "from",
    "rows",
    "and",
    "left",
)
_SPEED = {PLAIN: 20.0, EXACT: 37.0, LOSSY: 46.0, LOOPING: 51.0, SERVER: 24.0}
_PER_FORWARD = {PLAIN: 1.0, EXACT: 2.3, LOSSY: 2.9, LOOPING: 3.0, SERVER: None}
_EASE = {"maths": 1.15, "code": 1.3, "chat": 0.85, "long": 1.0}


def made_report(subjects: tuple[str, ...] = tuple(_SPEED), rounds: int = 2, questions: int = 4) -> Report:
    dice = random.Random(0)
    report = Report(
        settings={"suites": list(_EASE), "subjects": list(subjects), "rounds": rounds, "max_tokens": 96, "threads": 2},
        circumstances={
            "command": "stridelm bench --suites maths,code,chat,long --page bench-page",
            "stridelm": "0.8.0",
            "commit": "26e0761",
            "time": "2026-11-20T10:00:00+00:00",
            "model": "smollm2-135m",
            "versions": {"torch": "2.13.0", "transformers": "5.17.0"},
            "machine": {"processor": "Intel(R) Xeon(R) @ 2.80GHz", "threads": 2, "device": "cpu"},
        },
        baseline=PLAIN,
        subjects={name: {"decoder": name, "exact": name in (PLAIN, EXACT)} for name in subjects},
        absent={"vllm": "not installed (<b>pip install vllm</b>)"},
    )
    for round_number in range(rounds):
        for suite in _EASE:
            for place in range(questions):
                words = random.Random(f"{suite}{place}").choices(_WORDS, k=60)
                prompt = 256 * 2**place if suite == "long" else 40
                for name in subjects:
                    report.records.append(_record(dice, suite, place, name, round_number, words, prompt))
    report.extra = {"theory": _theory(subjects)}
    return report


def _record(
    dice: random.Random, suite: str, place: int, name: str, round_number: int, words: list[str], prompt: int
) -> Record:
    own, quality = list(words), Quality(identical=True, agreement=1.0, repetition=0.04, right=place != 1)
    if name == LOSSY and place % 2:
        departs = 17 + 3 * place
        own[departs:] = ["so", HOSTILE, *random.Random(departs).choices(_WORDS, k=30)]
        quality = Quality(False, departs, departs / len(words), -1.1, 0.06, False, place == 3)
    if name == LOOPING:
        own[20:] = ["and", "then"] * 25
        quality = Quality(False, 20, 20 / len(words), -0.4, 0.7, True, False)
    if name == SERVER:
        quality = Quality(repetition=0.05, right=place != 2)
    if suite == "chat":
        quality = Quality(quality.identical, quality.departs_at, quality.agreement, -0.9, quality.repetition,
                          quality.loops)  # fmt: skip
    per_forward = _PER_FORWARD[name]
    ease = _EASE[suite] if name not in (PLAIN, SERVER) else 1.0
    strides, seconds, now = [], [], 0.12 + prompt * 2e-4
    while sum(strides) < len(own):
        strides.append(min(len(own) - sum(strides), max(1, round(dice.gauss((per_forward or 1) * ease, 0.8)))))
        now += (per_forward or 1) / _SPEED[name] * dice.lognormvariate(0, 0.12)
        seconds.append(now)
    speculative = name not in (PLAIN, SERVER)
    drafted = tuple(round(40 * 0.8**depth) for depth in range(6)) if speculative else ()
    rates = [min(0.97, (0.7 + 0.03 * len(name) % 0.15) * ease) * 0.93**depth for depth in range(len(drafted))]
    phases = {} if per_forward is None else {"forward": 0.7, "head": 0.12, "verify": 0.01, "sampling": 0.03}
    phases |= {"draft": 0.06, "rest": 0.08} if speculative else {"rest": 0.14} if phases else {}
    return Record(
        suite,
        f"{suite}-{place + 1}",
        name,
        round_number,
        Answer(
            tokens=() if name == SERVER else tuple(hash_of(word) for word in own),
            text=" ".join(own),
            stride_tokens=tuple(strides),
            stride_seconds=tuple(seconds),
            seconds=now + 0.003,
            prompt_tokens=prompt,
            forwards=len(strides) if per_forward else None,
            rows=len(strides) * (6 if speculative else 1) if per_forward else None,
            drafted_by_depth=drafted,
            accepted_by_depth=tuple(round(count * rate) for count, rate in zip(drafted, rates, strict=True)),
            phases={phase: part * now for phase, part in phases.items()},
            memory_peak=None if name == SERVER else 900 * 2**20,
        ),
        quality,
    )


def hash_of(word: str) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(word)) % 49152


def _theory(subjects: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"suite": suite, "subject": name, "expected": 1.05 * ease * (_PER_FORWARD[name] or 1),
         "measured": ease * (_PER_FORWARD[name] or 1)}
        for suite, ease in _EASE.items() for name in subjects if name not in (PLAIN, SERVER)
    ]  # fmt: skip
