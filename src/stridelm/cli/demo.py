"""`stridelm demo`: `stridelm serve` on a free port, and a browser that shows the playground."""

import os
from typing import Annotated

import typer

from stridelm.cli import serve
from stridelm.cli.options import with_settings
from stridelm.serve.settings import ServeSettings
from stridelm.settings import ModelChoice


@with_settings
def demo(
    choice: ModelChoice = ModelChoice(),  # noqa: B008 (frozen)
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = 0,
) -> None:
    """Serve a model on this machine and open the playground in a browser: races, the tree of rows, chat, benchmarks.

    \b
    stridelm demo
    stridelm demo --backend torch          # float32, where several tokens a pass save more
    """
    settings = ServeSettings(port=port, api_key=os.environ.get("STRIDELM_API_KEY"))
    serve.run(choice, settings, opens_browser=True)
