"""The shipped conversion on the held-out questions and on the twelve kinds of prompts: `stridelm acceptance` for each.

python bench/training/acceptance.py --json bench/results/acceptance.json     # an hour on one core, seconds on a GPU
"""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import PROMPTS, script_parser, write

SETS = {"held-out GSM8K train questions": "gsm8k_heldout.jsonl", "own prompts of twelve kinds": "kinds.jsonl"}


def main() -> None:
    parser = script_parser(__doc__, needs_json=True)
    options, further = parser.parse_known_args()
    report = {name: measure(PROMPTS / file, further) for name, file in SETS.items()}
    write(options.json, report)


def measure(prompts: Path, further: list[str]) -> dict[str, object]:
    """`further` arguments go to `stridelm acceptance`."""
    command = [sys.executable, "-c", "from stridelm.cli.app import main; main()", "acceptance", "--json"]
    done = subprocess.run([*command, "--prompts", str(prompts), *further], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
