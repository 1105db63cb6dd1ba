"""The ways to convert a model, by `--mode`: the student, its objective, its evaluation, and how it is saved.

To add a mode, write a student with its objective, and add an entry to the table at the end.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.draft_layers import DRAFT, DraftConfig, cut_config, save_draft
from stridelm.backends.torch.heads import HEADS, HeadsConfig, save_heads
from stridelm.models.adapter import CONFIG as ADAPTER_FILE
from stridelm.models.adapter import Adapter, check_takes_masks, load_adapter, save_adapter
from stridelm.models.preview import adapter_folder, warn_of_other_weights
from stridelm.params import InputError
from stridelm.train.acceptance import Measure
from stridelm.train.cards import adapter_card, draft_card, full_card, heads_card
from stridelm.train.measured_prior import measured_prior
from stridelm.train.objective import ChainObjective, RowObjective
from stridelm.train.parallel import Team, gather_state
from stridelm.train.rollouts import Text
from stridelm.train.settings import MEASURED_DRAFTS, OWN, TrainSettings
from stridelm.train.students.full_student import FullStudent, save_full
from stridelm.train.students.readers import HeadsReader, MaskReader, ModelReader
from stridelm.train.students.small_students import DraftStudent, HeadsStudent
from stridelm.train.students.student import Student

Save = Callable[[Path | None, Items[Text]], None]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a mode contributes to a run."""

    student: Any
    objective: ChainObjective | RowObjective
    measure: Measure | None
    """None if the student proposes nothing: then the evaluation is the loss on held-out answers."""
    save: Save
    """Saves into a folder; the file that marks it as complete is written last. Held-out answers say how likely drafts
    are accepted, where the result has room for that. Every process of a team must call this; processes other than the
    first pass None and write nothing."""
    card: str
    """The beginning of its model card: what was trained."""
    shards: bool = False
    """Whether the weights are sharded over the processes that train together."""


def _adapter(checkpoint: Checkpoint, settings: TrainSettings) -> Conversion:
    network = checkpoint.network
    student = Student(
        network, settings.rank, settings.masks, settings.state_size,
        tail_heads=settings.tail, tail_size=settings.tail_size, is_gated=settings.gate == "mask",
    )  # fmt: skip
    if settings.start is not None:
        student.continue_from(_first_adapter(checkpoint, settings, settings.start))

    def adapter() -> Adapter:
        return student.adapter(checkpoint.name, checkpoint.fingerprint, checkpoint.tokenizer)

    reader = MaskReader(network, student)

    def save(folder: Path | None, held_out: Items[Text]) -> None:
        if folder is not None:
            prior = measured_prior(reader, held_out) if student.is_gated else None
            own = adapter()
            save_adapter(folder, replace(own, config=replace(own.config, draft_prior=prior)))

    measure = Measure(reader)
    return Conversion(student, ChainObjective(network, student, settings), measure, save, adapter_card(adapter()))


def _full(checkpoint: Checkpoint, settings: TrainSettings) -> Conversion:
    network, proposes = checkpoint.network, settings.learns.proposes
    student = FullStudent(network, checkpoint.tokenizer, settings.masks if proposes else 0)
    objective = (ChainObjective if proposes else RowObjective)(network, student, settings)
    measure = Measure(MaskReader(network, student)) if proposes else None

    def save(folder: Path | None, _held_out: Items[Text]) -> None:
        weights = gather_state(student.network)
        if folder is not None:
            save_full(folder, student, weights, checkpoint.tokenizer, checkpoint.eos_ids, checkpoint.stored_dtype)

    card = full_card(checkpoint.name, student.masks, student.token)
    return Conversion(student, objective, measure, save, card, shards=True)


def _heads(checkpoint: Checkpoint, settings: TrainSettings) -> Conversion:
    network = checkpoint.network
    student = HeadsStudent(network, settings.heads, settings.head_size)
    heads, size, width = student.heads.up_HSC.shape
    config = HeadsConfig(checkpoint.name, checkpoint.fingerprint, width, heads, size)

    def save(folder: Path | None, _held_out: Items[Text]) -> None:
        if folder is not None:
            save_heads(folder, config, student.heads)

    measure = Measure(HeadsReader(network, student.heads))
    return Conversion(student, ChainObjective(network, student, settings), measure, save, heads_card(config))


def _draft(checkpoint: Checkpoint, settings: TrainSettings) -> Conversion:
    network = checkpoint.network
    student = DraftStudent(network, settings.layers)
    config = DraftConfig(checkpoint.name, checkpoint.fingerprint, settings.layers)

    def save(folder: Path | None, _held_out: Items[Text]) -> None:
        if folder is not None:
            save_draft(folder, config, student.network)

    measure = Measure(ModelReader(student.network, MEASURED_DRAFTS))
    return Conversion(student, RowObjective(network, student, settings), measure, save, draft_card(config))


