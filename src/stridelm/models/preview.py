"""What comes with a model, as far as can be told before it is loaded. Nothing here imports torch."""

import json
import logging
from pathlib import Path

from stridelm.models import builtin
from stridelm.settings import NO_ADAPTER

log = logging.getLogger("stridelm")
MASK_KEY = "mask_token_id"
"""The entry of config.json with the mask token of a converted model that needs no adapter."""


def adapter_folder(model: str, adapter: str | Path | None) -> Path | None:
    """The folder of the adapter to load with a model; None if there is none."""
    if adapter is None:
        return builtin.builtin_adapter() if model == builtin.NAME else None
    if str(adapter) == builtin.UNGATED and model == builtin.NAME and not Path(adapter).exists():
        return builtin.builtin_ungated() or Path(adapter)
    return None if adapter == NO_ADAPTER else Path(adapter)


def warn_of_other_weights(folder: Path, trained_on: tuple[str, str], base: tuple[str, str]) -> None:
    """Say that a gated adapter was trained on other weights than those of `base`; both are (name, fingerprint).

    It belongs to a model, not to its bits: what masks propose is verified, so a model's other quantisations may use it,
    and write what they would write without it.
    """
    if trained_on[1] != base[1]:
        log.warning(
            "%s was trained on %s (fingerprint %s), and %s has other weights (%s): what is verified stays exact, but "
            "fewer drafts may be accepted; `stridelm acceptance` measures how many",
            folder, trained_on[0], trained_on[1][:12], base[0], base[1][:12],
        )  # fmt: skip


def own_draft(model: str) -> Path | None:
    """The folder of the draft model that comes with a model; None if there is none."""
    return builtin.builtin_draft() if model == builtin.NAME else None


def own_heads(model: str) -> Path | None:
    """The same for prediction heads."""
    return builtin.builtin_heads() if model == builtin.NAME else None


def heads_k(folder: Path) -> int:
    """The number of tokens that the heads in a folder propose, the model's own included."""
    return json.loads((folder / "heads.json").read_text(encoding="utf-8"))["heads"] + 1


def may_have_masks(model: str, adapter: str | Path | None) -> bool:
    """Whether a model may have masks, as far as can be told before it is loaded."""
    if adapter_folder(model, adapter) is not None:
        return True
    folder = Path(model)
    if model != builtin.NAME and model and folder.is_dir():
        return _names_mask_token(folder)
    return model != builtin.NAME and folder.suffix != ".gguf"  # from the hub, or missing: known after loading


def may_have_heads(model: str, heads: str | Path | None) -> bool:
    """Whether the decoder `heads` will find any."""
    return heads is not None or own_heads(model) is not None


def _names_mask_token(folder: Path) -> bool:
    """Whether a folder's config.json has an entry for a mask token; also True if the file cannot be read here."""
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8")).get(MASK_KEY) is not None
    except (OSError, ValueError, AttributeError):
        return True
