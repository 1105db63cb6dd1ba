"""The records of a run beside its weights: how it was made (`train.json`), a model card, a plot."""

import io
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import stridelm
from stridelm.files import read_json_lines, write_bytes
from stridelm.train.trainer import METRICS, Evaluation

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def circumstances(device: str) -> dict[str, Any]:
    """The command, code versions and machine of a run; `device` is the device's name."""
    return {
        "command": shlex.join(["stridelm", *sys.argv[1:]]),
        "stridelm": stridelm.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _LIBRARIES},
        "machine": {
            "system": platform.platform(),
            "device": device,
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the code; None if it is not a git checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def write_card(folder: Path, record: dict[str, Any], what: str, usage: list[str], evaluation: Evaluation) -> None:
    """Write README.md: what was trained (`what`), the options to use it, how it was made, and the evaluation."""
    data = record["data"]
    card = f"""{what}
- To use it: `stridelm generate {shlex.join(usage)} "Why is the sky blue?"`
{_learnt_from(record)}
- Measured: **{evaluation.sentence}** ({evaluation.tokens} tokens).
- Licence: the base model's.

Made by:

    {record["command"]}

at commit {record["commit"]}, stridelm {record["stridelm"]}, torch {record["versions"]["torch"]}, on
{record["machine"]["device"]}, base model {data["base"]} (fingerprint `{data["fingerprint"][:16]}`). `train.json` has
every setting, `metrics.jsonl` every measurement, `report.png` the curves.
"""
    write_bytes(folder / "README.md", card.encode())


def _learnt_from(record: dict[str, Any]) -> str:
    data = record["data"]
    if "objective" in data:
        return f"- Trained on the {data['answers']} answers ({data['answer_tokens']} tokens) of {record['prompts']}."
    start = record["settings"]["start"]
    before = "" if start is None else f"\n- It started from the weights of an earlier adapter (`--start {start}`)."
    prompts = f"{data['prompts_given']} from {record['prompts']}" if record["prompts"] else "none given"
    return f"""- Trained by self-distillation on the base model's own answers: {data["answers"]} answers
  ({data["answer_tokens"]} tokens) to {data["prompts"]} prompts ({prompts}, {data["settings"]["self_prompts"]} made up
  by the model itself). No other data.{before}"""


def draw_report(folder: Path) -> bool:
    """Draw report.png from metrics.jsonl: the loss, and acceptance by depth over time. Returns False if matplotlib is
    not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    entries = read_json_lines(folder / METRICS, "report.png is drawn from it")
    losses = [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]
    measured = [entry for entry in entries if "acceptance" in entry]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    if losses:
        left.plot(*zip(*losses, strict=True), color="#0072b2", linewidth=1)
    scale = "log" if any(loss > 0 for _, loss in losses) else "linear"
    left.set(title="Loss", xlabel="step", ylabel="nats per row", yscale=scale)
    left.grid(alpha=0.3)
    if not measured:
        _draw_held_out(right, entries)
        return _write_picture(figure, folder)
    steps = [entry["step"] for entry in measured]
    depths = max((len(entry["acceptance"]) for entry in measured), default=0)
    for depth in range(depths):
        shade = 0.15 + 0.7 * depth / max(1, depths - 1)
        rates = [entry["acceptance"][depth] for entry in measured]
        right.plot(steps, rates, label=f"draft {depth + 1}", color=(shade, 0.35, 1 - shade), linewidth=1.2)
    right.set(title="Held-out prompts", xlabel="step", ylabel="accepted, of those looked at", ylim=(0, 1))
    right.grid(alpha=0.3)
    right.legend(fontsize=7, ncols=2, loc="lower left")
    speed = right.twinx()
    speed.plot(steps, [entry["tokens_per_forward"] for entry in measured], color="black", linewidth=2)
    speed.set(ylabel="tokens per forward (black)", ylim=(1, None))
    return _write_picture(figure, folder)


def _draw_held_out(axes: Any, entries: list[dict[str, Any]]) -> None:
    losses = [(entry["step"], entry["held_out_loss"]) for entry in entries if "held_out_loss" in entry]
    if losses:
        axes.plot(*zip(*losses, strict=True), color="black", linewidth=2)
    axes.set(title="Held-out answers", xlabel="step", ylabel="nats per token")
    axes.grid(alpha=0.3)


def _write_picture(figure: Any, folder: Path) -> bool:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_bytes(folder / "report.png", picture.getvalue())
    return True
