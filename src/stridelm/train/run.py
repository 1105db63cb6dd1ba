"""`stridelm train`: prompts, rollouts, training, and a folder with the result and the record of how it was made."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.files import read_json, write_json
from stridelm.light import install_command
from stridelm.params import InputError
from stridelm.prompts import read_prompts
from stridelm.settings import AUTO_DTYPE, LoadSettings
from stridelm.train.checkpoint import checkpoints, remove_checkpoints
from stridelm.train.conversion import WAYS
from stridelm.train.display import Display
from stridelm.train.parallel import Team, joined
from stridelm.train.record import circumstances, draw_report, write_card
from stridelm.train.rollouts import RolloutStore
from stridelm.train.settings import TrainSettings, differences
from stridelm.train.tensorboard import tensorboard_writer
from stridelm.train.trainer import Trainer

RECORD = "train.json"
_FREE_BYTES = 200_000_000
"""Disk space for files other than checkpoints: rollouts, metrics, the plot."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of the command line."""

    model: str
    prompts: Path | None
    out: Path
    rollouts: Path | None
    resume: bool
    settings: TrainSettings


def run(options: TrainOptions) -> None:
    with joined(options.settings.device) as team:
        _run(options, team)


def _run(options: TrainOptions, team: Team) -> None:
    settings, out = options.settings, options.out
    team.check(settings.texts)
    lines = read_prompts(options.prompts) if options.prompts else []
    rollouts_folder = options.rollouts or out / "rollouts"
    if team.is_first:
        _check_out(out, WAYS[settings.mode].result, resume=options.resume)
        _check_can_be_folder(rollouts_folder)
    checkpoint = load_checkpoint(options.model, _load_settings(settings), trainable=True)
    WAYS[settings.mode].check(checkpoint, settings, team)
    made = (_starting(out), out, rollouts_folder) if team.is_first else ()
    with Display(speaks=team.is_first) as display, _removed_if_refused(*made):
        store = RolloutStore(rollouts_folder, checkpoint, lines, settings, display.report)
        with team.first_before_others():
            record = _opened(options, checkpoint, store, team) if team.is_first else {}
            rollouts = store.make()
        with tensorboard_writer(out) if team.is_first else nullcontext(_ignore) as to_tensorboard:

            def watch(entry: dict[str, Any]) -> None:
                display.watch(settings.steps, entry)
                to_tensorboard(entry)

            trainer = Trainer(checkpoint, rollouts, settings, out, watch, team)
            if team.is_first:
                record["data"] = rollouts.manifest | trainer.batches.coverage
                write_json(out / RECORD, record)
                display.say(_coverage(trainer.batches.coverage, settings.length))
            evaluation = trainer.run()
    if not team.is_first:
        trainer.conversion.save(None, trainer.held_out)
        return
    usage = WAYS[settings.mode].usage(options.model, str(out))
    write_card(out, record, trainer.conversion.card, usage, evaluation)
    drawn = draw_report(out)
    # These two finish the run. A run that is killed before them can be resumed, and ends here again.
    trainer.conversion.save(out, trainer.held_out)
    remove_checkpoints(out)
    print(f"{out}: {evaluation.sentence}")
    if not drawn:
        print(f"report.png was not drawn: matplotlib is not installed ({install_command('train')})")
    print(f'try it: stridelm generate {shlex.join(usage)} "..."')


def _coverage(counts: dict[str, int], length: int) -> str:
    return (
        f"{counts['texts_used']} texts to train on; {counts['texts_cut']} are cut at --length ({length}), "
        f"{counts['texts_left_out']} left out: too little of an answer fits"
    )


def _ignore(entry: dict[str, Any]) -> None:
    """For all processes but the first, which writes the TensorBoard files."""


def _load_settings(settings: TrainSettings) -> LoadSettings:
    on_gpu = settings.device.startswith("cuda") or (settings.device == "auto" and torch.cuda.is_available())
    dtype = ("bfloat16" if on_gpu else "float32") if settings.dtype == AUTO_DTYPE else settings.dtype
    return LoadSettings(device=settings.device, dtype=dtype, threads=settings.threads)


