"""Settings that a user chooses, each defined once: the command line and the docs derive from these."""

from dataclasses import dataclass

from stridelm.types import InputError

DEFAULT_MODEL = "smollm2"
"""The built-in one."""
DTYPES = ("float32", "bfloat16", "float16")
LARGEST_CACHE = 2**24


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Where and how a model runs."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    dtype: str = "float32"
    """float32, bfloat16 or float16. Claims of exactness are strongest in float32."""
    threads: int = 0
    """CPU threads; 0 takes one per core."""
    cache_tokens: int = 16384
    """Room of the KV cache, shared by all answers in flight."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"there is no dtype {self.dtype!r}: {', '.join(DTYPES)} are known")
        if not 0 <= self.threads <= 4096:
            raise InputError(f"threads must be between 0 (one per core) and 4096, not {self.threads}")
        if not 16 <= self.cache_tokens <= LARGEST_CACHE:
            raise InputError(f"cache_tokens must be between 16 and {LARGEST_CACHE}, not {self.cache_tokens}")


AUTO = "auto"
PLAIN = "autoregressive"
DECODERS = {
    AUTO: "an exact decoder for what is loaded: draft with a draft model, else self with an adapter, else ngram",
    PLAIN: "one token per forward",
    "ngram": "proposes what followed the same words before, verified",
    "draft": "a second model proposes k tokens, verified",
    "self": "the model itself, with its adapter, proposes k tokens while it verifies those before",
}
"""What each decoder does, for --help; stridelm.decode.table makes them."""
DEFAULT_K = {"ngram": 8, "draft": 4, "self": 4}
LARGEST_K = 64
NO_ADAPTER = "none"
"""In an adapter's place: not even the built-in model's own."""


def choose_decoder(name: str, k: int | None, *, has_draft: bool, adapter_k: int = 0) -> tuple[str, int]:
    """The decoder that a name stands for, and its k (0 where there is none). Needs no model: ask before loading one.

    `adapter_k`: the k that the adapter was trained for; 0 without an adapter.
    """
    if name == AUTO:
        name = "draft" if has_draft else "self" if adapter_k else "ngram"
    if name not in DECODERS:
        raise InputError(f"there is no decoder {name!r}: {', '.join(DECODERS)} are known")
    if name == "draft" and not has_draft:
        raise InputError("the decoder draft needs a draft model: give one with --draft-model (load(draft_model=...))")
    if name == "self" and not adapter_k:
        raise InputError(
            "the decoder self needs an adapter: give one with --adapter (load(adapter=...)), or make one with "
            "`stridelm train`"
        )
    if k is not None and name not in DEFAULT_K:
        raise InputError(f"the decoder {name} proposes nothing, so it takes no k: leave --k out, or choose another one")
    if k is not None and not 1 <= k <= LARGEST_K:
        raise InputError(f"k must be between 1 and {LARGEST_K}, not {k}")
    if name != "self":
        return name, k or DEFAULT_K.get(name, 0)
    if k is not None and k > adapter_k:
        raise InputError(f"k must be at most {adapter_k}, which the adapter was trained for, not {k}")
    return name, k or min(DEFAULT_K[name], adapter_k)
