"""What a run leaves beside its weights: where it came from (`train.json`), a model card, a picture."""

import io
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import stridelm
from stridelm.model.adapter import AdapterConfig
from stridelm.train.acceptance import Tally
from stridelm.train.files import read_json_lines, write_bytes
from stridelm.train.trainer import METRICS

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def circumstances(device: torch.device) -> dict[str, Any]:
    """By what command, code and machine a run is made."""
    return {
        "command": shlex.join(["stridelm", *sys.argv[1:]]),
        "stridelm": stridelm.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _LIBRARIES},
        "machine": {
            "system": platform.platform(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit that the code is at; None where it is not a git checkout."""
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


def write_card(folder: Path, record: dict[str, Any], config: AdapterConfig, tally: Tally) -> None:
    """README.md of an adapter: what it is, how it was made, what was measured."""
    data = record["data"]
    unadapted = f" Layers without one: {', '.join(config.unadapted)}." if config.unadapted else ""
    head = f"a sequential head of size {config.sequential_size}" if config.sequential_size else "no sequential head"
    behind = ", behind the vocabulary" if config.extends_vocabulary else ""
    rates = " ".join(f"{rate:.2f}" for rate in tally.acceptance)
    prompts = f"{data['prompts_given']} from {record['prompts']}" if record["prompts"] else "none given"
    card = f"""# A StrideLM adapter for {config.base}

With it, {config.base} proposes up to {config.k} tokens per forward pass and verifies them in the next. Its answers do
not change: the adapter is applied to mask rows only, and every token is compared with the base model's own.

    stridelm generate --model {config.base} --adapter {folder.name} "Why is the sky blue?"

- Format: see `adapter.json`; not a plain LoRA, and not to be merged into the base.
- Base: {config.base}, fingerprint `{config.fingerprint[:16]}`. Low-rank parts of rank {config.rank} on
  {len(config.targets)} linear layers, {config.masks} mask embeddings, {head}.{unadapted}
- Mask token: `{config.mask_token}`, id {config.mask_token_id}{behind}.
- Trained by self-distillation on the base model's own answers: {data["answers"]} answers
  ({data["answer_tokens"]} tokens) to {data["prompts"]} prompts ({prompts}, {data["settings"]["self_prompts"]} made up
  by the model itself). No other data.
- Measured on {tally.texts} held-out prompts of the same kind ({tally.tokens} tokens): **{tally.tokens_per_forward:.2f}
  tokens per forward**; acceptance by depth: {rates}.
- Licence: the base model's; the answers are its own.

Made by:

    {record["command"]}

at commit {record["commit"]}, stridelm {record["stridelm"]}, torch {record["versions"]["torch"]}, on
{record["machine"]["device"]}. `train.json` has every setting, `metrics.jsonl` every measurement, `report.png` the
curves.
"""
    write_bytes(folder / "README.md", card.encode())


def draw_report(folder: Path) -> bool:
    """report.png from metrics.jsonl: the loss, and acceptance by depth over time. False without matplotlib."""
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
    left.set(title="Loss: divergence from the teacher", xlabel="step", ylabel="nats per mask row", yscale=scale)
    left.grid(alpha=0.3)
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
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_bytes(folder / "report.png", picture.getvalue())
    return True
