"""What measuring scripts share: where prompts and results are, options, the machine, spreads, and Markdown tables."""

import argparse
import json
import platform
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stridelm.backends.common.processor import processor_entry
from stridelm.files import write_json
from stridelm.prompts import read_prompts

BENCH = Path(__file__).parent
PROMPTS, RESULTS = BENCH / "prompts", BENCH / "results"
MATHS, KINDS = PROMPTS / "gsm8k_heldout.jsonl", PROMPTS / "kinds.jsonl"
_STUDENT_T = {
    2: 12.71,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.306,
    10: 2.262,
    11: 2.228,
    12: 2.201,
    13: 2.179,
    14: 2.160,
    15: 2.145,
    16: 2.131,
}
"""Two-sided 95 % by number of rounds; that of the longest for more."""


def script_parser(doc: str | None, json: Path | None = None, *, needs_json: bool = False) -> argparse.ArgumentParser:
    """A script's docstring is its help. `json` is the default of `--json`, the file that `write` gets."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=json, required=needs_json, help="where the figures are written")
    return parser


def compare(
    doc: str | None, measure: Callable[[int, int, int], dict[str, Any]], table: Callable[[dict[str, Any]], str]
) -> None:
    """The whole script of a comparison by rounds: `measure` gets the tokens of an answer, rounds and threads."""
    parser = script_parser(doc)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per answer")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds over all prompts")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    figures = measure(options.tokens, options.rounds, options.threads)
    print(table(figures))
    write(options.json, figures)


def prompts_by_kind() -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for line in read_prompts(KINDS):
        kinds.setdefault(str(line.category), []).append(str(line.prompt))
    return kinds


def read(name: str) -> Any:
    """A file of results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def write(file: Path | None, figures: Any) -> None:
    """Nothing is written if no file was named."""
    if file is not None:
        write_json(file, figures)


def machine(threads: int) -> dict[str, Any]:
    asked = ["git", "-C", str(BENCH), "rev-parse", "--short", "HEAD"]  # scripts run from anywhere
    commit = subprocess.run(asked, capture_output=True, text=True, check=False)
    return {
        "processor": processor_entry("model name") or platform.machine(),
        "threads": threads,
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        **{name: version(name) for name in ("torch", "transformers")},
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def summary(values: list[float]) -> dict[str, float]:
    """The median, the least and the largest."""
    return {"median": round(statistics.median(values), 2), "low": round(min(values), 2), "high": round(max(values), 2)}


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean between the bounds of its 95 % interval, by Student's t over the rounds."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, mean, mean
    half = _STUDENT_T.get(len(values), min(_STUDENT_T.values())) * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean, mean + half


def spread(entry: Mapping[str, float], digits: int = 2, unit: str = "") -> str:
    """As in `1.52x (1.40 to 1.61)`."""
    median, low, high = (f"{entry[name]:,.{digits}f}" for name in ("median", "low", "high"))
    return f"{median}{unit} ({low} to {high})"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))
