"""The command line. torch is imported inside the chosen command, so that --help answers at once."""

import io
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

import stridelm
from stridelm.cli.bench import bench
from stridelm.cli.chat import chat
from stridelm.cli.endings import complaint, drop_output, without_debug
from stridelm.cli.export import export
from stridelm.cli.options import PROMPTS_HELP, Adapter, DraftModel, HeadsFolder, Model, as_option, given, with_settings
from stridelm.params import InputError, SamplingParams
from stridelm.serve.settings import ServeSettings
from stridelm.settings import DEFAULT_MODEL, DecodeSettings, LoadSettings
from stridelm.train.settings import PlaceSettings, TrainingFailed, TrainSettings

app = typer.Typer(
    name="stridelm",
    help="Several tokens per forward pass from any causal language model, with the same text.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _show_version(value: bool) -> None:
    if value:
        print(f"stridelm {stridelm.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere.")] = False,
) -> None:
    """Several tokens per forward pass from any causal language model, with the same text."""


@app.command()
@with_settings
def generate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without one, standard input.")] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help=f"Many prompts: {PROMPTS_HELP}")] = None,
    model: Model = DEFAULT_MODEL,
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            help="The model that --decoder draft asks: a smaller one, a folder that `stridelm train --mode draft` "
            "made, or that of Gemma 4's assistant; smollm2 has its own.",
        ),
    ] = None,
    adapter: Adapter = None,
    heads: HeadsFolder = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", help="Decode as this file says, which `stridelm tune` wrote for the model."),
    ] = None,
    decode: DecodeSettings = DecodeSettings(),  # noqa: B008 (frozen)
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is: no chat template.")] = False,
    race: Annotated[bool, typer.Option("--race", help="Race the decoder against one token at a time, live.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per answer, on one line.")] = False,
    batch: Annotated[int, typer.Option("--batch", help="With --prompts: so many answers at once.")] = 1,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say, after the answer, what the decoder's planner decided and why.")
    ] = False,
    load: LoadSettings = LoadSettings(),  # noqa: B008 (frozen)
) -> None:
    """Answer a prompt, or a file of prompts.

    \b
    stridelm generate "Why is the sky blue?"
    stridelm generate --race "Count to fifty."
    stridelm generate --prompts questions.jsonl --json --batch 8
    """
    from stridelm.cli import generate as generate_command

    if profile is not None:
        _refuse_decoding_options(context)
    request = generate_command.Request(
        prompt, prompts, model, adapter, draft_model, heads, profile, decode, sampling, raw, race, json, batch, explain,
        load,
    )  # fmt: skip
    generate_command.run(request)


def _refuse_decoding_options(context: typer.Context) -> None:
    """Also those that are given as they are by default: --profile would silently prevail."""
    for name in given(context, [each.name for each in fields(DecodeSettings)]):
        raise InputError(f"--profile says how to decode and does not go with {as_option(name)}: leave one of them out")


app.command()(with_settings(chat))
app.command()(with_settings(bench))


@app.command()
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
    from stridelm.train import run as train_command

    train_command.run(train_command.Request(model, prompts, out, rollouts, resume, settings))


