"""Loads draft models: the user gives a whole model or first layers, or the draft model comes with the target."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.draft_layers import is_draft, load_draft
from stridelm.backends.torch.forward import TorchForward
from stridelm.models.preview import MASK_KEY, own_draft
from stridelm.models.target import Draft, Target
from stridelm.params import InputError
from stridelm.settings import LoadSettings


def own_draft_loader(target: Checkpoint, cache_tokens: int) -> Callable[[], Draft] | None:
    """A function that loads the draft model that comes with a target, once, when it is first called."""
    folder = own_draft(target.name)
    if folder is None:
        return None

    @cache
    def load() -> Draft:
        draft = load_draft(folder, target)
        return Draft(draft, TorchForward(draft.network, cache_tokens))

    return load


def load_given_draft(name: str, target: Checkpoint, settings: LoadSettings) -> Checkpoint:
    if is_draft(Path(name)):
        return load_draft(Path(name), target)
    draft = load_checkpoint(name, settings)
    check_same_vocabulary(target, draft)
    return draft


def check_same_vocabulary(target: Target, draft: Checkpoint) -> None:
    """Token ids must mean the same to both. Embeddings may be padded to different sizes."""
    # Mask tokens, which a conversion may have added, are ignored: they do not occur in texts.
    masks = {getattr(each.network.config, MASK_KEY, None) for each in (target, draft) if isinstance(each, Checkpoint)}
    ours, theirs = (
        {token: number for token, number in each.tokenizer.get_vocab().items() if number not in masks}
        for each in (target, draft)
    )
    if ours != theirs:
        apart = len(ours.items() ^ theirs.items())
        raise InputError(
            f"the draft model {draft.name} has another vocabulary than {target.name} ({apart} entries differ): choose "
            "one with the same tokenizer"
        )
