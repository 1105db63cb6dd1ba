"""The part `decode` of bench/gpu/run.py: one user.

A part yields its figures again and again, each time with more in them: what was measured is kept, whatever comes next.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from bench.gpu.subject import Subject, as_torch_comes
from bench.gpu.timing import ratios, rounded, summary
from stridelm import SamplingParams
from stridelm.api import LanguageModel
from stridelm.bench.quality import common
from stridelm.settings import PLAIN

Figures = dict[str, Any]
PEER = "transformers"
WAYS = (PLAIN, "self", "auto")


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer, timed after its first token."""

    tokens: tuple[int, ...]
    written: int
    """After the first."""
    seconds: float
    """That these took."""
    forwards: int
    strides: tuple[tuple[int, int], ...] = ()
    """Of these forwards, how many drafts each held and how many tokens it gave."""

    @property
    def pace(self) -> float:
        """Seconds a token."""
        return self.seconds / self.written


def decode(subject: Subject) -> Iterator[Figures]:
    sizes, model = subject.sizes, subject.model
    found: dict[str, dict[str, list[Timed]]] = {}
    for group, prompts in subject.groups().items():
        found[group] = {way: [] for way in (*WAYS, PEER)}
        subject.say(f"{group}: warming up")
        for prompt in (min(prompts, key=len), max(prompts, key=len)):  # short texts and long ones are other graphs
            for way in WAYS:
                answer(model, prompt, way, sizes.tokens)
        _answer_of_transformers(subject, prompts[0], 2)
        for turn in range(sizes.rounds):
            # Nobody is always the first.
            order = [WAYS[(turn + place) % len(WAYS)] for place in range(len(WAYS))]
            for number, prompt in enumerate(prompts):
                if not subject.has_time(f"{group}, round {turn}, from prompt {number}"):
                    break
                for way in order:
                    found[group][way].append(answer(model, prompt, way, sizes.tokens))
                if turn == 0 and number < sizes.peer_prompts:
                    found[group][PEER].append(_answer_of_transformers(subject, prompt, sizes.peer_tokens))
            subject.say(f"{group}, round {turn}: {_in_short(found[group])}")
            measured = {name: group_figures(ways) for name, ways in found.items() if ways[PLAIN]}
            yield {"tokens": sizes.tokens, "groups": measured}


def clear(model: LanguageModel) -> None:
    """Prompts are read anew, and the step that the backend has begun beyond the answer before is none of the next."""
    model.forget()
    model.engine.own_steps.forget()


def answer(model: LanguageModel, prompt: str, decoder: str, tokens: int) -> Timed:
    clear(model)
    result = model.generate(prompt, SamplingParams(max_tokens=tokens), decoder=decoder)
    stats, (first, *later) = result.stats, result.strides
    assert stats.first_token is not None and stats.last_token is not None
    return Timed(
        result.token_ids,
        stats.tokens - len(first.tokens),
        stats.last_token - stats.first_token,
        stats.forwards - 1,
        tuple((stride.drafted, len(stride.tokens)) for stride in later),
    )


class _Arrivals(BaseStreamer):
    """Notes when each token came; the prompt comes first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None: ...


def _answer_of_transformers(subject: Subject, prompt: str, tokens: int) -> Timed:
    """By `generate` as it comes, greedy."""
    ids = torch.tensor([subject.model.encode(prompt)], device=subject.device)
    arrivals = _Arrivals()
    with as_torch_comes():
        output = subject.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            pad_token_id=sorted(subject.model.target.eos_ids)[0],
            streamer=arrivals,
        )
    written = tuple(output[0, ids.shape[1] :].tolist())
    assert len(arrivals.times) == 1 + len(written)
    return Timed(written, len(written) - 1, arrivals.times[-1] - arrivals.times[1], len(written) - 1)


def group_figures(ways: dict[str, list[Timed]]) -> Figures:
    """Answers of one place are to the same prompt in the same round; transformers answered the first ones."""
    plain = ways[PLAIN]
    figures: Figures = {"answers": len(plain)}
    for way in WAYS:
        figures[way] = _way_figures(ways[way]) | _against(plain, ways[way])
    figures["self"]["acceptance_by_depth"] = acceptance_by_depth(ways["self"])
    figures["self"]["steps_by_drafts"] = {
        str(drafts): count
        for drafts, count in sorted(Counter(each for timed in ways["self"] for each, _ in timed.strides).items())
    }
    peers = ways[PEER]
    if peers:
        figures[PEER] = _way_figures(peers)
        figures[PEER]["same_first_tokens"] = sum(
            common(ours.tokens, theirs.tokens) for ours, theirs in zip(plain, peers, strict=False)
        )
        for way in WAYS:
            pairs = [pair for pair in zip(peers, ways[way], strict=False) if all(each.written for each in pair)]
            figures[way]["over_transformers"] = ratios([a.pace for a, _ in pairs], [b.pace for _, b in pairs])
    return figures


def _way_figures(answers: list[Timed]) -> Figures:
    """An answer that its first token ended says nothing of the pace."""
    timed = [each for each in answers if each.written]
    written = sum(each.written for each in timed)
    return {
        "tokens": written,
        "milliseconds_per_token": summary([1000 * each.pace for each in timed]),
        "tokens_per_second": summary([1 / each.pace for each in timed]),
        "tokens_per_forward": rounded(written / sum(each.forwards for each in timed)),
    }


def _against(plain: list[Timed], others: list[Timed]) -> Figures:
    pairs = [pair for pair in zip(plain, others, strict=True) if all(each.written for each in pair)]
    seconds, written = (
        [sum(getattr(pair[side], name) for pair in pairs) for side in range(2)] for name in ("seconds", "written")
    )
    forwards = sum(other.forwards for _, other in pairs)
    whole = (seconds[0] / written[0]) / (seconds[1] / written[1])
    return {
        "speed_up": summary([first.pace / other.pace for first, other in pairs]),
        "speed_up_over_all": rounded(whole),
        "share": rounded(whole * forwards / written[1]),
        "identical_answers": sum(first.tokens == other.tokens for first, other in zip(plain, others, strict=True)),
        "identical_tokens": sum(common(first.tokens, other.tokens) for first, other in zip(plain, others, strict=True)),
        "all_tokens": sum(len(first.tokens) for first in plain),
    }


def acceptance_by_depth(answers: list[Timed]) -> list[float]:
    """The share of drafts that stood among those whose parents did. A text that ends within a step counts the draft
    behind its end as one that fell: the rates are a little too low."""
    looked: Counter[int] = Counter()
    stood: Counter[int] = Counter()
    for drafts, tokens in (stride for each in answers for stride in each.strides):
        for depth in range(min(drafts, tokens)):
            looked[depth] += 1
            stood[depth] += depth < tokens - 1
    return [rounded(stood[depth] / looked[depth]) for depth in sorted(looked)]


def _in_short(ways: dict[str, list[Timed]]) -> str:
    parts = []
    for way, answers in ways.items():
        written, seconds = sum(each.written for each in answers), sum(each.seconds for each in answers)
        if written:
            forwards = sum(each.forwards for each in answers)
            parts.append(f"{way} {1000 * seconds / written:.3f} ms a token, {written / forwards:.2f} a forward")
    return "; ".join(parts)
