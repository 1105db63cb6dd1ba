"""Every decoder on every kind of prompt: the built-in model, float32, greedy, one prompt at a time; writes decoders.md.

    python bench/decoding/decoders.py [--tokens 128] [--rounds 5] [--json FILE] [--markdown FILE] [--render]

Plain decoding and `auto` take turns on every prompt, round after round; a ratio is that of two times of one prompt in
one round. transformers takes part in the first three rounds, the other decoders in the first only. Prompts were not
trained on. An answer may end before its tokens are used up; all that are exact end at the same place.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from stridelm import DecodeSettings, LanguageModel, LoadSettings, Result, SamplingParams, load
from stridelm.bench.quality import agreement
from stridelm.models.builtin import ensure_builtin
from stridelm.prompts import read_prompts

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.decoding.acceptance_and_speed import table as relation_table
from bench.measured import MATHS, RESULTS, interval, machine, prompts_by_kind, script_parser, write

PLAIN, AUTO, PEER = "autoregressive", "auto", "transformers"
OTHERS = {
    "self": DecodeSettings("self"),
    "ensemble": DecodeSettings("ensemble"),
    "ngram": DecodeSettings("ngram"),
    "auto, tolerance 0.3": DecodeSettings("auto", tolerance=0.3),
    "auto, tolerance 0.6": DecodeSettings("auto", tolerance=0.6),
    "adaptive, threshold 0.9": DecodeSettings("adaptive", threshold=0.9),
    "adaptive, threshold 0.7": DecodeSettings("adaptive", threshold=0.7),
    "static, k 2": DecodeSettings("static", k=2),
}
PEER_ROUNDS = 3


@dataclass
class Run:
    """One answer."""

    seconds: float
    tokens: list[int]
    forwards: int
    rows: float
    """Per forward."""
    forward_seconds: float
    exact: bool


@dataclass
class Prompt:
    kind: str
    text: str
    raw: bool = False
    runs: dict[str, list[Run]] = field(default_factory=dict)


def main() -> None:
    parser = script_parser(__doc__, RESULTS / "decoders.json")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per answer")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds over all prompts")
    parser.add_argument("--maths", type=int, default=5, help="questions of the held-out GSM8K file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--markdown", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--render", action="store_true", help="measure nothing: write the Markdown from the JSON anew")
    options = parser.parse_args()
    if options.render:
        options.markdown.write_text(markdown(json.loads(options.json.read_text())))
        return
    prompts = choose_prompts(options.maths)
    bench = Bench(options.tokens, options.threads)
    for round_number in range(options.rounds):
        for number, prompt in enumerate(prompts):
            bench.take_turns(prompt, with_peer=round_number < PEER_ROUNDS, with_others=round_number == 0)
            print(
                f"\rround {round_number + 1} of {options.rounds}, prompt {number + 1} of {len(prompts)}",
                end="",
                flush=True,
            )
    print()
    figures = {
        "machine": machine(options.threads),
        "tokens": options.tokens,
        "rounds": options.rounds,
        "kinds": {kind: bench.figures(part) for kind, part in by_kind(prompts).items()},
        "bars": bars(prompts),
        "explain": bench.model.explain(AUTO),
    }
    write(options.json, figures)
    options.markdown.write_text(markdown(figures))
    print(options.markdown.read_text())


def choose_prompts(maths: int) -> list[Prompt]:
    """Held-out questions, one prompt of every kind, and noise: letters, and tokens that never stood together."""
    prompts = [Prompt("gsm8k", str(line.prompt)) for line in read_prompts(MATHS)[100 : 100 + maths]]
    prompts += [Prompt(kind, texts[6]) for kind, texts in prompts_by_kind().items()]
    dice = random.Random(0)
    letters = "".join(dice.choice("abcdefghijklmnopqrstuvwxyz     0123456789,.;:-+*/#") for _ in range(200))
    words = " ".join(
        dice.choice(["qua", "zel", "trib", "mox", "fen", "dral", "ply", "oke", "sun", "wik", "gar", "tor"])
        for _ in range(60)
    )
    return [*prompts, Prompt("noise", letters, raw=True), Prompt("noise", words, raw=True)]


def by_kind(prompts: list[Prompt]) -> dict[str, list[Prompt]]:
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt)
    return kinds


class Bench:
    """The model twice: ours, and transformers' own."""

    def __init__(self, tokens: int, threads: int) -> None:
        self.params = SamplingParams(max_tokens=tokens)
        self.model: LanguageModel = load(settings=LoadSettings(device="cpu", threads=threads))
        self.peer: Any = AutoModelForCausalLM.from_pretrained(ensure_builtin(), dtype=torch.float32).eval()
        self.subjects: dict[str, Callable[[Prompt], Run]] = {PEER: self._peer}
        for name, settings in ({PLAIN: DecodeSettings(PLAIN), AUTO: DecodeSettings(AUTO)} | OTHERS).items():
            self.subjects[name] = lambda prompt, settings=settings: self._ours(prompt, settings)
        short = Prompt("warm-up", "Say hello.")
        for subject in self.subjects.values():
            subject(short)

    def take_turns(self, prompt: Prompt, *, with_peer: bool, with_others: bool) -> None:
        for name, subject in self.subjects.items():
            if name in (PLAIN, AUTO) or (with_peer if name == PEER else with_others):
                prompt.runs.setdefault(name, []).append(subject(prompt))

    def _ours(self, prompt: Prompt, settings: DecodeSettings) -> Run:
        started = time.perf_counter()
        self.model.forget()
        result: Result = self.model.generate(prompt.text, self.params, decoder=settings, raw=prompt.raw)
        seconds, stats = time.perf_counter() - started, result.stats
        return Run(
            seconds,
            list(result.token_ids),
            stats.forwards,
            (stats.rows - stats.prompt_tokens + 1) / stats.forwards,
            (stats.latency - stats.ttft) / max(1, stats.forwards - 1),
            result.exact,
        )

    def _peer(self, prompt: Prompt) -> Run:
        ids = torch.tensor([self.model.encode(prompt.text, raw=prompt.raw)])
        eos = sorted(self.model.target.eos_ids)
        started = time.perf_counter()
        with torch.inference_mode():
            output = self.peer.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=self.params.max_tokens,
                eos_token_id=eos,
                pad_token_id=eos[0],
            )
        seconds = time.perf_counter() - started
        tokens = output[0, ids.shape[1] :].tolist()
        return Run(seconds, tokens, len(tokens), 1.0, seconds / len(tokens), True)

    def figures(self, prompts: list[Prompt]) -> dict[str, Any]:
        """Per decoder, over the prompts of one kind."""
        return {name: self._figure(prompts, name) for name in self.subjects}

    def _figure(self, prompts: list[Prompt], name: str) -> dict[str, Any]:
        prompt_runs = [prompt.runs for prompt in prompts]
        runs = [run for each in prompt_runs for run in each[name]]
        tokens = sum(len(run.tokens) for run in runs)
        agreed = [agreement(each[PLAIN][0].tokens, each[name][0].tokens) for each in prompt_runs]
        return {
            "tokens_per_forward": round(tokens / sum(run.forwards for run in runs), 3),
            "rows_per_forward": round(statistics.mean(run.rows for run in runs), 2),
            "forward_ms": round(1e3 * statistics.median(run.forward_seconds for run in runs), 2),
            "tokens_per_s": round(statistics.median(len(run.tokens) / run.seconds for run in runs), 1),
            "speed_up": round(statistics.mean(speed_ups(prompts, name, PLAIN)), 3),
            "identical": all(run.tokens == each[PLAIN][0].tokens for each in prompt_runs for run in each[name]),
            "agreement": round(statistics.mean(agreed), 3),
            "log_likelihood": round(statistics.mean(self._log_likelihood(prompt, name) for prompt in prompts), 3),
            "exact": all(run.exact for run in runs),
        }

    @torch.inference_mode()
    def _log_likelihood(self, prompt: Prompt, name: str) -> float:
        """The base model's mean log-probability of a token of the answer."""
        text, answer = self.model.encode(prompt.text, raw=prompt.raw), prompt.runs[name][0].tokens
        logits = self.peer(torch.tensor([text + answer]), use_cache=False).logits[0, len(text) - 1 : -1]
        return float(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).mean())


