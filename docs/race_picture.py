"""Draw docs/race.svg: run `stridelm generate --race` on a prompt and keep the terminal's last picture.

make picture
"""

import sys
from pathlib import Path

from rich.console import Console

from stridelm import LoadSettings, SamplingParams, load
from stridelm.cli.race import run_race
from stridelm.settings import DecodeSettings

with Path("/dev/null").open("w") as nowhere:
    console = Console(record=True, width=110, file=nowhere, highlight=False)
    model = load(settings=LoadSettings(device="cpu", backend="torch"))
    params = SamplingParams(max_tokens=160)
    run_race(model, sys.argv[1], params, DecodeSettings(), raw=False, as_json=False, console=console)
    console.save_svg("docs/race.svg", title="stridelm generate --race")
