"""The decoders by name. A new one is a file of its own and a line here."""

from collections.abc import Callable

from stridelm.contracts import Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.speculative import Speculative
from stridelm.draft.draft_model import ModelDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.model.forward import TorchForward
from stridelm.model.load import Checkpoint

Maker = Callable[[int, Checkpoint, Checkpoint | None, TorchForward | None], Policy]


def _draft(k: int, target: Checkpoint, draft: Checkpoint | None, forward: TorchForward | None) -> Policy:
    assert draft is not None and forward is not None, "choose_decoder lets this pass only with a draft model"
    return Speculative(ModelDrafter(k, forward, draft.context_length, draft.vocabulary, target.vocabulary))


_MAKERS: dict[str, Maker] = {
    "autoregressive": lambda k, target, draft, forward: Autoregressive(),
    "ngram": lambda k, target, draft, forward: Speculative(NgramDrafter(k)),
    "draft": _draft,
}


def make_policy(
    name: str, k: int, target: Checkpoint, draft: Checkpoint | None, draft_forward: TorchForward | None
) -> Policy:
    """`name` and `k` as `choose_decoder` gave them. The draft model's forward is shared by all who draft with it."""
    return _MAKERS[name](k, target, draft, draft_forward)