def speed_ups(prompts: list[Prompt], name: str, over: str) -> list[float]:
    """Per prompt, the median over the rounds of the ratio of times per token."""
    ratios: list[float] = []
    for prompt in prompts:
        pairs = zip(prompt.runs[over], prompt.runs[name], strict=False)
        ratios.append(statistics.median((a.seconds / len(a.tokens)) / (b.seconds / len(b.tokens)) for a, b in pairs))
    return ratios


def bars(prompts: list[Prompt]) -> dict[str, Any]:
    """What the issue asks of `auto`."""
    kinds = by_kind(prompts)
    general = [prompt for prompt in prompts if prompt.kind not in ("gsm8k", "noise")]
    return {
        "maths_over_plain": round(statistics.mean(speed_ups(kinds["gsm8k"], AUTO, PLAIN)), 3),
        "maths_over_transformers": round(statistics.mean(speed_ups(kinds["gsm8k"], AUTO, PEER)), 3),
        "plain_over_transformers": round(statistics.mean(speed_ups(prompts, PLAIN, PEER)), 3),
        "general_over_plain": round(statistics.mean(speed_ups(general, AUTO, PLAIN)), 3),
        "general_over_transformers": round(statistics.mean(speed_ups(general, AUTO, PEER)), 3),
        "by_kind": {kind: bounds(part) for kind, part in kinds.items()},
        "auto_identical_to_plain": sum(
            run.tokens == prompt.runs[PLAIN][0].tokens for prompt in prompts for run in prompt.runs[AUTO]
        ),
        "auto_runs": sum(len(prompt.runs[AUTO]) for prompt in prompts),
    }


