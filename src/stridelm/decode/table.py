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


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is there to decode with."""

    target: Checkpoint
    gate: Gate | None
    """The target's adapter."""
    draft: Checkpoint | None
    draft_forward: TorchForward | None
    """Shared by all who draft with the draft model."""


def _draft(k: int, loaded: Loaded) -> Policy:
    draft, forward = loaded.draft, loaded.draft_forward
    assert draft is not None and forward is not None, "choose_decoder lets this pass only with a draft model"
    return Speculative(ModelDrafter(k, forward, draft.context_length, draft.vocabulary, loaded.target.vocabulary))


def _self(k: int, loaded: Loaded) -> Policy:
    assert loaded.gate is not None, "choose_decoder lets this pass only with an adapter"
    return SelfDraft(k, loaded.gate)


_MAKERS: dict[str, Callable[[int, Loaded], Policy]] = {
    "autoregressive": lambda k, loaded: Autoregressive(),
    "ngram": lambda k, loaded: Speculative(NgramDrafter(k)),
    "draft": _draft,
    "self": _self,
}


def make_policy(name: str, k: int, loaded: Loaded) -> Policy:
    """`name` and `k` as `choose_decoder` gave them."""
    return _MAKERS[name](k, loaded)
