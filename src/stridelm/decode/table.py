"""The decoders by name. A new one is a file of its own and a line here."""

from collections.abc import Callable

from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.speculative import Speculative
from stridelm.draft.draft_model import ModelDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.model.forward import TorchForward
from stridelm.model.kv_cache import KVCache
from stridelm.model.load import Checkpoint
from stridelm.settings import AUTO, DEFAULT_K, LARGEST_K
from stridelm.types import InputError, Policy

Maker = Callable[[int, Checkpoint, Checkpoint | None, int], Policy]


def _draft(k: int, target: Checkpoint, draft: Checkpoint | None, cache_tokens: int) -> Policy:
    if draft is None:
        raise InputError("the decoder draft needs a draft model: give one with --draft-model (load(draft_model=...))")
    # A draft is never longer than the answer may be: what the target's cache has room for, this one has.
    forward = TorchForward(draft.network, KVCache(cache_tokens))
    return Speculative(ModelDrafter(k, forward, draft.context_length, target.vocabulary))


_MAKERS: dict[str, Maker] = {
    "autoregressive": lambda k, target, draft, cache_tokens: Autoregressive(),
    "ngram": lambda k, target, draft, cache_tokens: Speculative(NgramDrafter(k)),
    "draft": _draft,
}


def resolve(name: str, draft: Checkpoint | None) -> str:
    """The decoder that a name stands for."""
    if name == AUTO:
        return "draft" if draft is not None else "ngram"
    if name not in _MAKERS:
        raise InputError(f"there is no decoder {name!r}: {', '.join((AUTO, *_MAKERS))} are known")
    return name


def make_policy(name: str, k: int | None, target: Checkpoint, draft: Checkpoint | None, cache_tokens: int) -> Policy:
    """`name` as `resolve` gave it; `k` None takes the decoder's default."""
    if k is not None and name not in DEFAULT_K:
        raise InputError(
            f"the decoder {name} proposes nothing, so it takes no k: leave --k away, or choose another decoder"
        )
    if k is not None and not 1 <= k <= LARGEST_K:
        raise InputError(f"k must be between 1 and {LARGEST_K}, not {k}")
    return _MAKERS[name](k or DEFAULT_K.get(name, 0), target, draft, cache_tokens)
