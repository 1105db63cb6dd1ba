"""`stridelm train`: its options; `train/run.py` does the work."""

from pathlib import Path
from typing import Annotated

import typer

from stridelm.cli.options import PROMPTS_HELP, Model, with_settings
from stridelm.settings import DEFAULT_MODEL
from stridelm.train.settings import TrainSettings


@with_settings
def train(
    out: Annotated[
        Path, typer.Option("--out", help="The folder to make: what is trained, a model card and the record of the run.")
    ],
    model: Model = DEFAULT_MODEL,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help=f"What to answer: {PROMPTS_HELP} For --objective ground-truth and sft with an `answer` each, or "
            "chats that end with the assistant's turn.",
        ),
    ] = None,
    rollouts: Annotated[
        Path | None,
        typer.Option("--rollouts", help="Where the model's answers are kept, to be used again; default OUT/rollouts."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that OUT holds.")] = False,
    settings: TrainSettings = TrainSettings(),  # noqa: B008 (frozen)
) -> None:
    """Convert a model: teach it to propose several tokens per pass. Its own answers do not change, unless its own
    weights are tuned (--mode full, --gate none).

    \b
    stridelm train --model smollm2 --out runs/mine                 # no data: the model prompts itself
    stridelm train --model Qwen/Qwen3-4B --prompts my_domain.jsonl --out runs/qwen
    stridelm train --mode full --objective online --random-k --out runs/full
    stridelm train --mode heads --heads 4 --out runs/heads
    stridelm train --mode draft --layers 2 --out runs/draft
    torchrun --nproc-per-node 8 --module stridelm train ...        # several GPUs
    """
    from stridelm.train import run as training

    training.run(training.TrainOptions(model, prompts, out, rollouts, resume, settings))
