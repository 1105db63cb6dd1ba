"""Settings that a user chooses, each defined once: command line, server and docs derive from these."""

import ast
import inspect
from dataclasses import Field, dataclass, field, fields
from typing import Any

from stridelm.params import InputError


def field_docs(settings: type) -> dict[str, str]:
    """The string below each field of a dataclass."""
    (definition,) = ast.parse(inspect.getsource(settings)).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docs[statement.target.id] = " ".join(text.split())
    return docs


DEFAULT_MODEL = "smollm2"
"""The built-in one."""
AUTO_DTYPE = "auto"
DTYPES = (AUTO_DTYPE, "float32", "bfloat16", "float16")
BACKENDS = ("auto", "native", "torch")
QUANTIZE = ("q8", "q4")
ACTIVATIONS = ("int8", "int16")
KV_CACHES = ("float16", "int8")
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
    """native: kernels for 4-bit and 8-bit weights on a CPU; torch: everything else; auto takes native if it
    supports the model, as it does for the built-in one and quantised GGUF files."""
    quantize: str | None = None
    """Quantise a Llama-family model's weights at load, for the native backend: q8 or q4. Its answers then differ from
    those in float32; how much is measured and stated."""
    activations: str = ACTIVATIONS[0]
    """The native backend's activations where weights have 4 bits: int8 (as near to float32 as llama.cpp is), or int16
    (much nearer, slower). With 8-bit weights they are int16 in any case."""
    kv_cache: str = KV_CACHES[0]
    """Numbers of the native backend's KV cache: float16, or int8 (half the memory, further from float32)."""

    def __post_init__(self) -> None:
        for name, known in (
            ("backend", BACKENDS),
            ("quantize", (None, *QUANTIZE)),
            ("activations", ACTIVATIONS),
            ("kv_cache", KV_CACHES),
        ):
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


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model is loaded, what is loaded beside it, and where they run."""

    model: str = DEFAULT_MODEL
    """smollm2 (built in), a Hugging Face folder or id, or a .gguf file."""
    adapter: str | None = None
    """A folder that `stridelm train` made; 'none' leaves out the built-in model's own."""
    draft_model: str | None = None
    """The model that the decoder draft asks: a smaller one, a folder that `stridelm train --mode draft` made, or that
    of Gemma 4's assistant; smollm2 has its own."""
    heads: str | None = None
    """A folder that `stridelm train --mode heads` made for the model."""
    settings: LoadSettings = LoadSettings()


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


def _count(largest: int) -> dict[str, Any]:
    """The metadata of a field that counts from 1."""
    return {"bounds": {"ge": 1, "le": largest}, "words": f"a whole number between 1 and {largest}"}


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How several tokens per forward are found. Verified decoders change the text only with a tolerance."""

    decoder: str = field(
        default=AUTO,
        metadata={"help": "; ".join(f"{name}: {what}" for name, what in DECODERS.items()), "choices": list(DECODERS)},
    )
    """The decoder."""
    k: int | None = field(default=None, metadata=_count(LARGEST_K))
    """Maximum number of tokens that a drafter proposes in a row (self, heads: k - 1 masks or heads); static: tokens per
    pass."""
    k_max: int | None = field(default=None, metadata=_count(LARGEST_K))
    """adaptive: maximum number of tokens per pass (16)."""
    threshold: float | None = field(
        default=None, metadata={"bounds": {"ge": 0, "le": 1}, "words": "between 0 (take all) and 1"}
    )
    """adaptive: the confidence that every token of a run must have, 0 to 1 (0.9)."""
    tolerance: float = field(
        default=0.0, metadata={"bounds": {"ge": 0, "lt": 1}, "words": "at least 0 (exact) and below 1"}
    )
    """Accept a proposed token that is at least (1 - tolerance) times as likely as the best; 0 is exact."""
    nodes: int | None = field(default=None, metadata=_count(LARGEST_TREE))
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
        for each in fields(self):
            value = getattr(self, each.name)
            if "bounds" in each.metadata and not _is_within(each, value):
                raise InputError(f"{each.name} must be {each.metadata['words']}, not {value!r}")

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


def _is_within(field: Field[Any], value: Any) -> bool:
    """Whether a value has its field's type and keeps to its bounds; None where that is the default."""
    if value is None:
        return field.default is None
    bounds = field.metadata["bounds"]
    is_number = isinstance(value, int if field.type == int | None else int | float)
    return is_number and bounds["ge"] <= value and (value < bounds["lt"] if "lt" in bounds else value <= bounds["le"])
