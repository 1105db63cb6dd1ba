"""Quality against speed of your own conversions: accuracy on a task, and tokens per forward, by decoder.

python bench/frontier/measure.py --model runs/sft --gated runs/gated --full runs/full --out frontier
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from stridelm.cli.options import with_settings
from stridelm.files import write_bytes, write_json
from stridelm.params import InputError
from stridelm.settings import DEFAULT_MODEL, LoadSettings

sys.path.insert(0, str(Path(__file__).parents[2]))

_SEED = 0


def measure(
    out: Annotated[Path, typer.Option("--out", help="The folder for frontier.json and frontier.png.")],
    model: Annotated[str, typer.Option("--model", help="The model that knows the task.")] = DEFAULT_MODEL,
    gated: Annotated[Path | None, typer.Option("--gated", help="A gated adapter of --model.")] = None,
    full: Annotated[Path | None, typer.Option("--full", help="A full conversion of --model: a folder.")] = None,
    problems: Annotated[int, typer.Option("--problems", help="How many problems of the task are asked.")] = 200,
    load: LoadSettings = LoadSettings(),  # noqa: B008 (frozen)
) -> None:
    """How accurately a model does a task, and with how many tokens per forward, by each decoder and setting.

    The task is word problems with worked steps (bench/frontier/task.py). The model must have learnt it, or there is
    nothing to lose: train it with `--objective sft`, then convert it, gated or in full or both.

    \b
    python bench/frontier/h200.py --runs runs --json frontier.json    # does all of that on a GPU, in about 20 minutes
    python bench/frontier/measure.py --model runs/sft --gated runs/gated --full runs/full --out frontier

    frontier.json has a point for each decoder and setting: the share of right answers with its 95 % interval, the
    change against one token at a time on the same problems, tokens per forward, and how many answers are identical.
    The baseline is plain decoding of the first conversion. frontier.png draws them if matplotlib is there.
    """
    if gated is None and full is None:
        raise InputError("nothing to measure: give --gated ADAPTER (of --model), --full FOLDER or both")
    if problems < 1:
        raise InputError(f"--problems must be 1 or more, not {problems}")
    import stridelm
    from bench.frontier.points import frontier
    from bench.frontier.task import problems as task
    from stridelm.bench.run import circumstances

    conversions = {}
    if gated is not None:
        conversions["gated"] = stridelm.load(model, adapter=str(gated), settings=load)
    if full is not None:
        conversions["full"] = stridelm.load(str(full), settings=load)
    found = frontier(
        conversions,
        task(_SEED, problems, "test"),
        progress=lambda point: print(
            f"{point['key']}: {point['accuracy']:.1%} right, {point['tokens_per_forward']:.2f} tokens per forward",
            flush=True,
        ),
    )
    device = next(iter(conversions.values())).target.device
    out.mkdir(parents=True, exist_ok=True)
    made = {"model": model, "machine": circumstances(device, load.threads)}
    write_json(out / "frontier.json", made | {"frontier": found})
    try:
        from bench.frontier import plots
        from stridelm.bench.page.plot_style import as_png

        write_bytes(out / "frontier.png", as_png(plots.frontier(found)))
    except ImportError as error:
        print(f"no picture: {error}", file=sys.stderr)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(with_settings(measure))
    try:
        app()
    except InputError as error:
        print(f"measure.py: {error}", file=sys.stderr)
        sys.exit(2)
