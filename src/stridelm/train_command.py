"""`stridelm train`: prompts, rollouts, training, and a folder that holds the adapter and all about its making."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stridelm.model.adapter import save_adapter
from stridelm.model.load import Checkpoint, load_checkpoint
from stridelm.prompts import read_prompts
from stridelm.settings import LoadSettings
from stridelm.train.checkpoint import remove_checkpoints
from stridelm.train.display import Display
from stridelm.train.files import read_json, write_json
from stridelm.train.record import draw_report, provenance, write_card
from stridelm.train.rollouts import RolloutStore
from stridelm.train.settings import AUTO_DTYPE, TrainSettings
from stridelm.train.tensorboard import tensorboard_writer
from stridelm.train.trainer import Trainer
from stridelm.types import InputError

RECORD = "train.json"
_FREE_BYTES = 200_000_000
"""Beside what is trained: rollouts, metrics, the picture."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for."""

    model: str
    prompts: Path | None
    out: Path
    rollouts: Path | None
    resume: bool
    settings: TrainSettings


def run(request: Request) -> None:
    settings = request.settings
    lines = read_prompts(request.prompts) if request.prompts else []
    _check_out(request)
    checkpoint = load_checkpoint(request.model, _load_settings(settings), trainable=True)
    _check_room(request.out, checkpoint, settings)
    record = provenance(request.model, request.prompts, settings, _device_name())
    with Display() as display:
        store = RolloutStore(request.rollouts or request.out / "rollouts", checkpoint, lines, settings, display.report)
        _open(request, record, checkpoint)
        rollouts = store.make()
        write_json(request.out / RECORD, record | {"fingerprint": checkpoint.fingerprint, "data": rollouts.manifest})
        with tensorboard_writer(request.out) as to_tensorboard:

            def watch(entry: dict[str, Any]) -> None:
                display.watch(settings.steps, entry)
                to_tensorboard(entry)

            trainer = Trainer(checkpoint, rollouts, settings, request.out, watch)
            tally = trainer.run()
    adapter = trainer.student.adapter(checkpoint.name, checkpoint.fingerprint, checkpoint.tokenizer)
    save_adapter(request.out, adapter)
    write_card(request.out, record, adapter.config, tally, rollouts.manifest)
    drawn = draw_report(request.out)
    remove_checkpoints(request.out)
    print(
        f"{request.out}: {tally.tokens_per_forward:.2f} tokens per forward on {tally.texts} held-out prompts, "
        f"acceptance by depth {' '.join(f'{rate:.2f}' for rate in tally.acceptance)}"
    )
    if not drawn:
        print("report.png was not drawn: matplotlib is not installed (pip install 'stridelm[train]')")
    print(f'try it: stridelm generate --model {request.model} --adapter {request.out} "..."')


def _load_settings(settings: TrainSettings) -> LoadSettings:
    on_gpu = settings.device.startswith("cuda") or (settings.device == "auto" and torch.cuda.is_available())
    dtype = ("bfloat16" if on_gpu else "float32") if settings.dtype == AUTO_DTYPE else settings.dtype
    return LoadSettings(device=settings.device, dtype=dtype, threads=settings.threads)


def _check_out(request: Request) -> None:
    """A folder that is new, or one of a run with the same settings that is to go on."""
    out, record = request.out, request.out / RECORD
    if not out.exists():
        if request.resume:
            raise InputError(f"{out}: there is nothing to resume; leave --resume out to start")
        return
    if not request.resume:
        raise InputError(f"{out}: exists already: name another folder, or go on with what it holds by --resume")
    if not record.is_file():
        raise InputError(f"{out}: holds no {RECORD}, so there is no run to resume: name another folder")
    if (out / "adapter.json").is_file():
        raise InputError(f"{out}: its run is finished, there is nothing to resume")


def _open(request: Request, record: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Make the folder, or see that what it holds was begun with the same settings."""
    file = request.out / RECORD
    if not request.resume:
        request.out.mkdir(parents=True)
        write_json(file, record | {"fingerprint": checkpoint.fingerprint})
        return
    before = read_json(file)
    settings = before.get("settings", {})
    apart = [name for name, value in record["settings"].items() if settings.get(name) != value]
    apart += [name for name in ("model", "prompts") if before.get(name) != record[name]]
    if before.get("fingerprint") != checkpoint.fingerprint:
        apart.append("the model's weights")
    if apart:
        told = ", ".join(f"{name} ({settings.get(name, before.get(name))})" for name in apart)
        raise InputError(f"{file}: the run to be resumed has other settings: {told}. Give the same, or a new --out")


def _check_room(out: Path, checkpoint: Checkpoint, settings: TrainSettings) -> None:
    """Weights and two moments of the optimiser in float32, twice while a checkpoint replaces another."""
    linear = sum(
        module.in_features + module.out_features
        for module in checkpoint.network.modules()
        if isinstance(module, torch.nn.Linear)
    )
    needed = linear * settings.rank * 4 * 3 * 2 + _FREE_BYTES
    place = next(parent for parent in (out, *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise InputError(
            f"{place}: {free / 1e6:,.0f} MB are free, but the run needs about {needed / 1e6:,.0f} MB: make room, or "
            "name another --out"
        )


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
