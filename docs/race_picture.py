"""Draw docs/race.svg: run the races of `make demo` and keep what the terminal shows at the end.

make picture
"""

import sys
from pathlib import Path

from rich.console import Console

from stridelm import SamplingParams, load
from stridelm.cli.race import run_races
from stridelm.prompts import read_prompts
from stridelm.settings import DecodeSettings

PICTURE = Path(__file__).parent / "race.svg"

with Path("/dev/null").open("w") as nowhere:
    console = Console(record=True, width=120, file=nowhere, highlight=False)
    lines = read_prompts(Path(sys.argv[1]))
    params = SamplingParams(max_tokens=int(sys.argv[2]))
    run_races(load(), lines, params, DecodeSettings(), raw=False, as_json=False, console=console)
    console.save_svg(str(PICTURE), title="make demo")
