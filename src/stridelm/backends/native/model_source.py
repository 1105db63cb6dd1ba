"""What a packed model is made from: a GGUF file whose blocks are kept as they are, or any weights, quantised here; and
which models the kernels support."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stridelm.backends.native.packed_file import file_identity
from stridelm.backends.native.rotary import KNOWN
from stridelm.light import is_light, needs_torch
from stridelm.models import builtin
from stridelm.models.find import check_name, from_hub
from stridelm.models.support import layer_window
from stridelm.params import InputError
from stridelm.settings import LoadSettings

FLOATS = {"F32", "F16", "BF16"}
"""Kinds of GGUF tensors that are not quantised."""
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_MAX_QUERIES = 16
"""Maximum number of query heads per key head."""


class DoesNotFit(InputError):
    """The native backend cannot run this. The message says why and continues "the native backend ..."."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model to be packed."""

    name: str
    path: Path
    """A GGUF file or a Hugging Face folder."""
    quantize: str | None
    """q8 or q4; None to keep the file's own blocks."""
    keeps_floats: bool = False
    """Whether a file with matrices that are not quantised at all is left to torch, which runs them as they are."""

    @property
    def identity(self) -> tuple[object, ...]:
        """All that the packed content depends on. Files are identified by size and time: reading them would take too
        long."""
        if self.name == builtin.NAME:
            return builtin.NAME, builtin.WHEEL_SHA256, self.quantize
        files = [self.path] if self.path.is_file() else sorted(self.path.glob("*"))
        return str(self.path.resolve()), self.quantize, *(file_identity(file) for file in files)

    def check_requantised(self, kinds: Iterable[str]) -> None:
        """Raise DoesNotFit if what would be quantised again, or was when this was packed, is better left to torch."""
        floats = sorted(FLOATS & set(kinds))
        if self.keeps_floats and floats:
            raise DoesNotFit(f"would quantise {floats[0]} to 8 bits: give --backend native, or --quantize q8")


def find_source(name: str, settings: LoadSettings) -> Source:
    """Where a model's weights are. Raises DoesNotFit if they would have to be quantised and that was not asked for."""
    path = Path(name)
    if name == builtin.NAME:
        return Source(name, builtin.ensure_builtin_file(), settings.quantize)
    if path.suffix == ".gguf" and path.is_file():
        return Source(name, path, settings.quantize, keeps_floats=settings.backend == "auto" and not is_light())
    check_name(name)
    if is_light():
        raise needs_torch(name)
    if settings.quantize is None:
        raise DoesNotFit("takes 4-bit and 8-bit weights: give --quantize q8 (or q4), which changes what the model says")
    if name and path.is_dir():
        return Source(name, path, settings.quantize)
    return Source(name, from_hub(name), settings.quantize)


def head_size(config: Any) -> int:
    """The size of an attention head; some configs (Qwen2's) do not state it."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def check_fits(config: Any) -> None:
    """Raise DoesNotFit for what the kernels do not support. `config` is transformers'."""
    if config.model_type not in FAMILIES:  # first: other families may name their settings differently
        raise DoesNotFit(f"runs models of the families {', '.join(FAMILIES)}, not {config.model_type}")
    size = head_size(config)
    rotary = config.rope_parameters or {}
    kind = rotary.get("rope_type", "default")
    per_key_head = config.num_attention_heads // config.num_key_value_heads
    windows = {window(config, layer) for layer in range(config.num_hidden_layers)}
    reasons = {
        f"has no {config.hidden_act} activation": config.hidden_act != "silu",
        f"takes heads of a multiple of 16 values, at most 1024, not {size}": size % 16 != 0 or size > 1024,
        f"takes at most {_MAX_QUERIES} query heads per key head, not {per_key_head}": per_key_head > _MAX_QUERIES,
        f"does not do rotary positions of type {kind}": kind not in KNOWN or "rope_theta" not in rotary,
        "does not do biases there": config.model_type != "qwen2" and _has_bias(config),
        "takes one sliding window for all layers": len(windows) > 1,
    }
    wrong = [reason for reason, is_wrong in reasons.items() if is_wrong]
    if wrong:
        raise DoesNotFit(wrong[0])


def _has_bias(config: Any) -> bool:
    return bool(getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False))


def window(config: Any, layer: int) -> int:
    return layer_window(config, layer) or 0