def _low_rank_values(network: Any, settings: TrainSettings) -> int:
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    return settings.rank * sum(linear.in_features + linear.out_features for linear in linears)


def _all_values(network: Any, _settings: TrainSettings) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _head_values(network: Any, settings: TrainSettings) -> int:
    width = int(network.config.get_text_config().hidden_size)
    return 2 * settings.heads * width * (settings.head_size or width)


def _layer_values(network: Any, settings: TrainSettings) -> int:
    return _all_values(network, settings) * settings.layers // int(network.config.get_text_config().num_hidden_layers)


def _first_adapter(checkpoint: Checkpoint, settings: TrainSettings, start: str) -> Adapter:
    """The adapter that `--start` names, if it has the form that is to be trained."""
    folder = adapter_folder(checkpoint.name, None if start == OWN else start)
    if folder is None:
        raise InputError(f"--start {OWN}: no adapter comes with {checkpoint.name}; name a folder")
    adapter = load_adapter(folder)
    config = adapter.config
    if not adapter.is_gated:
        raise InputError(f"{folder}: real rows pass through this adapter, too; --start takes gated ones")
    form = [
        ("k", config.k, config.k == settings.k),
        ("rank", config.rank, config.rank <= settings.rank),
        ("sequential-size", config.sequential_size, config.sequential_size == settings.state_size),
        ("tail-heads", config.tail_heads, config.tail_heads in (0, settings.tail)),
        ("tail-size", config.tail_size, config.tail_size in (0, settings.tail_size)),
    ]
    wanted = [f"--{name} {value}" for name, value, fits in form if not fits]
    if wanted:
        raise InputError(f"{folder}: this adapter has another form than the one to be trained: add {' '.join(wanted)}")
    warn_of_other_weights(folder, (config.base, config.fingerprint), (checkpoint.name, checkpoint.fingerprint))
    return adapter


def _check_adapter(checkpoint: Checkpoint, settings: TrainSettings, team: Team) -> None:
    _check_masks(checkpoint, settings, team)
    if settings.start is not None:
        _first_adapter(checkpoint, settings, settings.start)


def _check_masks(checkpoint: Checkpoint, _settings: TrainSettings, _team: Team) -> None:
    check_takes_masks(checkpoint.network.config)


def _check_full(checkpoint: Checkpoint, settings: TrainSettings, team: Team) -> None:
    _check_masks(checkpoint, settings, team)
    if team.size > 1 and not hasattr(checkpoint.network.base_model, "layers"):
        raise InputError(
            f"{checkpoint.network.config.model_type} does not keep its layers in one list: it can be tuned in full by "
            "one process only"
        )


def _check_heads(_checkpoint: Checkpoint, _settings: TrainSettings, _team: Team) -> None:
    """Heads work with every model."""


def _check_draft(checkpoint: Checkpoint, settings: TrainSettings, team: Team) -> None:
    _check_masks(checkpoint, settings, team)
    cut_config(checkpoint.network.config, settings.layers)


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to convert a model: what is known before training starts."""

    make: Callable[[Checkpoint, TrainSettings], Conversion]
    check: Callable[[Checkpoint, TrainSettings, Team], None]
    """Refuses a model that this mode cannot convert, before anything is written."""
    result: str
    """The file that a finished run has written."""
    values: Callable[[Any, TrainSettings], int]
    """(network, settings) -> approximate number of trained parameters, to estimate the disk space of a run."""
    usage: Callable[[str, str], list[str]]
    """(model, folder) -> options of `stridelm generate` that use the result."""


WAYS: dict[str, Mode] = {
    "adapter": Mode(
        _adapter, _check_adapter, ADAPTER_FILE, _low_rank_values,
        lambda model, out: ["--model", model, "--adapter", out],
    ),
    "full": Mode(_full, _check_full, "config.json", _all_values, lambda model, out: ["--model", out]),
    "heads": Mode(
        _heads, _check_heads, HEADS.file, _head_values,
        lambda model, out: ["--model", model, "--heads", out, "--decoder", "heads"],
    ),
    "draft": Mode(
        _draft, _check_draft, DRAFT.file, _layer_values,
        lambda model, out: ["--model", model, "--draft-model", out, "--decoder", "draft"],
    ),
}  # fmt: skip
"""By `--mode`."""


def make_conversion(checkpoint: Checkpoint, settings: TrainSettings) -> Conversion:
    torch.manual_seed(settings.seed)  # for the student's initial weights
    return WAYS[settings.mode].make(checkpoint, settings)
