"""Settings that a user chooses, each defined once: the command line and the docs derive from these."""

from dataclasses import dataclass, field, fields

from stridelm.params import InputError

DEFAULT_MODEL = "smollm2"
"""The built-in one."""
AUTO_DTYPE = "auto"
DTYPES = (AUTO_DTYPE, "float32", "bfloat16", "float16")
BACKENDS = ("auto", "native", "torch")
QUANTIZE = ("q8", "q4")
ACTIVATIONS = ("int16", "int8")
LARGEST_CACHE = 2**24


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Where and how a model runs."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    dtype: str = AUTO_DTYPE
    """float32, bfloat16 or float16; auto takes bfloat16 if several tokens per pass are exact in it, too (Llama,
    Mistral, Qwen2 and Qwen3 on a GPU), and float32 otherwise."""
    threads: int = 0
    """CPU threads; 0 takes one per core."""
    cache_tokens: int = 16384
    """Size of the KV cache in tokens, shared by all answers in flight."""
    backend: str = "auto"
    """native: kernels for 4-bit and 8-bit weights on a CPU with AVX2; torch: everything else; auto takes native if it
    supports the model, as it does for the built-in one and GGUF files of kind Q4_0, Q4_1 and Q8_0."""
    quantize: str | None = None
    """Quantise a Llama-family model's weights at load, for the native backend: q8 or q4. Its answers then differ from
    those in float32; how much is measured and stated."""
    activations: str = "int16"
    """Activations of the native backend: int16, or int8 (faster with 4-bit weights, further from float32)."""

    def __post_init__(self) -> None:
        for name, known in (("backend", BACKENDS), ("quantize", (None, *QUANTIZE)), ("activations", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"there is no {name} {getattr(self, name)!r}: {', '.join(filter(None, known))} are known"
                )
        if self.quantize and self.backend == "torch":
            raise InputError("quantize is for the native backend: leave out --backend torch")
        if self.dtype not in DTYPES:
            raise InputError(f"there is no dtype {self.dtype!r}: {', '.join(DTYPES)} are known")
        if not 0 <= self.threads <= 4096:
            raise InputError(f"threads must be between 0 (one per core) and 4096, not {self.threads}")
        if not 16 <= self.cache_tokens <= LARGEST_CACHE:
            raise InputError(f"cache_tokens must be between 16 and {LARGEST_CACHE}, not {self.cache_tokens}")


AUTO = "auto"
PLAIN = "autoregressive"
DECODERS = {
    AUTO: "a planner weighs the available drafters (masks, heads, draft model, n-grams) against the cost of a wider "
    "pass on this machine, and takes one token per forward if nothing pays",
    PLAIN: "one token per forward",
    "self": "the model itself, with its adapter, proposes while it verifies what it proposed before",
    "heads": "prediction heads on the model's last hidden state propose, verified",
    "draft": "a second model proposes, verified",
    "ngram": "proposes what followed the same words before, verified",
    "ensemble": "all of these proposals in one tree, verified",
    "adaptive": "ConfAdapt: takes the masks' tokens as long as they are confident; not verified, so not exact",
    "static": "takes the tokens of k - 1 masks, k tokens per pass; not verified, so not exact",
}
"""What each decoder does, for --help; stridelm.decode.table makes them."""
TAKES = {
    AUTO: ("k", "nodes", "tolerance"),
    PLAIN: (),
    "self": ("k", "nodes", "tolerance"),
    "heads": ("k", "nodes", "tolerance"),
    "draft": ("k", "tolerance"),
    "ngram": ("k", "tolerance"),
    "ensemble": ("k", "nodes", "tolerance"),
    "adaptive": ("k_max", "threshold"),
    "static": ("k",),
}
"""The settings that each decoder takes; others are refused."""
_NEEDS_MASKS = ("self", "adaptive", "static")
LARGEST_K = 64
LARGEST_TREE = 256
NO_ADAPTER = "none"
"""In place of an adapter: use none, not even the built-in model's own."""


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How several tokens per forward are found. Verified decoders change the text only with a tolerance."""

    decoder: str = field(
        default=AUTO, metadata={"help": "; ".join(f"{name}: {what}" for name, what in DECODERS.items())}
    )
    """One of DECODERS."""
    k: int | None = None
    """Maximum number of tokens that a drafter proposes in a row (self, heads: k - 1 masks or heads); static: tokens per
    pass."""
    k_max: int | None = None
    """adaptive: maximum number of tokens per pass (16)."""
    threshold: float | None = None
    """adaptive: the confidence that every token of a run must have, 0 to 1 (0.9)."""
    tolerance: float = 0.0
    """Accept a proposed token that is at least (1 - tolerance) times as likely as the best; 0 is exact."""
    nodes: int | None = None
    """auto, self, heads, ensemble: maximum number of proposed tokens, over all branches, that a pass verifies."""

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise InputError(f"there is no decoder {self.decoder!r}: {', '.join(DECODERS)} are known")
        given = [
            each.name
            for each in fields(self)
            if each.name != "decoder" and getattr(self, each.name) != each.default and each.name not in self._takes
        ]
        if given:
            name = given[0].replace("_", "-")
            takes = ", ".join(f"--{each.replace('_', '-')}" for each in self._takes) or "no settings of its own"
            raise InputError(f"the decoder {self.decoder} has no --{name}: leave it out; it takes {takes}")
        for name, most in (("k", LARGEST_K), ("k_max", LARGEST_K), ("nodes", LARGEST_TREE)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and 1 <= value <= most):
                raise InputError(f"{name} must be a whole number between 1 and {most}, not {value!r}")
        if self.threshold is not None and not (_is_number(self.threshold) and 0 <= self.threshold <= 1):
            raise InputError(f"threshold must be between 0 (take all) and 1, not {self.threshold!r}")
        if not (_is_number(self.tolerance) and 0 <= self.tolerance < 1):
            raise InputError(f"tolerance must be at least 0 (exact) and below 1, not {self.tolerance!r}")

    @property
    def _takes(self) -> tuple[str, ...]:
        return TAKES[self.decoder]

    def check(self, *, has_draft: bool, mask_k: int, heads_k: int = 0) -> None:
        """Refuse what the loaded model cannot do. `mask_k`: the k that its masks were trained for; 0 without masks.
        `heads_k`: the same of its prediction heads."""
        if self.decoder == "draft" and not has_draft:
            raise InputError(
                "the decoder draft needs a draft model: give one with --draft-model (load(draft_model=...)), or make "
                "one with `stridelm train --mode draft`"
            )
        if self.decoder in _NEEDS_MASKS and not mask_k:
            raise InputError(
                f"the decoder {self.decoder} needs masks: give the model's adapter with --adapter (load(adapter=...)), "
                "make one with `stridelm train`, or load a converted model whose config.json names a mask_token_id"
            )
        if self.decoder in _NEEDS_MASKS and self.k is not None and self.k > mask_k:
            raise InputError(f"k must be at most {mask_k}, which the adapter was trained for, not {self.k}")
        if self.decoder == "heads" and not heads_k:
            raise InputError(
                "the decoder heads needs prediction heads: give their folder with --heads (load(heads=...)), or make "
                "some with `stridelm train --mode heads`"
            )
        if self.decoder == "heads" and self.k is not None and self.k > heads_k:
            raise InputError(f"k must be at most {heads_k}, one more than there are heads, not {self.k}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
