"""From the start of a process to its first token, and the memory that it takes.

    python bench/cpu/start.py [--rounds 7] [--json FILE]

Every round is a new process: `stridelm generate` writes one token with the built-in model. The first is not counted:
what is packed or measured once has happened then.
"""

import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import script_parser, write

COMMAND = [sys.executable, "-m", "stridelm", "generate", "--max-tokens", "1", "Hello there"]
WITH_TORCH = ["--backend", "torch"]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    figures: dict[str, Any] = {"command": " ".join(["stridelm", *COMMAND[3:]]), "rounds": options.rounds}
    for name, more in (("native", []), ("torch", WITH_TORCH)):
        once(more)
        runs = [once(more) for _ in range(options.rounds)]
        figures[name] = {
            "seconds": statistics.median(seconds for seconds, _ in runs),
            "spread": [min(seconds for seconds, _ in runs), max(seconds for seconds, _ in runs)],
            "megabytes": max(megabytes for _, megabytes in runs),
        }
        print(f"{name}: {figures[name]}")
    figures["python"] = platform.python_version()
    write(options.json, figures)


def once(more: list[str]) -> tuple[float, float]:
    """Seconds from the start of the process to the first text that it writes, and its largest resident memory in MB."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    seconds = time.perf_counter() - started
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(said)
    return seconds, int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    main()
