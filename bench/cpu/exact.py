"""Whether several tokens at a time write what one at a time writes, to the last token, on the native backend.

    python bench/cpu/exact.py [--prompts FILE ...] [--count 500] [--others 64] [--tokens 128] [--jobs 1] [--threads 2]
                              [--form NAME ...] [--json FILE]

Every prompt is answered plainly and by `auto`; no answer may end early. `--count` prompts in the form that is the
default (its activations, greedy, compiled for this processor), `--others` in each other: the other activations, with a
seed, compiled for AVX2 alone. Any difference is one too many: the exit status is 1 then.
"""

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from stridelm import LoadSettings, SamplingParams, load
from stridelm.api import LanguageModel
from stridelm.backends.native import library as native_library
from stridelm.prompts import read_prompts
from stridelm.settings import ACTIVATIONS
from stridelm.types import Stride

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import PROMPTS, script_parser, write

LONGEST = 2048
"""Tokens of a prompt and its answer; longer prompts are left out."""


@dataclass(frozen=True, slots=True)
class Form:
    """A way to answer."""

    activations: str = LoadSettings().activations
    is_seeded: bool = False
    is_avx2: bool = False

    @property
    def name(self) -> str:
        return f"{self.activations}, {'seeded' if self.is_seeded else 'greedy'}{', AVX2' if self.is_avx2 else ''}"

    def params(self, tokens: int, seed: int) -> SamplingParams:
        if self.is_seeded:
            return SamplingParams(max_tokens=tokens, temperature=0.8, top_p=0.95, seed=seed)
        return SamplingParams(max_tokens=tokens)


FORMS = {
    form.name: form
    for is_avx2 in (False, True)
    for activations in ACTIVATIONS
    for is_seeded in (False, True)
    for form in [Form(activations, is_seeded, is_avx2)]
}


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to be compared, in a process that may have loaded the form's model already."""

    number: int
    prompt: str
    form: Form
    tokens: int
    threads: int


@dataclass(frozen=True, slots=True)
class Compared:
    tokens: int
    """Of the plain answer."""
    forwards: int
    """Of `auto`."""
    is_different: bool


def main(arguments: list[str] | None = None) -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--prompts", type=Path, nargs="*", default=sorted(PROMPTS.glob("*.jsonl")))
    parser.add_argument("--count", type=int, default=500, help="prompts in the default form")
    parser.add_argument("--others", type=int, default=64, help="prompts in each other form")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--threads", type=int, default=0, help="of each; 0 takes one per core")
    parser.add_argument("--form", nargs="*", choices=FORMS, default=list(FORMS), help="only these")
    options = parser.parse_args(arguments)
    texts = list(dict.fromkeys(str(line.prompt) for file in options.prompts for line in read_prompts(file)))
    figures: dict[str, Any] = {}
    for name in options.form:
        form = FORMS[name]
        asked = texts[: options.count if form == Form() else options.others]
        questions = [Question(number, text, form, options.tokens, options.threads) for number, text in enumerate(asked)]
        # New processes for every form: one has the kernels of one build.
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            figures[name] = summed(name, pool.map(answer_both_ways, questions), len(questions))
        print({name: figures[name]}, flush=True)
    write(options.json, figures)
    return int(any(entry["different"] for entry in figures.values()))


def summed(name: str, results: Iterable[Compared | None], count: int) -> dict[str, int]:
    """The figures of a form, with progress on standard error."""
    entry = {"prompts": 0, "tokens": 0, "different": 0, "forwards": 0}
    for number, found in enumerate(results, 1):
        if found is not None:
            entry["prompts"] += 1
            entry["tokens"] += found.tokens
            entry["different"] += found.is_different
            entry["forwards"] += found.forwards
        if number % 10 == 0 or number == count:
            print(f"{name}: {number} of {count} prompts, {entry['different']} differ", file=sys.stderr, flush=True)
    return entry


def answer_both_ways(question: Question) -> Compared | None:
    """None if the prompt is too long."""
    model = load_form(question.form, question.threads)
    ids = model.encode(question.prompt)
    if len(ids) + question.tokens > LONGEST:
        return None
    params = question.form.params(question.tokens, question.number)
    (plain, _), (several, forwards) = (answer(model, ids, params, decoder) for decoder in ("autoregressive", "auto"))
    return Compared(len(plain), forwards, plain != several)


def answer(model: LanguageModel, ids: list[int], params: SamplingParams, decoder: str) -> tuple[list[int], int]:
    """The answer's tokens, and the number of forwards."""
    sequence = model.sequence(list(ids), params, model.check(decoder))
    sequence.eos_ids = frozenset()  # what it goes on with behind its answer is a text as good as any
    model.engine.add(sequence)
    while sequence.finish_reason is None:
        for _, event in model.engine.step():
            if not isinstance(event, Stride):
                raise event
    return sequence.tokens[len(ids) :], sequence.stats.forwards


@cache
def load_form(form: Form, threads: int) -> LanguageModel:
    """The built-in model. Only one build can be loaded in a process."""
    if form.is_avx2:
        native_library.FLAGS = native_library.AVX2_FLAGS
    settings = LoadSettings(backend="native", activations=form.activations, threads=threads, cache_tokens=8192)
    return load(settings=settings)


if __name__ == "__main__":
    sys.exit(main())
