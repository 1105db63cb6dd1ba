"""The part `rollouts` of bench/gpu/run.py: a thousand texts at once, by training's engine and by transformers."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.gpu.subject import Subject, as_torch_comes
from bench.gpu.timing import ratios, summary
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt

Figures = dict[str, Any]
OURS = "ours"
CACHES = {"transformers, dynamic cache": None, "transformers, static cache": "static"}


def rollouts(subject: Subject) -> Iterator[Figures]:
    """Prompts are read in the time that is measured, by everyone alike; the same number of tokens is written."""
    sizes = subject.sizes
    prompts = subject.short_prompts(sizes.rollouts)
    engine = RolloutEngine(subject.checkpoint, sizes.rollouts, max(map(len, prompts)) + sizes.rollout_tokens)
    ways: dict[str, Callable[[], int]] = {OURS: lambda: _run_ours(engine, prompts, sizes.rollout_tokens)}
    for name, cache in CACHES.items():
        ways[name] = lambda cache=cache: _run_theirs(subject, prompts, sizes.rollout_tokens, cache)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, sizes.rounds):  # the first warms up
        for name, run in ways.items():
            if not subject.has_time(f"{name}, round {turn}"):
                continue
            started = time.perf_counter()
            written = run()
            speed = written / (time.perf_counter() - started)
            subject.say(f"{name}: {speed:.0f} tokens/s{' (warming up)' if turn < 0 else ''}")
            if turn >= 0:
                speeds[name].append(speed)
        if turn >= 0:
            yield rollout_figures(sizes.rollouts, sizes.rollout_tokens, speeds)


def rollout_figures(sequences: int, tokens: int, speeds: dict[str, list[float]]) -> Figures:
    """Ratios are those to the fastest way of transformers."""
    measured = {name: found for name, found in speeds.items() if found}
    figures: Figures = {"sequences": sequences, "tokens": tokens}
    figures["tokens_per_second"] = {name: summary(found) for name, found in measured.items()}
    theirs = [name for name in CACHES if name in measured]
    if theirs and OURS in measured:
        best = max(theirs, key=lambda name: figures["tokens_per_second"][name]["median"])
        count = min(len(measured[OURS]), len(measured[best]))
        figures["ratio"] = ratios(measured[OURS][:count], measured[best][:count]) | {"over": best}
    return figures


def _run_ours(engine: RolloutEngine, prompts: list[list[int]], tokens: int) -> int:
    written = sum(len(answer) for _, answer in engine.run(RolloutPrompt(tuple(ids), tokens) for ids in prompts))
    assert written == tokens * len(prompts)
    return written


def _run_theirs(subject: Subject, prompts: list[list[int]], tokens: int, cache: str | None) -> int:
    """Padded on the left, as `generate` asks for. A static cache would have it compile: that is another measurement."""
    longest = max(map(len, prompts))
    ids_BT = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for row, ids in enumerate(prompts):
        ids_BT[row, longest - len(ids) :] = torch.tensor(ids)
    lengths_B1 = torch.tensor([[len(ids)] for ids in prompts])
    mask_BT = (torch.arange(longest)[None] >= longest - lengths_B1).long()
    with as_torch_comes():
        output = subject.network.generate(
            ids_BT.to(subject.device),
            attention_mask=mask_BT.to(subject.device),
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation=cache,
            disable_compile=True,
        )
    written = output.shape[1] - longest
    assert written == tokens, f"{written} tokens instead of {tokens}"
    output[0, -1].item()  # all is done when this is here
    return written * len(prompts)
