"""`stridelm tune`: its options; `bench/tune.py` does the work."""

from pathlib import Path
from typing import Annotated

import typer

from stridelm.cli.options import PROMPTS_HELP, with_settings
from stridelm.settings import ModelChoice


@with_settings
def tune(
    prompts: Annotated[
        Path, typer.Option("--prompts", help=f"What to tune for, the first 16 are used: {PROMPTS_HELP}")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder for profile.json and frontier.png.")],
    choice: ModelChoice = ModelChoice(),  # noqa: B008 (frozen)
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Maximum number of tokens of each answer.")] = 96,
    rounds: Annotated[int, typer.Option("--rounds", help="Measurements per prompt, after one to warm up.")] = 3,
    agreement: Annotated[
        float,
        typer.Option(
            "--agreement",
            help="How much of the plain answer must come before the first other token, on average, 0 to 1; 1 chooses "
            "among exact decoders only.",
        ),
    ] = 1.0,
) -> None:
    """Find the decoder and settings that are fastest for your prompts on this machine, for `generate --profile`.

    \b
    stridelm tune --prompts questions.jsonl --out tuned
    stridelm generate --profile tuned/profile.json "Why is the sky blue?"
    """
    from stridelm.bench import tune as tuning

    tuning.run(tuning.TuneOptions(choice, prompts, out, max_tokens, rounds, agreement))
