"""Checkpoints of a run: what is trained, the optimiser's moments and the step. Whole or not there.

A checkpoint is a folder `checkpoint-000500`; it is written under another name, then renamed, then the one before is
removed. Whatever moment a run is killed at, the newest complete one is found.
"""

import shutil
from pathlib import Path

import torch
from torch import nn

from stridelm.train.files import read_json, read_tensors, write_json, write_tensors

_PREFIX = "checkpoint-"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_checkpoint(folder: Path, step: int, parameters: dict[str, nn.Parameter], optimiser: torch.optim.AdamW) -> None:
    working = folder / ".checkpoint"
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in parameters.items():
        tensors[name] = parameter.detach().cpu()
        for moment in _MOMENTS:
            tensors[f"{moment}/{name}"] = optimiser.state[parameter][moment].cpu()
    write_tensors(working / "state.safetensors", tensors)
    write_json(working / "state.json", {"step": step})
    older = _checkpoints(folder)
    working.rename(folder / f"{_PREFIX}{step:06}")
    for path in older:
        shutil.rmtree(path)


def load_checkpoint_state(folder: Path, parameters: dict[str, nn.Parameter], optimiser: torch.optim.AdamW) -> int:
    """Put the newest checkpoint into place; returns how many steps it has behind it, 0 if there is none."""
    found = _checkpoints(folder)
    if not found:
        return 0
    step = int(read_json(found[-1] / "state.json")["step"])
    tensors = read_tensors(found[-1] / "state.safetensors")
    for name, parameter in parameters.items():
        with torch.no_grad():
            parameter.copy_(tensors[name])
        optimiser.state[parameter] = {
            # Where the optimiser itself would have put it.
            "step": torch.tensor(float(step), device=parameter.device if optimiser.defaults["fused"] else "cpu"),
            **{moment: tensors[f"{moment}/{name}"].to(parameter.device) for moment in _MOMENTS},
        }
    return step


def remove_checkpoints(folder: Path) -> None:
    for path in _checkpoints(folder):
        shutil.rmtree(path)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*"))
