"""Checkpoints of a run: the trained parameters and the optimiser's moments, with the step in the file's name.

Checkpoints are written atomically, and the previous one is removed only once `checkpoint-000500.safetensors` is in
place. So the newest checkpoint is complete, whenever a run is killed.
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
    """Every process of a team must call this; the first one writes."""
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
    """Load the newest checkpoint; returns the number of steps done by then, 0 if there is no checkpoint."""
    found = checkpoints(folder)
    if not found:
        return 0
    step = max(found)
    tensors = read_tensors(found[step], "start anew with another --out")
    for name, parameter in parameters.items():
        with torch.no_grad():
            parameter.copy_(scatter(tensors[name], parameter))
        optimiser.state[parameter] = {
            # On the device where the optimiser itself would have created it.
            "step": torch.tensor(float(step), device=parameter.device if optimiser.defaults["fused"] else "cpu"),
            **{moment: scatter(tensors[f"{moment}/{name}"], parameter) for moment in _MOMENTS},
        }
    return step


def remove_checkpoints(folder: Path) -> None:
    for file in checkpoints(folder).values():
        file.unlink()


def checkpoints(folder: Path) -> dict[int, Path]:
    """Step -> file."""
    return {int(file.stem.removeprefix(_PREFIX)): file for file in folder.glob(f"{_PREFIX}*.safetensors")}
