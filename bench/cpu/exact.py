"""Whether several tokens at a time write what one at a time writes, to the last token, on the native backend.

    python bench/cpu/exact.py [--prompts FILE ...] [--count 500] [--others 64] [--tokens 128] [--jobs 1] [--threads 2]
                              [--form NAME ...] [--json FILE]

Every prompt is answered plainly and by `auto`; no answer may end early. `--count` prompts in the form that is the
default (its activations, greedy, compiled for this processor), `--others` in each other: the other activations, with a
seed, eight prompts at a time, wide trees of drafts in place of what pays, compiled for AVX2 alone. A difference is one
too many: the exit status is 1 then.
"""

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from stridelm import LoadSettings, SamplingParams, load
from stridelm.api import LanguageModel
from stridelm.backends.native import library as native_library
from stridelm.contracts import Policy
from stridelm.decode.cost import Cost
from stridelm.decode.planned import Planned
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.prompts import read_prompts
from stridelm.settings import ACTIVATIONS
from stridelm.stepper import GREEDY
from stridelm.types import Stride

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import PROMPTS, script_parser, write

TOGETHER = 8
BRANCHES, NODES = 3, 24
"""Of wide trees, planned as if rows cost nothing."""
LONGEST = 2048
"""Tokens of a prompt and its answer; longer prompts are left out."""


@dataclass(frozen=True, slots=True)
class Form:
    """A way to answer."""

    activations: str = LoadSettings().activations
    is_seeded: bool = False
    is_avx2: bool = False
    has_trees: bool = False
    together: int = 1
    """Prompts that are answered at a time."""

    @property
    def name(self) -> str:
        words = [self.activations, "seeded" if self.is_seeded else "greedy"]
        words += ["trees"] * self.has_trees + [f"{self.together} at a time"] * (self.together > 1)
        return ", ".join(words + ["AVX2"] * self.is_avx2)

    def params(self, tokens: int, seed: int) -> SamplingParams:
        if self.is_seeded:
            return SamplingParams(max_tokens=tokens, temperature=0.8, top_p=0.95, seed=seed)
        return SamplingParams(max_tokens=tokens)


_WAYS = product(ACTIVATIONS, (False, True), (False, True), (False, True), (1, TOGETHER))
FORMS = {
    form.name: form
    for activations, is_seeded, is_avx2, has_trees, together in _WAYS
    for form in [Form(activations, is_seeded, is_avx2, has_trees, together)]
    if not is_avx2 or (together == 1 and not has_trees)
}


@dataclass(frozen=True, slots=True)
class Question:
    """Prompts to be compared, in a process that may have loaded the form's model already."""

    number: int
    """Of the first of them."""
    prompts: tuple[str, ...]
    form: Form
    tokens: int
    threads: int


@dataclass(frozen=True, slots=True)
class Compared:
    prompts: int
    tokens: int
    """Of the plain answers."""
    forwards: int
    """Of each of the others."""
    different: int


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
        questions = [
            Question(first, tuple(asked[first : first + form.together]), form, options.tokens, options.threads)
            for first in range(0, len(asked), form.together)
        ]
        # New processes for every form: one has the kernels of one build.
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            figures[name] = summed(name, pool.map(answer_both_ways, questions), len(questions))
        print({name: figures[name]}, flush=True)
    write(options.json, figures)
    return int(any(entry["different"] for entry in figures.values()))


def summed(name: str, results: Iterable[Compared], count: int) -> dict[str, int]:
    """The figures of a form, with progress on standard error."""
    entry = {"prompts": 0, "tokens": 0, "different": 0, "forwards": 0}
    for number, found in enumerate(results, 1):
        entry["prompts"] += found.prompts
        entry["tokens"] += found.tokens
        entry["different"] += found.different
        entry["forwards"] += found.forwards
        if number % 10 == 0 or number == count:
            print(f"{name}: {number} of {count} questions, {entry['different']} differ", file=sys.stderr, flush=True)
    return entry


def answer_both_ways(question: Question) -> Compared:
    """Prompts that are too long are left out."""
    model, form = load_form(question.form, question.threads), question.form
    asked = [
        Asked(ids, form.params(question.tokens, question.number + at))
        for at, text in enumerate(question.prompts)
        if len(ids := model.encode(text)) + question.tokens <= LONGEST
    ]
    plain = [tokens for each in asked for tokens in answer(model, [each], "autoregressive")[0]]
    several, forwards = answer(model, asked, "trees" if form.has_trees else "auto")
    different = sum(one != other for one, other in zip(plain, several, strict=True))
    return Compared(len(asked), sum(map(len, plain)), forwards, different)


@dataclass(frozen=True, slots=True)
class Asked:
    ids: list[int]
    params: SamplingParams


def answer(model: LanguageModel, asked: list[Asked], decoder: str) -> tuple[list[list[int]], int]:
    """The answers' tokens, and the number of their forwards."""
    sequences = [model.sequence(list(each.ids), each.params, model.check("auto")) for each in asked]
    policy = wide_trees(model) if decoder == "trees" else model.sequence([0], GREEDY, model.check(decoder)).policy
    for sequence in sequences:
        sequence.policy = policy
        sequence.eos_ids = frozenset()  # what it goes on with behind its answer is a text as good as any
        model.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        for _, event in model.engine.step():
            if not isinstance(event, Stride):
                raise event
    return [each.output for each in sequences], sum(each.stats.forwards for each in sequences)


@cache
def wide_trees(model: LanguageModel) -> Policy:
    gate = model.loaded.forward.gate
    assert gate is not None
    free = Cost((1, 64), (1.0, 1.0))
    return Planned(free, masks=MaskDrafter(gate, BRANCHES), k=gate.k, drafters=(NgramDrafter(8),), nodes=NODES)


@cache
def load_form(form: Form, threads: int) -> LanguageModel:
    """The built-in model. Only one build can be loaded in a process."""
    if form.is_avx2:
        native_library.FLAGS = native_library.AVX2_FLAGS
    settings = LoadSettings(backend="native", activations=form.activations, threads=threads, cache_tokens=8192)
    return load(settings=settings)


if __name__ == "__main__":
    sys.exit(main())
