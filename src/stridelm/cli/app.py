"""The command line. torch is imported inside the chosen command, so that --help answers at once."""

import io
import os
import sys
from typing import Annotated

import typer

import stridelm
from stridelm.cli.acceptance import acceptance
from stridelm.cli.bench import bench
from stridelm.cli.chat import chat
from stridelm.cli.demo import demo
from stridelm.cli.endings import complaint, drop_output, without_debug
from stridelm.cli.export import export
from stridelm.cli.generate import generate
from stridelm.cli.models import models
from stridelm.cli.serve import serve
from stridelm.cli.train import train
from stridelm.cli.tune import tune
from stridelm.train.settings import TrainingFailed

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


for command in (generate, chat, bench, train, acceptance, tune, export, serve, demo, models):
    app.command()(command)


def main() -> None:
    """Run the command line. An error that the user can fix ends in a one-line message and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal whose encoding lacks a character gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    if "OMP_WAIT_POLICY" not in os.environ:
        # Set before torch is imported. With other busy processes on two cores a forward took 1,784 ms, because threads
        # spin while they wait for one that is not scheduled; with this setting 201 ms, and on a quiet machine no more
        # than without it.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    arguments, debug = without_debug(sys.argv[1:])
    try:
        status = app(arguments or ["--help"], prog_name="stridelm", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:
        # The reader of our output is gone. typer exits with 1, too, if it sees the error first.
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