def bounds(prompts: list[Prompt]) -> dict[str, float]:
    """`auto` over plain decoding, the times of a kind's prompts summed round by round: mean and 95 % bounds."""
    rounds = zip(*(zip(p.runs[PLAIN], p.runs[AUTO], strict=True) for p in prompts), strict=True)
    ratios = [sum(plain.seconds for plain, _ in each) / sum(auto.seconds for _, auto in each) for each in rounds]
    low, mean, high = interval(ratios)
    return {"mean": round(mean, 3), "low": round(low, 3), "high": round(high, 3)}


def markdown(figures: dict[str, Any]) -> str:
    where, bar = figures["machine"], figures["bars"]
    lines = [
        "# Decoders, measured",
        "",
        "Written by `python bench/decoding/decoders.py` from `bench/results/decoders.json`. Do not edit.",
        "",
        f"The built-in model, float32, greedy, one prompt at a time, up to {figures['tokens']} new tokens, prompts "
        f"that it was not trained on. {where['processor']}, {where['threads']} threads, torch {where['torch']}, "
        f"transformers {where['transformers']}, commit {where['commit']}, {where['date']}. Plain decoding "
        f"and `auto` took {figures['rounds']} interleaved rounds, transformers {min(PEER_ROUNDS, figures['rounds'])}, "
        "the others one.",
        "",
        "## `auto`",
        "",
        "| | measured | bar |",
        "|---|---|---|",
        f"| maths, over plain decoding | {bar['maths_over_plain']:.2f}x | 1.4x |",
        f"| maths, over transformers' generate | {bar['maths_over_transformers']:.2f}x | 2.5x |",
        f"| general, over plain decoding | {bar['general_over_plain']:.2f}x | 1.1x |",
        f"| general, over transformers' generate | {bar['general_over_transformers']:.2f}x | |",
        f"| plain decoding over transformers' generate | {bar['plain_over_transformers']:.2f}x | |",
        f"| answers of `auto` identical | {bar['auto_identical_to_plain']} of {bar['auto_runs']} | all |",
        "",
        "By kind, `auto` over plain decoding, 95 % bounds over the rounds; the upper one must reach 0.97:",
        "",
        "| kind | mean | low | high |",
        "|---|---|---|---|",
    ]
    lines += [f"| {kind} | {b['mean']:.2f}x | {b['low']:.2f} | {b['high']:.2f} |" for kind, b in bar["by_kind"].items()]
    lines += [
        "",
        "What the planner knew at the end (`--explain`):",
        "",
        *(f"    {line}" for line in figures["explain"]),
    ]
    lines += [
        "",
        "## By decoder and kind",
        "",
        "Agreement: how much of plain decoding's answer is written before the first other token. Log-likelihood: the "
        "base model's mean log-probability of a token of the answer.",
        "",
        "| kind | decoder | tokens per forward | rows per forward | ms per forward | tokens/s | over plain | "
        "identical | agreement | log-likelihood |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, decoders in figures["kinds"].items():
        lines += [_row(kind, name, figure) for name, figure in decoders.items()]
    relation = RESULTS / "acceptance_and_speed.json"
    if relation.is_file():
        lines += [
            "",
            "## Acceptance, k and speed-up: the published relation",
            "",
            "A drafter of controlled acceptance on our engine (`python bench/decoding/acceptance_and_speed.py`).",
            "",
            relation_table(json.loads(relation.read_text())),
        ]
    return "\n".join(lines) + "\n"


def _row(kind: str, name: str, figure: dict[str, Any]) -> str:
    return (
        f"| {kind} | {name} | {figure['tokens_per_forward']:.2f} | {figure['rows_per_forward']:.1f} | "
        f"{figure['forward_ms']:.1f} | {figure['tokens_per_s']:.1f} | {figure['speed_up']:.2f}x | "
        f"{'yes' if figure['identical'] else 'no'} | {figure['agreement']:.2f} | {figure['log_likelihood']:.2f} |"
    )


if __name__ == "__main__":
    main()
