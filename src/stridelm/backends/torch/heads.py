"""Prediction heads on the frozen model (Medusa), and their format on disk.

Head i on the row at position n predicts the token at n + 1 + i; the model itself predicts n + 1.
"""

from dataclasses import dataclass
from pathlib import Path

from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.models.parts import Kind, check_base, check_tensors, load_part, save_part
from stridelm.models.prediction_heads import PredictionHeads
from stridelm.models.store import read_weights
from stridelm.models.target import Target
from stridelm.params import InputError

HEADS = Kind("heads", "heads.json", "stridelm-heads")


class TorchHeads(PredictionHeads):
    """Implements `contracts.Heads`."""

    @property
    def k(self) -> int:
        """Tokens proposed per pass: the model's own, and one per head."""
        return len(self) + 1


@dataclass(frozen=True, slots=True)
class HeadsConfig:
    """What `heads.json` holds beside the format's name and version."""

    base: str
    """The base model's name when the heads were trained."""
    fingerprint: str
    """Of the base model's weights: `stridelm.models.fingerprint.fingerprint`."""
    width: int
    """The base model's hidden size."""
    heads: int
    size: int

    def __post_init__(self) -> None:
        for name in ("width", "heads", "size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number above 0, not {value!r}")


def save_heads(folder: Path, config: HeadsConfig, module: TorchHeads) -> None:
    save_part(folder, HEADS, config, module.state_dict())


def load_heads(folder: Path) -> tuple[HeadsConfig, TorchHeads]:
    """The heads in float32, on the CPU, without gradients."""
    if not (folder / HEADS.file).is_file():
        hint = " (adapter.json is an adapter's: give it as the adapter)" if (folder / "adapter.json").is_file() else ""
        raise InputError(
            f"{folder}: no {HEADS.file} there, so it holds no heads of StrideLM{hint}: name the folder that "
            "`stridelm train --mode heads` made"
        )
    kind, config, tensors = load_part(folder, (HEADS,), HeadsConfig, read_weights)
    shapes = {
        "up_HSC": (config.heads, config.size, config.width),
        "down_HCS": (config.heads, config.width, config.size),
    }
    check_tensors(folder, kind, tensors, shapes)
    module = TorchHeads(config.width, config.heads, config.size)
    module.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return config, module.requires_grad_(False)


def heads_for(target: Checkpoint, folder: Path, config: HeadsConfig, module: TorchHeads) -> TorchHeads:
    """Check that heads loaded from a folder were trained on this target, and move them to its device."""
    check_heads(target, folder, config)
    return module.to(target.network.device)


def check_heads(target: Target, folder: Path, config: HeadsConfig) -> None:
    remedy = f"use the heads of this model, or train some with `stridelm train --mode heads --model {target.name}`"
    check_base(folder, HEADS, (config.base, config.fingerprint), (target.name, target.fingerprint), remedy)
