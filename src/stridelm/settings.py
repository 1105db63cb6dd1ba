"""Settings that a user chooses, each defined once: the command line and the docs derive from these."""

from dataclasses import dataclass

from stridelm.types import InputError

DTYPES = ("float32", "bfloat16", "float16")


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
        if not 16 <= self.cache_tokens <= 2**31:
            raise InputError(f"cache_tokens must be at least 16, not {self.cache_tokens}")


AUTO = "auto"
DECODERS = {
    AUTO: "the best exact decoder for what is loaded: draft with a draft model, else ngram",
    "autoregressive": "one token per forward",
    "ngram": "proposes what followed the same words before, verified",
    "draft": "a second model proposes k tokens, verified",
}
"""What each decoder does, for --help; stridelm.decode.table makes them."""
DEFAULT_K = {"ngram": 8, "draft": 4}
LARGEST_K = 64
