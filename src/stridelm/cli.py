"""The command line. torch is imported inside the chosen command, so that --help answers at once."""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import stridelm
from stridelm.cli_options import with_settings
from stridelm.settings import AUTO, DECODERS, DEFAULT_K, LoadSettings
from stridelm.types import InputError, SamplingParams

app = typer.Typer(
    name="stridelm",
    help="Several tokens per forward pass from any causal language model, with the same text.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

# The base of all usage errors. typer brings its own click or uses the installed one, depending on its version.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_DECODER_HELP = "; ".join(f"{name}: {what}" for name, what in DECODERS.items())
_K_HELP = "Tokens that the decoder may propose per pass (" + ", ".join(f"{n} {k}" for n, k in DEFAULT_K.items()) + ")."

Model = Annotated[str, typer.Option("--model", help="smollm2 (built in), a Hugging Face folder or id, or a .gguf file.")]


def _show_version(value: bool) -> None:
    if value:
        print(f"stridelm {stridelm.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, wherever it stands.")] = False,
) -> None:
    """Several tokens per forward pass from any causal language model, with the same text."""


@app.command()
@with_settings
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without one, standard input.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Many prompts: JSON lines with `prompt` or `messages`.")
    ] = None,
    model: Model = "smollm2",
    draft_model: Annotated[str | None, typer.Option("--draft-model", help="The model that --decoder draft asks.")] = None,
    adapter: Annotated[str | None, typer.Option("--adapter", help="A converted model's adapter (not in this version).")] = None,
    decoder: Annotated[str, typer.Option("--decoder", help=_DECODER_HELP + ".")] = AUTO,
    k: Annotated[int | None, typer.Option("--k", help=_K_HELP)] = None,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008: frozen
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is: no chat template.")] = False,
    race: Annotated[bool, typer.Option("--race", help="Race the decoder against one token at a time, live.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per answer, on one line.")] = False,
    batch: Annotated[int, typer.Option("--batch", help="With --prompts: so many answers at once.")] = 1,
    load: LoadSettings = LoadSettings(),  # noqa: B008
) -> None:
    """Answer a prompt, or a file of prompts.

    \b
    stridelm generate "Why is the sky blue?"
    stridelm generate --race "Count to fifty."
    stridelm generate --prompts questions.jsonl --json --batch 8
    """
    from stridelm import generate_command

    if adapter is not None:
        raise InputError("--adapter: this version cannot load adapters yet; leave it away")
    generate_command.run(
        generate_command.Request(prompt, prompts, model, draft_model, decoder, k, sampling, raw, race, json, batch, load)
    )


@app.command()
def models(json: Annotated[bool, typer.Option("--json", help="One JSON object per model, on one line.")] = False) -> None:
    """List the models on this machine, their size and where they are."""
    from stridelm import models_command

    models_command.run(json=json)


def main() -> None:
    """Run the command line. What a user can mend ends in one line and exit status 2."""
    debug = "--debug" in sys.argv
    try:
        status = app([argument for argument in sys.argv[1:] if argument != "--debug"], standalone_mode=False)
    except _UsageError as error:
        _fail(error.format_message(), hint=_usage_hint(error))  # type: ignore[attr-defined]
    except InputError as error:
        if debug:
            raise
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has left. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if debug or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        _fail(f"{error.filename or 'disk'}: {error.strerror}")
    else:
        sys.exit(status or 0)


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f" (see {context.command_path} --help)" if context else ""


def _fail(message: str, hint: str = "") -> None:
    print(f"stridelm: {' '.join(message.split())}{hint}", file=sys.stderr)
    sys.exit(2)
