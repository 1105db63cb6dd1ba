"""`auto` over plain decoding on the native backend: suites of `stridelm bench`, twelve kinds, prompts of run.py.

    python bench/cpu/auto.py [--suite NAME ...] [--rounds 5] [--tokens 64 128] [--threads 2] [--json FILE]

Answers end where the model ends them, at the latest after `--tokens`; those of fewer than eight tokens are left out.
Every question is answered both ways in turn, in every round, and both must write the same. A suite's figure is the
median of its questions' ratios of decoding speeds in a round: the mean over the rounds, with its 95 % interval, which
says how exactly it was measured. Of the questions' own ratios, medians over the rounds, a tenth are below `tenth`.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stridelm import LanguageModel, LoadSettings, SamplingParams, load
from stridelm.bench.suites.table import SUITES, questions
from stridelm.prompts import read_prompts
from stridelm.settings import ACTIVATIONS, AUTO, PLAIN

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import KINDS, PROMPTS, interval, machine, script_parser, table, write

SHORTEST = 8
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer."""

    tokens: tuple[int, ...]
    forwards: int
    speed: float
    """Tokens per second after the first."""


def asked() -> dict[str, list[Messages]]:
    """Prompts by suite."""
    found = {
        name: [list(each.messages) for each in questions(name)] for name, suite in SUITES.items() if suite.is_fixed
    }
    for name, file in (("twelve kinds", KINDS), ("cpu.jsonl", PROMPTS / "cpu.jsonl")):
        for line in read_prompts(file):
            suite = name if file == KINDS else f"{name}, {line.category}"
            found.setdefault(suite, []).append([{"role": "user", "content": str(line.prompt)}])
    return found


def answer(model: LanguageModel, prompt: Messages, decoder: str, tokens: int) -> Timed:
    model.forget()
    stream = model.stream(prompt, SamplingParams(max_tokens=tokens), decoder=decoder)
    first = len(next(stream).tokens)
    started = time.perf_counter()
    for _stride in stream:
        pass
    seconds = time.perf_counter() - started
    result = stream.result()
    return Timed(result.token_ids, result.stats.forwards, (len(result.token_ids) - first) / seconds)


def measure(model: LanguageModel, suites: dict[str, list[Messages]], tokens: int, rounds: int) -> dict[str, Any]:
    """Figures by suite."""
    pairs: dict[str, list[list[tuple[Timed, Timed]]]] = {suite: [] for suite in suites}  # by round and question
    both(model, next(iter(suites.values()))[0], tokens, 0)  # warms up
    for number in range(rounds):
        for suite, prompts in suites.items():
            pairs[suite].append([both(model, prompt, tokens, number + place) for place, prompt in enumerate(prompts)])
    return {suite: figures(each) for suite, each in pairs.items()}


def both(model: LanguageModel, prompt: Messages, tokens: int, turn: int) -> tuple[Timed, Timed]:
    """Plain and `auto`; who begins changes."""
    order = (PLAIN, AUTO) if turn % 2 else (AUTO, PLAIN)
    made = {decoder: answer(model, prompt, decoder, tokens) for decoder in order}
    assert made[PLAIN].tokens == made[AUTO].tokens, f"another answer to {prompt[-1]['content']!r}"
    return made[PLAIN], made[AUTO]


def figures(rounds: list[list[tuple[Timed, Timed]]]) -> dict[str, Any]:
    kept = [place for place, (plain, _) in enumerate(rounds[0]) if len(plain.tokens) >= SHORTEST]
    ratios_RQ = np.array([[each[place][1].speed / each[place][0].speed for place in kept] for each in rounds])
    low, mean, high = interval(np.median(ratios_RQ, axis=1).tolist())
    by_question = np.median(ratios_RQ, axis=0)
    answers = [each[place] for each in rounds for place in kept]
    return {
        "questions": len(kept),
        "ratio": {"median": round(mean, 3), "low": round(low, 3), "high": round(high, 3)},
        "tenth": round(float(np.quantile(by_question, 0.1)), 3),
        "worst": round(float(by_question.min()), 3),
        "plain": round(statistics.median(plain.speed for plain, _ in answers), 1),
        "auto": round(statistics.median(auto.speed for _, auto in answers), 1),
        "tokens_per_forward": round(
            sum(len(auto.tokens) for _, auto in answers) / sum(auto.forwards for _, auto in answers), 2
        ),
    }


def speed_ups(by_form: dict[str, dict[str, Any]]) -> str:
    heads = ("suite", "form", "questions", "plain", "`auto`", "ratio (95 %)", "a tenth below", "worst", "per forward")
    return table(heads, (_row(suite, form, each) for form, by in by_form.items() for suite, each in by.items()))


def _row(suite: str, form: str, each: dict[str, Any]) -> Sequence[str]:
    ratio = each["ratio"]
    return [
        *(suite, form, str(each["questions"]), f"{each['plain']:.0f}", f"{each['auto']:.0f}"),
        f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
        *(f"{each['tenth']:.2f}", f"{each['worst']:.2f}", f"{each['tokens_per_forward']:.2f}"),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    suites = asked()
    parser.add_argument("--suite", nargs="*", choices=suites, default=list(suites))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="*", default=[64, 128], help="most tokens of an answer")
    parser.add_argument("--activations", nargs="*", choices=ACTIVATIONS, default=list(ACTIVATIONS))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    chosen = {name: suites[name] for name in options.suite}
    found: dict[str, dict[str, Any]] = {}
    for activations in options.activations:
        settings = LoadSettings(backend="native", threads=options.threads, activations=activations)
        model = load("smollm2", settings=settings)
        # The length of answers is varied with the default activations.
        for tokens in options.tokens if activations == ACTIVATIONS[0] else options.tokens[-1:]:
            form = f"{activations}, {tokens} tokens"
            found[form] = measure(model, chosen, tokens, options.rounds)
            print(speed_ups({form: found[form]}), flush=True)
    write(options.json, {"machine": machine(options.threads), "rounds": options.rounds, "forms": found})


if __name__ == "__main__":
    main()
