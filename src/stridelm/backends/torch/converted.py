"""Loads a base model together with its conversion, in any of its forms: a gated adapter, an adapter to be merged, or
only the model's own mask token."""

from pathlib import Path

import torch

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.models.adapter import MASK_EMBEDDING, Adapter, AdapterConfig
from stridelm.models.mask_token import own_masks
from stridelm.models.preview import warn_of_other_weights
from stridelm.models.ungated import masks_alone
from stridelm.settings import LoadSettings


def load_converted(
    name: str, settings: LoadSettings, given: tuple[Path, Adapter] | None, *, trainable: bool = False
) -> tuple[Checkpoint, Adapter | None]:
    """The model, and the adapter for its masks; None if the model has no masks. `given`: an adapter and its folder. If
    the returned adapter has no low-rank parts, real rows and mask rows pass through the same weights."""
    if given is not None and not given[1].is_gated:
        return load_checkpoint(name, settings, trainable=trainable, merged=given), masks_alone(given[1])
    checkpoint = load_checkpoint(name, settings, trainable=trainable)
    if given is None:
        return checkpoint, mask_token_adapter(checkpoint)
    folder, adapter = given
    trained_on = adapter.config.base, adapter.config.fingerprint
    warn_of_other_weights(folder, trained_on, (checkpoint.name, checkpoint.fingerprint))
    return checkpoint, adapter


def mask_token_adapter(checkpoint: Checkpoint) -> Adapter | None:
    """An adapter that represents a model's own mask token; None if its config names none."""
    network = checkpoint.network
    found = own_masks(checkpoint.name, network.config, checkpoint.tokenizer)
    if found is None:
        return None
    name, ids = found
    embedding_DC = network.get_input_embeddings()(torch.tensor(ids, device=network.device))
    config = AdapterConfig(
        base=checkpoint.name,
        fingerprint=checkpoint.fingerprint,
        width=embedding_DC.shape[-1],
        rank=0,
        masks=len(ids),
        mask_token=name,
        mask_token_id=ids[0],
        extends_vocabulary=False,
        targets=(),
        unadapted=(),
        sequential_size=0,
    )
    return Adapter(config, {MASK_EMBEDDING: embedding_DC})
