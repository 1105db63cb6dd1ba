"""Short runs that differ in one setting each, on the same rollouts: which settings matter, and which way.

    python bench/training/sweep.py --model smollm2 --prompts questions.jsonl --rollouts FOLDER --json sweep.json \\
        --base '{"steps": 300}' [--seconds 180] [--measure bench/prompts/kinds.jsonl ...] '{"rank": 16}' '{"k": 5}' ...

The first run has the base settings; every further argument changes some of them. All use the rollouts of the first.
`seed` is that of training alone: the answers stay those of the base. '{"only_made_up": true}' leaves out the answers to
the prompts file, which is what training without one gives.
With --seconds every run trains for so long, its learning rate falling by the clock, and --base gives no steps. With
--measure every run is measured on these prompts, too, chains and trees. Results are written as they come; a sweep that
was stopped goes on behind its last whole run if it is given the same FILE.
"""

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.files import read_json, write_json
from stridelm.models.encode import encode_prompt
from stridelm.prompts import read_prompts
from stridelm.settings import LoadSettings
from stridelm.train.acceptance import measure_forms
from stridelm.train.answers import greedy_answers
from stridelm.train.rollouts import RolloutStore, Text
from stridelm.train.settings import TrainSettings
from stridelm.train.trainer import Trainer

ANSWER_TOKENS, ANSWERS_AT_ONCE = 200, 512
ENDLESS = 10**7
ONLY_MADE_UP = "only_made_up"
"""A change that is no setting of training."""


class TimeIsUp(Exception):
    """The seconds of a run are over."""


class TimedTrainer(Trainer):
    """Ends by the clock: settings that make a step slower get fewer steps."""

    seconds: float
    finished = 0
    _since: float | None = None

    def _step(self, step: int) -> torch.Tensor:
        if self._share() >= 1:
            raise TimeIsUp
        self.finished = step + 1
        return super()._step(step)

    def _rate(self, step: int) -> float:
        if step < self.settings.warmup:  # compiles, which counts for nothing
            return self.settings.peak_rate * (step + 1) / self.settings.warmup
        self._since = self._since or time.perf_counter()
        return self.settings.peak_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, self._share())))

    def _share(self) -> float:
        return 0.0 if self._since is None else (time.perf_counter() - self._since) / self.seconds


def report(what: str, done: int, of: int) -> None:
    if done % 1000 == 0 or done == of:
        print(f"{what}: {done}/{of}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--rollouts", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--base", type=json.loads, default={})
    parser.add_argument("--seconds", type=float, help="of training for each run, instead of a number of steps")
    parser.add_argument("--measure", type=Path, nargs="*", default=[], metavar="PROMPTS")
    parser.add_argument("changes", type=json.loads, nargs="*")
    options = parser.parse_args(arguments)
    if options.seconds is not None and "steps" in options.base:
        parser.error("--seconds takes the place of the base's steps: leave one of them out")
    torch._dynamo.config.recompile_limit = 64  # every rank is a shape of its own
    about = {"base": options.base, "seconds": options.seconds, "measured_on": [file.name for file in options.measure]}
    known = read_json(options.json, "name another file with --json") if options.json.exists() else about | {"runs": []}
    if about != {name: known.get(name) for name in about}:
        parser.error(f"{options.json} holds a sweep of other settings: name another file")
    runs: list[dict[str, Any]] = known["runs"]
    texts: dict[str, list[Text]] = {}
    for changes in ({}, *options.changes):
        if changes not in [run["changes"] for run in runs]:
            runs.append({"changes": changes, **run(options, changes, texts)})
            print(json.dumps(runs[-1]), flush=True)
            write_json(options.json, about | {"runs": runs})


def run(options: argparse.Namespace, changes: dict[str, Any], texts: dict[str, list[Text]]) -> dict[str, Any]:
    """`texts`: the model's answers to the prompts that are measured; the first run writes them for all."""
    endless = (
        {} if options.seconds is None else {"steps": ENDLESS, "evaluate_every": ENDLESS, "checkpoint_every": ENDLESS}
    )
    changed = {name: value for name, value in changes.items() if name != ONLY_MADE_UP}
    settings = TrainSettings(**(options.base | changed | endless))
    # Loaded anew: a run compiles the layers of its own model.
    checkpoint = load_checkpoint(options.model, LoadSettings(dtype=options.dtype), trainable=True)
    lines = read_prompts(options.prompts) if options.prompts else []
    answered = replace(settings, seed=TrainSettings(**options.base).seed)
    rollouts = RolloutStore(options.rollouts, checkpoint, lines, answered, report).make()
    if changes.get(ONLY_MADE_UP):
        given = {tuple(encode_prompt(checkpoint, line.prompt)) for line in lines}
        made_up = [text for text in rollouts.train if tuple(text.tokens[: text.prompt_length].tolist()) not in given]
        rollouts = replace(rollouts, train=made_up)
    entries: list[dict[str, Any]] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        made = checkpoint, rollouts, settings, Path(folder), entries.append
        if options.seconds is None:
            trainer = Trainer(*made)
            measured, steps = trainer.run().entry, settings.steps
        else:
            trainer = TimedTrainer(*made)
            trainer.seconds = options.seconds
            with contextlib.suppress(TimeIsUp):
                trainer.run()
            measured, steps = trainer._measured().entry, trainer.finished
    rates = [entry["steps_per_second"] for entry in entries if "steps_per_second" in entry]
    found = {"steps": steps, **measured, "seconds": round(time.perf_counter() - started, 1)}
    if rates:
        found["steps_per_second"] = round(statistics.median(rates), 2)
    if options.measure:
        for file in [each for each in options.measure if each.name not in texts]:
            answers = greedy_answers(checkpoint, read_prompts(file), ANSWER_TOKENS, ANSWERS_AT_ONCE, report)
            texts[file.name] = [text for _, text in sorted(answers.items())]
        found["forms"] = measure_forms(checkpoint, trainer.student, texts)
    return found


if __name__ == "__main__":
    main()
