"""How many training steps per second, at one shape: 32 texts of 448 tokens with 48 anchors of 8 masks unless told.

Every step is a whole one: teacher's pass, student's pass, loss, backward, optimiser. Texts are random tokens of full
length, so that no padding is counted as work.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.settings import LoadSettings
from stridelm.train.rollouts import Rollouts, Text
from stridelm.train.settings import TrainSettings
from stridelm.train.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import script_parser, write


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    for name, default in (("texts", 32), ("length", 448), ("anchors", 48), ("k", 9), ("rank", 56)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=100, help="timed, in ten parts, after ten that are not")
    options = parser.parse_args()
    shape = {name: getattr(options, name) for name in ("texts", "length", "anchors", "k", "rank")}
    settings = TrainSettings(**shape, steps=10**6, held_out=1)
    checkpoint = load_checkpoint(options.model, LoadSettings(dtype=options.dtype), trainable=True)
    chance = np.random.default_rng(0)
    texts = [
        Text(chance.integers(0, checkpoint.vocabulary, settings.length).astype(np.int32), 8)
        for _ in range(4 * settings.texts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(checkpoint, Rollouts(texts, texts[:1], {}), settings, Path(folder), lambda entry: None)
    started = time.perf_counter()
    run(trainer, 0, 10)
    warm_up = time.perf_counter() - started
    part = max(1, options.steps // 10)
    rates = [part / run(trainer, 10 + number * part, part) for number in range(10)]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    report = {
        "device": device, "torch": torch.__version__, "dtype": options.dtype, **shape,
        "steps_per_second": round(statistics.median(rates), 2),
        "spread": [round(min(rates), 2), round(max(rates), 2)],
        "warm_up_seconds": round(warm_up, 1),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if torch.cuda.is_available() else None,
    }  # fmt: skip
    print(json.dumps(report))
    write(options.json, report)


def run(trainer: Trainer, first: int, count: int) -> float:
    """Seconds of so many steps."""
    started = time.perf_counter()
    losses = [trainer._step(step) for step in range(first, first + count)]
    float(losses[-1])  # waits for the device
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
