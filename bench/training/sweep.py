"""Short runs that differ in one setting each, on the same rollouts: which settings matter, and which way.

    python bench/training/sweep.py --model smollm2 --prompts questions.jsonl --rollouts FOLDER --json sweep.json \
        --base '{"steps": 300}' '{"rank": 16}' '{"sequential_size": 0}' ...

The first run has the base settings; every further argument changes some of them. All use the rollouts of the first.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.files import write_json
from stridelm.prompts import read_prompts
from stridelm.settings import LoadSettings
from stridelm.train.rollouts import RolloutStore
from stridelm.train.settings import TrainSettings
from stridelm.train.trainer import Trainer


def report(what: str, done: int, of: int) -> None:
    if done % 1000 == 0 or done == of:
        print(f"{what}: {done}/{of}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--rollouts", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--base", type=json.loads, default={})
    parser.add_argument("changes", type=json.loads, nargs="*")
    options = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64  # every rank is a shape of its own
    lines = read_prompts(options.prompts) if options.prompts else []
    results: list[dict[str, object]] = []
    rollouts = None
    for changes in ({}, *options.changes):
        settings = TrainSettings(**(options.base | changes))
        # Loaded anew: a run compiles the layers of its own model.
        checkpoint = load_checkpoint(options.model, LoadSettings(dtype=options.dtype), trainable=True)
        if rollouts is None:
            rollouts = RolloutStore(options.rollouts, checkpoint, lines, settings, report).make()
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(checkpoint, rollouts, settings, Path(folder), lambda entry: None)
            measured = trainer.run().entry
        results.append(
            {
                "changes": changes,
                "steps": settings.steps,
                **measured,
                "seconds": round(time.perf_counter() - started, 1),
            }
        )
        print(json.dumps(results[-1]), flush=True)
        write_json(options.json, {"base": options.base, "runs": results})


if __name__ == "__main__":
    main()
