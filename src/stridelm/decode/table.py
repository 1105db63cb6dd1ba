"""The decoders by name. A new one is a file of its own and a line here."""

from collections.abc import Callable
from dataclasses import dataclass

from stridelm.contracts import Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.self_draft import SelfDraft
from stridelm.decode.speculative import Speculative
from stridelm.draft.draft_model import ModelDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.model.forward import TorchForward
from stridelm.model.gated import Gate
from stridelm.model.load import Checkpoint
from stridelm.settings import AUTO, PLAIN, DecodeSettings


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is there to decode with."""

    target: Checkpoint
    gate: Gate | None
    """What lets the target's steps hold masks."""
    draft: Checkpoint | None
    draft_forward: TorchForward | None
    """Shared by all who draft with the draft model."""


def _draft(settings: DecodeSettings, loaded: Loaded) -> Policy:
    draft, forward = loaded.draft, loaded.draft_forward
    assert draft is not None and forward is not None, "DecodeSettings.check lets this pass only with a draft model"
    return Speculative(
        ModelDrafter(settings.k or 4, forward, draft.context_length, draft.vocabulary, loaded.target.vocabulary)
    )


def _self(settings: DecodeSettings, loaded: Loaded) -> Policy:
    assert loaded.gate is not None, "DecodeSettings.check lets this pass only with masks"
    return SelfDraft(settings.k or min(4, loaded.gate.k), loaded.gate)


def _auto(settings: DecodeSettings, loaded: Loaded) -> Policy:
    if loaded.draft is not None:
        return _draft(settings, loaded)
    return _ngram(settings) if loaded.gate is None else _self(settings, loaded)


def _ngram(settings: DecodeSettings) -> Policy:
    return Speculative(NgramDrafter(settings.k or 8))


_MAKERS: dict[str, Callable[[DecodeSettings, Loaded], Policy]] = {
    AUTO: _auto,
    PLAIN: lambda settings, loaded: Autoregressive(),
    "ngram": lambda settings, loaded: _ngram(settings),
    "draft": _draft,
    "self": _self,
}


def make_policy(settings: DecodeSettings, loaded: Loaded) -> Policy:
    """A policy for settings that `check` let pass."""
    return _MAKERS[settings.decoder](settings, loaded)