def _check_out(out: Path, result: str, *, resume: bool) -> None:
    """Refuse a folder that exists, unless it holds an unfinished run that is to be resumed."""
    if not out.exists():
        if resume:
            raise InputError(f"{out}: there is nothing to resume; leave --resume out to start")
        _check_can_be_folder(out)
        return
    if not resume:
        raise InputError(f"{out}: exists already: name another folder, or go on with what it holds by --resume")
    if not (out / RECORD).is_file():
        raise InputError(f"{out}: holds no {RECORD}, so there is no run to resume: name another folder")
    if (out / result).is_file() and not checkpoints(out):
        raise InputError(f"{out}: its run is finished, there is nothing to resume")


def _check_can_be_folder(folder: Path) -> None:
    place = _nearest_existing(folder)
    if not place.is_dir():
        raise InputError(f"{place}: is a file, so there can be no folder {folder}: name another one")


def _nearest_existing(folder: Path) -> Path:
    """The folder itself if it exists, otherwise its nearest existing parent."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _check_disk_space(out: Path, checkpoint: Checkpoint, settings: TrainSettings) -> None:
    """Check the free disk space. A checkpoint holds the weights and two moments of the optimiser in float32; there are
    two checkpoints while one replaces the other."""
    needed = WAYS[settings.mode].values(checkpoint.network, settings) * 4 * 3 * 2 + _FREE_BYTES
    place = _nearest_existing(out)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise InputError(
            f"{place}: {free / 1e6:,.0f} MB are free, but the run needs about {needed / 1e6:,.0f} MB: make room, or "
            "name another --out"
        )


def _opened(options: TrainOptions, checkpoint: Checkpoint, store: RolloutStore, team: Team) -> dict[str, Any]:
    """Make the run's folder, once all checks have passed. Returns the content of train.json."""
    _check_disk_space(options.out, checkpoint, options.settings)
    record = _record(options, checkpoint, store, team)
    store.check()
    _open(options, record)
    return record


def _record(options: TrainOptions, checkpoint: Checkpoint, store: RolloutStore, team: Team) -> dict[str, Any]:
    """The content of train.json. A resumed run keeps its earlier content, which must agree with the options."""
    asked = {
        "model": options.model,
        "prompts": str(options.prompts) if options.prompts else None,
        "rollouts": str(options.rollouts) if options.rollouts else None,
        "settings": asdict(options.settings),
        "data": store.manifest(),
    }
    now = circumstances(checkpoint.device)
    now["machine"]["processes"] = team.size
    if not options.resume:
        return asked | now
    file = options.out / RECORD
    before = read_json(file, "start anew with another --out")
    if apart := differences(before, asked):
        raise InputError(
            f"{file}: the run to be resumed has other settings: {', '.join(apart)}. Give the same, or a new --out"
        )
    return before | {"resumed": [*before.get("resumed", []), now]}


def _open(options: TrainOptions, record: dict[str, Any]) -> None:
    """Write train.json. A new folder appears together with it, because only a folder with train.json can be resumed."""
    if options.resume:
        write_json(options.out / RECORD, record)
        return
    folder = _starting(options.out)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / RECORD, record)
    folder.rename(options.out)


def _starting(out: Path) -> Path:
    return out.with_name(f".{out.name}.starting")


@contextmanager
def _removed_if_refused(*folders: Path) -> Iterator[None]:
    """If the run fails before these folders hold answers or a checkpoint, remove those that it has made."""
    made = [folder for folder in folders if not folder.exists()]
    try:
        yield
    except (InputError, OSError):
        for folder in made:
            if not any(any(folder.rglob(pattern)) for pattern in ("answers-*", "checkpoint-*")):
                shutil.rmtree(folder, ignore_errors=True)
        raise
