"""Acceptance rate and speed-up: the published relation beside theory and beside our engine.

    python bench/decoding/acceptance_and_speed.py [--tokens 96] [--rounds 5] [--threads 2] [--json FILE]

Published, for K = 5 drafts a pass: 2.8x where 90 % of the drafts are right, 2.3x at 80 %, 1.9x at 70 %, 1.5x at 60 %.
With a = that share, a pass makes (1 - a^(K+1)) / (1 - a) tokens. If it took no longer than a plain one, and a draft
cost c of it, the speed-up would be that over 1 + K c; the published figures are those of c = 0.12.

Here a drafter knows the answer, which a plain run has written before, and makes each draft wrong with chance 1 - a. It
drafts for nothing, or works for c plain forwards per draft. Every subject writes the same tokens, in turn, in one
process. Predicted is what theory and the measured times of forwards say; measured is all of the engine, from the first
token to the last.
"""

import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from stridelm import LoadSettings, SamplingParams
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.cache.kv_cache import Table
from stridelm.contracts import Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.speculative import Speculative
from stridelm.engine.engine import Engine
from stridelm.models.encode import encode_prompt
from stridelm.settings import DEFAULT_MODEL
from stridelm.types import Block, Commit, DraftTree, Output, Rows, Sequence

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu.plain import PROMPTS
from bench.measured import compare, machine, spread, summary

K = 5
PUBLISHED = {0.9: 2.8, 0.8: 2.3, 0.7: 1.9, 0.6: 1.5}
FREE, PAID = "free drafts", "paid drafts"


def tokens_per_forward(acceptance: float) -> float:
    return (1 - acceptance ** (K + 1)) / (1 - acceptance)


IMPLIED = {rate: (tokens_per_forward(rate) / speed_up - 1) / K for rate, speed_up in PUBLISHED.items()}
"""The cost of a draft, in plain forwards, that each of the published figures speaks of."""
DRAFT_COST = round(statistics.mean(IMPLIED.values()), 2)


class KnowingDrafter:
    """Proposes what will be written, each token wrong with a chance of its own."""

    name = "knowing"
    layers = ()
    reads_whole_texts = is_optional = reads_predictions = False

    def __init__(self, answer: list[int], acceptance: float, seed: str, seconds_per_draft: float = 0.0) -> None:
        self.answer = answer
        self.acceptance = acceptance
        self.random = random.Random(seed)
        self.seconds_per_draft = seconds_per_draft
        self.weights = torch.ones(1024, 1024)

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        return [self._propose(sequence) for sequence in sequences]

    def _propose(self, sequence: Sequence) -> DraftTree:
        started = time.perf_counter()
        written = len(sequence.output)
        right = self.answer[written : written + K]
        tokens = [token if self.random.random() < self.acceptance else (token + 1) % 1000 for token in right]
        # What a draft model does, too: read weights and multiply.
        while time.perf_counter() < started + self.seconds_per_draft * len(tokens):
            torch.mv(self.weights, self.weights[0])
        return DraftTree.chain(tokens, self.name)

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None: ...

    def release(self, sequence: Sequence) -> None: ...


class TimedForward(TorchForward):
    """Notes how long forwards take, by their rows."""

    def __init__(self, network: PreTrainedModel, cache_tokens: int) -> None:
        super().__init__(network, cache_tokens)
        self.seconds: dict[int, list[float]] = defaultdict(list)

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        started = time.perf_counter()
        outputs = super().__call__(rows, tables)
        self.seconds[len(rows.ids_Q)].append(time.perf_counter() - started)
        return outputs


@dataclass(frozen=True, slots=True)
class Run:
    """One answer."""

    tokens: list[int]
    seconds_per_token: float
    """After the step that read the prompt."""
    strides: list[int]
    """Tokens of each forward whose drafts were not cut short by the answer's end, the prompt's left out."""
    forward_seconds: dict[int, float]
    """Rows -> the median forward over so many."""


