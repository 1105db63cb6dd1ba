"""Checkpoints of a run: what is trained, the optimiser's moments, and the step in the name. Whole or not there.

`checkpoint-000500.safetensors` is in place before the one before is removed: whatever moment a run is killed at, the
newest is complete.
"""

from pathlib import Path

import torch
from torch import nn

from stridelm.train.files import read_tensors, write_tensors
from stridelm.train.parallel import Team, gather, scatter

_PREFIX = "checkpoint-"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_checkpoint(
    folder: Path, step: int, parameters: dict[str, nn.Parameter], optimiser: torch.optim.AdamW, team: Team
) -> None:
    """Every process of a team takes part, the first one writes."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in parameters.items():
        tensors[name] = gather(parameter)
        for moment in _MOMENTS:
            tensors[f"{moment}/{name}"] = gather(optimiser.state[parameter][moment])
    if not team.is_first:
        return
    older = checkpoints(folder).values()
    write_tensors(folder / f"{_PREFIX}{step:06}.safetensors", tensors)
    for file in older:
        file.unlink()


def load_checkpoint_state(folder: Path, parameters: dict[str, nn.Parameter], optimiser: torch.optim.AdamW) -> int:
    """Put the newest checkpoint into place; returns how many steps it has behind it, 0 if there is none."""
    found = checkpoints(folder)
    if not found:
        return 0
    step = max(found)
    tensors = read_tensors(found[step], "start anew with another --out")
    for name, parameter in parameters.items():
        with torch.no_grad():
            parameter.copy_(scatter(tensors[name], parameter))
        optimiser.state[parameter] = {
            # Where the optimiser itself would have put it.
            "step": torch.tensor(float(step), device=parameter.device if optimiser.defaults["fused"] else "cpu"),
            **{moment: scatter(tensors[f"{moment}/{name}"], parameter) for moment in _MOMENTS},
        }
    return step


def remove_checkpoints(folder: Path) -> None:
    for file in checkpoints(folder).values():
        file.unlink()


def checkpoints(folder: Path) -> dict[int, Path]:
    """By their steps."""
    return {int(file.stem.removeprefix(_PREFIX)): file for file in folder.glob(f"{_PREFIX}*.safetensors")}
