"""A base model together with its conversion, whichever form that has: a gated adapter, one to be merged, or none but
the model's own mask token."""

from pathlib import Path

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.models.adapter import Adapter, check_base
from stridelm.models.mask_token import mask_token_adapter
from stridelm.models.ungated import masks_alone
from stridelm.settings import LoadSettings


def load_converted(
    name: str, settings: LoadSettings, given: tuple[Path, Adapter] | None, *, trainable: bool = False
) -> tuple[Checkpoint, Adapter | None]:
    """The model, and the adapter that makes its masks; None where there is nothing to make them. `given`: an adapter
    and its folder. One without low-rank parts says that real rows and masks pass through the same weights."""
    if given is not None and not given[1].is_gated:
        return load_checkpoint(name, settings, trainable=trainable, merged=given), masks_alone(given[1])
    checkpoint = load_checkpoint(name, settings, trainable=trainable)
    if given is None:
        return checkpoint, mask_token_adapter(checkpoint)
    folder, adapter = given
    check_base(folder, adapter, checkpoint.name, checkpoint.fingerprint)
    return checkpoint, adapter