class Subject:
    """The built-in model on an engine of its own."""

    def __init__(self, tokens: int, threads: int) -> None:
        self.checkpoint = load_checkpoint(DEFAULT_MODEL, LoadSettings(device="cpu", threads=threads))
        self.forward = TimedForward(self.checkpoint.network, 4096)
        self.engine = Engine(self.forward, self.checkpoint.tokenizer)
        self.params = SamplingParams(max_tokens=tokens)

    def run(self, prompt: list[int], policy: Policy) -> Run:
        """An answer that goes on behind its end, so that all are of one length."""
        sequence = Sequence(list(prompt), self.params, policy, frozenset(), self.checkpoint.context_length)
        self.engine.add(sequence)
        self.engine.step()
        self.forward.seconds.clear()
        first, started, strides = len(sequence.output), time.perf_counter(), []
        while sequence.finish_reason is None:
            is_whole = sequence.room > K
            written = len(sequence.tokens)
            self.engine.step()
            if is_whole:
                strides.append(len(sequence.tokens) - written)
        seconds = (time.perf_counter() - started) / (len(sequence.output) - first)
        medians = {rows: statistics.median(each) for rows, each in self.forward.seconds.items()}
        return Run(sequence.output, seconds, strides, medians)


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt, once by every subject."""

    plain: Run
    runs: dict[tuple[float, str], Run]

    def speed_up(self, acceptance: float, kind: str) -> float:
        return self.plain.seconds_per_token / self.runs[acceptance, kind].seconds_per_token

    @property
    def time_ratio(self) -> float:
        """A forward over K + 1 rows against one over 1."""
        wide = statistics.median(run.forward_seconds[K + 1] for run in self.runs.values())
        return wide / self.plain.forward_seconds[1]

    @property
    def identical(self) -> int:
        return sum(run.tokens == self.plain.tokens for run in self.runs.values())


def play(subject: Subject, rounds: int) -> Iterator[Round]:
    prompts = [encode_prompt(subject.checkpoint, prompt) for prompt in PROMPTS["general"]]
    for number in range(-1, rounds):  # round -1 warms up
        for index, prompt in enumerate(prompts):
            plain = subject.run(prompt, Autoregressive())
            runs: dict[tuple[float, str], Run] = {}
            for acceptance in PUBLISHED:
                for kind, cost in ((FREE, 0.0), (PAID, DRAFT_COST * plain.forward_seconds[1])):
                    # The same seed for both kinds: they accept the same drafts.
                    drafter = KnowingDrafter(plain.tokens, acceptance, f"{acceptance} {number} {index}", cost)
                    runs[acceptance, kind] = subject.run(prompt, Speculative(drafter))
            if number >= 0:
                yield Round(plain, runs)


def measure(tokens: int, rounds: int, threads: int) -> dict[str, Any]:
    played = list(play(Subject(tokens, threads), rounds))
    ratio = summary([each.time_ratio for each in played])
    rates: dict[str, Any] = {}
    for acceptance, published in PUBLISHED.items():
        expected = tokens_per_forward(acceptance)
        strides = [stride for each in played for stride in each.runs[acceptance, FREE].strides]
        rates[str(acceptance)] = {
            "tokens_per_forward": {"theory": expected, "measured": statistics.mean(strides), "forwards": len(strides)},
            "published": {"speed_up": published, "implied_draft_cost": IMPLIED[acceptance]},
            "published_theory": expected / (1 + K * DRAFT_COST),
        } | {
            kind: {
                "predicted": expected / (ratio["median"] + K * cost),
                "measured": summary([each.speed_up(acceptance, kind) for each in played]),
            }
            for kind, cost in ((FREE, 0.0), (PAID, DRAFT_COST))
        }
    return {
        "machine": machine(threads),
        "tokens": tokens,
        "runs": len(played),
        "identical": sum(each.identical for each in played),
        "compared": sum(len(each.runs) for each in played),
        "k": K,
        "draft_cost": DRAFT_COST,
        "time_ratio": ratio,
        "acceptance": rates,
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as Markdown, with the machine they come from."""
    cost, ratio, where = figures["draft_cost"], figures["time_ratio"], figures["machine"]
    lines = [
        f"| drafts right | tokens per forward: theory, measured | free drafts: predicted, measured | drafts of {cost} "
        f"forwards each: predicted, measured | published | theory at {cost}, width free |",
        "|---|---|---|---|---|---|",
    ]
    for rate, figure in figures["acceptance"].items():
        made = figure["tokens_per_forward"]
        pairs = [
            f"{part['predicted']:.2f}x, {spread(part['measured'], unit='x')}" for part in (figure[FREE], figure[PAID])
        ]
        lines.append(
            f"| {float(rate):.0%} | {made['theory']:.2f}, {made['measured']:.2f} | {' | '.join(pairs)} | "
            f"{figure['published']['speed_up']}x | {figure['published_theory']:.2f}x |"
        )
    lines.append(
        f"\nK = {K} drafts a pass. A forward over {K + 1} rows took {spread(ratio)} "
        f"times one over 1 row; theory takes it for 1. Medians (and spread) of {figures['runs']} "
        f"interleaved runs of {figures['tokens']} tokens; {figures['identical']} of {figures['compared']} drafted runs "
        f"wrote the tokens of plain decoding. {where['processor']}, {where['threads']} threads, float32, "
        f"torch {where['torch']}, commit {where['commit']}, {where['date']}."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    compare(__doc__, measure, table)
