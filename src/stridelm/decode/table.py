"""The decoders by name. A new one is a file of its own and a line here."""

from collections.abc import Callable

from stridelm.contracts import Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.speculative import Speculative
from stridelm.draft.draft_model import ModelDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.model.forward import TorchForward
from stridelm.model.kv_cache import KVCache
from stridelm.model.load import Checkpoint
from stridelm.settings import DEFAULT_K

Maker = Callable[[int, Checkpoint, Checkpoint | None, int], Policy]


def _draft(k: int, target: Checkpoint, draft: Checkpoint | None, cache_tokens: int) -> Policy:
    assert draft is not None, "choose_decoder lets this pass only with a draft model"
    # A draft is never longer than the answer may be: what the target's cache has room for, this one has.
    forward = TorchForward(draft.network, KVCache(cache_tokens))
    return Speculative(ModelDrafter(k, forward, draft.context_length, target.vocabulary))


_MAKERS: dict[str, Maker] = {
    "autoregressive": lambda k, target, draft, cache_tokens: Autoregressive(),
    "ngram": lambda k, target, draft, cache_tokens: Speculative(NgramDrafter(k)),
    "draft": _draft,
}


def make_policy(name: str, k: int | None, target: Checkpoint, draft: Checkpoint | None, cache_tokens: int) -> Policy:
    """`name` and `k` as `choose_decoder` checked them; `k` None takes the decoder's default."""
    return _MAKERS[name](k or DEFAULT_K.get(name, 0), target, draft, cache_tokens)
