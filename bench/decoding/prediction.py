"""What a predicted output is worth: edits of a file, with and without the file as the answer's prediction.

    python bench/decoding/prediction.py [--rounds 5] [--json FILE]

`auto`, greedy, the built-in model. The file is in the prompt in any case, where look-up finds it: without a prediction,
too, `auto` repeats it several tokens at a time. The ways take turns, prompt by prompt; every answer is read anew.

    none      the baseline: the same request without its prediction
    file      the file as it was before the edit
    answer    the very answer: no prediction could be better, so this is what drafts can bring here at all

Plain decoding, one token at a time, answers once, to compare the tokens.
`again` asks questions whose answers are in no prompt; the prediction is what was answered before.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from stridelm import LanguageModel, LoadSettings, SamplingParams, load
from stridelm.settings import AUTO, PLAIN
from stridelm.types import PREDICTION

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import PROMPTS, machine, script_parser, summary, write

AGAIN = (
    "Write a short story about a lighthouse keeper and a lost dog.",
    "Write a letter to a landlord about a broken heater.",
    "Write a cover letter for the position of a nurse.",
)
EDIT_TOKENS, AGAIN_TOKENS = 420, 320


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and what may be predicted of its answer."""

    group: str
    name: str
    prompt: list[int]
    params: SamplingParams
    ways: Mapping[str, Items[int]]
    """The predictions that are compared."""


@dataclass(slots=True)
class Run:
    """One answer."""

    tokens: list[int]
    seconds: float
    """With the prompt."""
    decoding: float
    """Between the first token and the last."""
    forwards: int
    predicted: int
    accepted: int


@dataclass(slots=True)
class Measured:
    """The runs of a case, by way, round by round."""

    runs: dict[str, list[Run]] = field(default_factory=dict)

    def ratio(self, name: str, way: str) -> dict[str, float]:
        """How many times as fast as without a prediction, round by round."""
        pairs = zip(self.runs["none"], self.runs[way], strict=True)
        return summary([getattr(none, name) / getattr(run, name) for none, run in pairs])


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds over all ways, beside one to warm up")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    model = load(settings=LoadSettings(device=options.device, threads=options.threads))
    figures: dict[str, Any] = {
        "machine": machine(options.threads),
        "model": model.target.description,
        "backend": model.engine.forward.backend,
        "rounds": options.rounds,
        "cases": [],
    }
    for case in (*edits(model), *again(model)):
        load_before = os.getloadavg()[0]
        figures["cases"].append(measure(model, case, options.rounds) | {"load_before": round(load_before, 1)})
        print(json.dumps(figures["cases"][-1]), flush=True)
        write(options.json, figures)


def edits(model: LanguageModel) -> list[Case]:
    params = SamplingParams(max_tokens=EDIT_TOKENS, stop=("```\n",))
    cases: list[Case] = []
    for line in (PROMPTS / "edits.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        prompt = model.encode(entry["prompt"])
        if entry["begun"]:
            prompt += model.encode(entry["begun"], raw=True)
        file = model.encode(entry["prediction"], raw=True)
        group = "answer begun" if entry["begun"] else "edit"
        ways = {"file": file, "answer": run(model, prompt, params, AUTO).tokens}
        cases.append(Case(group, entry["name"], prompt, params, ways))
    return cases


def again(model: LanguageModel) -> list[Case]:
    params = SamplingParams(max_tokens=AGAIN_TOKENS)
    cases: list[Case] = []
    for text in AGAIN:
        prompt = model.encode(text)
        cases.append(Case("again", text, prompt, params, {"answer": run(model, prompt, params, AUTO).tokens}))
    return cases


def run(
    model: LanguageModel, prompt: list[int], params: SamplingParams, decoder: str, prediction: Items[int] = ()
) -> Run:
    model.forget()
    started = time.perf_counter()
    sequence = model.sequence(list(prompt), params, model.check(decoder))
    sequence.prediction = tuple(prediction)
    strides = list(model.engine.strides_of(sequence))
    seconds, stats = time.perf_counter() - started, sequence.stats
    return Run(
        tokens=sequence.output,
        seconds=seconds,
        decoding=stats.latency - stats.ttft,
        forwards=stats.forwards,
        predicted=sum(stride.predicted for stride in strides),
        accepted=sum(stride.sources.count(PREDICTION) for stride in strides),
    )


def measure(model: LanguageModel, case: Case, rounds: int) -> dict[str, Any]:
    answer = tuple(run(model, case.prompt, case.params, PLAIN).tokens)
    measured = Measured({way: [] for way in ("none", *case.ways)})
    for number in range(-1, rounds):  # round -1 warms up
        for way in measured.runs:
            found = run(model, case.prompt, case.params, AUTO, case.ways.get(way, ()))
            if number >= 0:
                measured.runs[way].append(found)
    answers = {tuple(each.tokens) for runs in measured.runs.values() for each in runs}
    return {
        "group": case.group,
        "name": case.name,
        "prompt_tokens": len(case.prompt),
        "file_tokens": len(case.ways.get("file", ())),
        "tokens": len(answer),
        "likeness": round(SequenceMatcher(None, answer, next(iter(case.ways.values())), autojunk=False).ratio(), 3),
        "is_same": answers == {answer},
        "ways": {way: _figures(measured, way) for way in measured.runs},
    }


def _figures(measured: Measured, way: str) -> dict[str, Any]:
    runs = measured.runs[way]
    last = runs[-1]
    return {
        "seconds": summary([each.seconds for each in runs]),
        "decoding": summary([each.decoding for each in runs]),
        "speed_up": measured.ratio("seconds", way),
        "decoding_speed_up": measured.ratio("decoding", way),
        "forwards": last.forwards,
        "predicted": last.predicted,
        "accepted": last.accepted,
    }


if __name__ == "__main__":
    main()