@app.command()
@with_settings
def acceptance(
    prompts: Annotated[
        Path, typer.Option("--prompts", help=f"What to answer: {PROMPTS_HELP} Lines may carry a `category`.")
    ],
    model: Model = DEFAULT_MODEL,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", help="The adapter's folder; default: the built-in model's own.")
    ] = None,
    heads: Annotated[Path | None, typer.Option("--heads", help="Measure these heads, and no adapter.")] = None,
    draft_model: Annotated[
        Path | None, typer.Option("--draft-model", help="Measure this draft, which train made, and no adapter.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="The most tokens of each answer.")] = 200,
    batch: Annotated[int, typer.Option("--batch", help="Answers written at once.")] = 32,
    sequential_head: Annotated[
        bool, typer.Option("--sequential-head/--no-sequential-head", help="With or without the sequential head.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    place: PlaceSettings = PlaceSettings(),  # noqa: B008 (frozen)
) -> None:
    """Measure a conversion: tokens per forward and acceptance by depth, whatever the machine.

    \b
    stridelm acceptance --model smollm2 --prompts questions.jsonl
    """
    from stridelm.cli import acceptance as acceptance_command

    acceptance_command.run(
        acceptance_command.Request(
            model, adapter, heads, draft_model, prompts, max_tokens, batch, sequential_head, json, place
        )
    )


@app.command()
@with_settings
def tune(
    prompts: Annotated[
        Path, typer.Option("--prompts", help=f"What to tune for, the first 16 are used: {PROMPTS_HELP}")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder for profile.json and frontier.png.")],
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = None,
    draft_model: Annotated[str | None, typer.Option("--draft-model", help="A second model that may propose.")] = None,
    heads: HeadsFolder = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="The most tokens of each answer.")] = 96,
    rounds: Annotated[int, typer.Option("--rounds", help="Measurements per prompt, after one to warm up.")] = 3,
    agreement: Annotated[
        float,
        typer.Option(
            "--agreement",
            help="How much of the plain answer must come before the first other token, on average, 0 to 1; 1 chooses "
            "among exact decoders only.",
        ),
    ] = 1.0,
    load: LoadSettings = LoadSettings(),  # noqa: B008 (frozen)
) -> None:
    """Find the decoder and settings that are fastest for your prompts on this machine, for `generate --profile`.

    \b
    stridelm tune --prompts questions.jsonl --out tuned
    stridelm generate --profile tuned/profile.json "Why is the sky blue?"
    """
    from stridelm.bench import tune as tune_command

    tune_command.run(
        tune_command.Request(prompts, out, model, adapter, draft_model, heads, max_tokens, rounds, agreement, load)
    )


app.command()(export)


@app.command()
@with_settings
def serve(
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = None,
    draft_model: DraftModel = None,
    heads: HeadsFolder = None,
    settings: ServeSettings = ServeSettings(),  # noqa: B008 (frozen)
    load: LoadSettings = LoadSettings(),  # noqa: B008 (frozen)
) -> None:
    """Serve a model to OpenAI's clients, with a playground at /. SIGTERM or Ctrl-C lets open answers finish; a second
    one does not.

    \b
    stridelm serve
    STRIDELM_API_KEY=... stridelm serve --host 0.0.0.0 --model Qwen/Qwen3-4B --adapter runs/qwen
    """
    from stridelm.cli import serve as serve_command

    serve_command.run(serve_command.Request(model, adapter, draft_model, heads, settings, load))


@app.command()
@with_settings
def demo(
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = None,
    draft_model: DraftModel = None,
    heads: HeadsFolder = None,
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = 0,
    load: LoadSettings = LoadSettings(),  # noqa: B008 (frozen)
) -> None:
    """Serve a model on this machine and open the playground in a browser: races, the tree of rows, chat, benchmarks.

    \b
    stridelm demo
    stridelm demo --backend torch          # float32, where several tokens a pass save more
    """
    from stridelm.cli import serve as serve_command

    settings = ServeSettings(port=port, api_key=os.environ.get("STRIDELM_API_KEY"))
    serve_command.run(serve_command.Request(model, adapter, draft_model, heads, settings, load, opens_browser=True))


@app.command()
def models(
    json: Annotated[bool, typer.Option("--json", help="One JSON object per model, on one line.")] = False,
) -> None:
    """List the models on this machine, their size and where they are."""
    from stridelm.cli import models as models_command

    models_command.run(json=json)


def main() -> None:
    """Run the command line. What a user can mend ends in one line and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of few letters gets question marks, not a traceback
    if "OMP_WAIT_POLICY" not in os.environ:
        # Before torch is imported. Beside busy processes a forward took 1,784 ms on two cores, because threads spin
        # for one that is not running; with this 201 ms, and on a quiet machine no more than without.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    arguments, debug = without_debug(sys.argv[1:])
    try:
        status = app(arguments or ["--help"], prog_name="stridelm", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:
        # Whoever read our output has left; typer ends in 1, too, when it sees this first.
        drop_output()
        status = 1
    except TrainingFailed as error:
        print(f"stridelm: {error}", file=sys.stderr)
        status = 1
    except Exception as error:
        message = complaint(error)
        if debug or message is None:
            raise
        print(f"stridelm: {' '.join(message.split())}", file=sys.stderr)
        if isinstance(error, OSError) and error.filename is None:
            drop_output()
        status = 2
    sys.exit(status or 0)
