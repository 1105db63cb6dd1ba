"""Parts of bench/gpu/run.py with several users: `batches` and `exact`.

A part yields its figures again and again, each time with more in them: what was measured is kept, whatever comes next.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bench.gpu.answers import clear
from bench.gpu.subject import Subject
from bench.gpu.timing import ratios, rounded, summary
from stridelm import SamplingParams
from stridelm.api import LanguageModel
from stridelm.bench.quality import common
from stridelm.contracts import Forward
from stridelm.layout import lay_out, make_block
from stridelm.settings import PLAIN
from stridelm.types import Sequence

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Together:
    answers: list[tuple[int, ...]]
    seconds: float
    """While every user was being answered: from when all had a first token until nobody had a question left."""
    written: int
    """In that time."""
    forwards: int
    """Of all answers, each counted by itself."""


def write_together(model: LanguageModel, prompts: list[list[int]], decoder: str, tokens: int, users: int) -> Together:
    """Each user asks the next question as soon as one is answered. All answers are as long: what a model goes on with
    behind an answer's end is a text as good as any."""
    clear(model)
    settings = model.check(decoder)
    sequences = [model.sequence(list(ids), SamplingParams(max_tokens=tokens), settings) for ids in prompts]
    waiting, busy = deque(sequences), list[Sequence]()
    begun = ended = 0.0
    at_first = at_last = 0
    while waiting or busy:
        while waiting and len(busy) < users:
            sequence = waiting.popleft()
            sequence.eos_ids, sequence.reads_anew = frozenset(), True
            model.engine.add(sequence)
            busy.append(sequence)
        if begun and not waiting and not ended and users < len(prompts):
            ended, at_last = time.perf_counter(), _written(sequences)
        for _, event in model.engine.step():
            if isinstance(event, Exception):
                raise event
        busy = [sequence for sequence in busy if sequence.finish_reason is None]
        if not begun and all(sequence.output for sequence in sequences[:users]):
            begun, at_first = time.perf_counter(), _written(sequences)
    if not ended:  # everybody had one question: until all are answered
        ended, at_last = time.perf_counter(), _written(sequences)
    return Together(
        [tuple(sequence.output) for sequence in sequences],
        ended - begun,
        at_last - at_first,
        sum(sequence.stats.forwards for sequence in sequences),
    )


def _written(sequences: list[Sequence]) -> int:
    return sum(len(sequence.output) for sequence in sequences)


def batches(subject: Subject) -> Iterator[Figures]:
    sizes, model = subject.sizes, subject.model
    users: dict[str, Figures] = {}
    for count in sizes.users:
        if not subject.has_time(f"{count} users"):
            continue
        prompts = subject.short_prompts(count * sizes.questions)
        found: dict[str, list[Together]] = {PLAIN: [], "auto": []}
        for turn in range(-sizes.warm_up, sizes.rounds):
            for way in found:
                together = write_together(model, prompts, way, sizes.user_tokens, count)
                if turn >= 0:
                    found[way].append(together)
        speeds = {way: [each.written / each.seconds for each in runs] for way, runs in found.items()}
        auto = found["auto"]
        users[str(count)] = {
            **{way: summary(speeds[way]) for way in found},
            "ratio": ratios(speeds["auto"], speeds[PLAIN]),
            "tokens_per_forward": rounded(
                sum(len(tokens) for each in auto for tokens in each.answers) / sum(each.forwards for each in auto)
            ),
            "identical_answers": sum(
                ours == theirs
                for each, plain in zip(auto, found[PLAIN], strict=True)
                for ours, theirs in zip(each.answers, plain.answers, strict=True)
            ),
            "answers": len(prompts) * len(auto),
        }
        medians = ", ".join(f"{way} {users[str(count)][way]['median']:.0f} tokens/s" for way in found)
        subject.say(f"{count} users: {medians}, {users[str(count)]['ratio']['median']:.2f}x")
        yield {"tokens": sizes.user_tokens, "questions": sizes.questions, "users": users}


def exact(subject: Subject) -> Iterator[Figures]:
    sizes, model = subject.sizes, subject.model
    others = subject.prompts["general"][: sizes.exact_prompts // 2]
    texts = [*subject.prompts["maths"][: sizes.exact_prompts - len(others)], *others]
    prompts = [model.encode(text) for text in texts]
    found: dict[str, list[tuple[int, ...]]] = {f"{way}, {sizes.at_once} at once": [] for way in (PLAIN, "self")}
    found |= {f"{way}, alone": [] for way in (PLAIN, "self")}
    batched_plain, batched, alone_plain, alone = found

    def figures() -> Figures:
        compared = ((batched_plain, batched), (alone_plain, alone), (alone_plain, batched_plain))
        return {
            "tokens": sizes.tokens,
            "comparisons": [
                {"of": other, "with": plain} | comparison(model.engine.forward, prompts, found[plain], found[other])
                for plain, other in compared
            ],
        }

    for first in range(0, len(prompts), sizes.at_once):
        if not subject.has_time(f"from prompt {first}"):
            break
        wave = prompts[first : first + sizes.at_once]
        for name, way in ((batched_plain, PLAIN), (batched, "self")):
            found[name] += write_together(model, wave, way, sizes.tokens, len(wave)).answers
        subject.say(f"{first + len(wave)} prompts, {sizes.at_once} at once")
        yield figures()
    for number, ids in enumerate(prompts[: sizes.alone]):
        if not subject.has_time(f"alone, from prompt {number}"):
            break
        for name, way in ((alone_plain, PLAIN), (alone, "self")):
            found[name] += write_together(model, [ids], way, sizes.tokens, 1).answers
    subject.say(f"{len(found[alone])} prompts alone")
    yield figures()


def comparison(
    forward: Forward, prompts: list[list[int]], plain: list[tuple[int, ...]], others: list[tuple[int, ...]]
) -> Figures:
    """Tokens are compared up to the first that differs: behind it the texts are different ones."""
    figures: Figures = {"prompts": 0, "tokens": 0, "identical_tokens": 0, "departures": []}
    for number, (first, other) in enumerate(zip(plain, others, strict=False)):
        same = common(first, other)
        figures["prompts"] += 1
        figures["tokens"] += len(first)
        figures["identical_tokens"] += same
        if first != other:
            gap = margin(forward, [*prompts[number], *first[:same]])
            figures["departures"].append({"prompt": number, "position": same, "margin": gap})
    return figures


def margin(forward: Forward, tokens: list[int]) -> float:
    """The gap between the two best logits behind a text, by a plain pass over it."""
    table = forward.cache.open()
    try:
        (output,) = forward(lay_out([make_block(0, tokens)]), [table])
    finally:
        forward.cache.free(table)
    best, second = torch.as_tensor(output.logits_WV[-1]).float().topk(2).values.tolist()
    return rounded(best - second)
