"""The adapter on disk: a named, versioned format of safetensors shards and a JSON file (docs/adapter-format.md).

A gated adapter is applied to mask rows only, so it must not be merged like a LoRA: it has its own tensor names and
format, so that no LoRA loader accepts it. An adapter without a gate has another format, and is merged when loaded.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stridelm.models.parts import Kind, Read, Shapes, check_tensors, load_part, save_part
from stridelm.models.parts import check_base as check_base_of
from stridelm.params import InputError
from stridelm.stepper import mask_priors

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from stridelm.models.prediction_heads import PredictionHeads
    from stridelm.models.sequential_head import SequentialHead

CONFIG = "adapter.json"
GATED = Kind("adapter", CONFIG, "stridelm-gated-adapter")
WITH_TAIL = Kind("adapter", CONFIG, "stridelm-gated-adapter", 2)
"""With tail heads, which earlier releases do not know."""
UNGATED = Kind("adapter", CONFIG, "stridelm-ungated-adapter")
"""All rows pass through it, so it changes the model: decoding runs the base with this adapter merged into it."""
MASK_EMBEDDING = "mask_embedding"
SEQUENTIAL = "sequential_head."
TAIL = "tail_heads."


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The content of `adapter.json`, apart from the format's name and version."""

    base: str
    """The base model's name when the adapter was trained."""
    fingerprint: str
    """Of the base model's weights: `stridelm.models.fingerprint.fingerprint`."""
    width: int
    """The base model's hidden size."""
    rank: int
    masks: int
    """The longest chain of masks that was trained: k - 1."""
    mask_token: str
    mask_token_id: int
    extends_vocabulary: bool
    """Whether the mask token's id is beyond the base model's vocabulary, because no id in it was unused."""
    targets: tuple[str, ...]
    """The linear layers that have a low-rank part, by their names in the base model."""
    unadapted: tuple[str, ...]
    """Layers with weights, but without a low-rank part: the experts of a mixture."""
    sequential_size: int
    """The sequential head's state size; 0 if there is no such head."""
    tail_heads: int = 0
    """Number of prediction heads on the last mask of a chain, for the places behind it."""
    tail_size: int = 0
    """Their inner width."""
    draft_prior: dict[str, dict[str, Any]] | None = None
    """How likely its drafts are accepted: the JSON of `stepper.MaskPriors`; None if that was not measured."""

    def __post_init__(self) -> None:
        for name in ("width", "rank", "masks", "sequential_size", "tail_heads", "tail_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} must be a whole number, not {value!r}")
        if self.draft_prior is not None:
            mask_priors(self.draft_prior)

    @property
    def k(self) -> int:
        return self.masks + 1


@dataclass(frozen=True, slots=True)
class Adapter:
    """Settings and tensors, as they are on disk.

    `mask_embedding`: masks x width, one row per depth. `<target>.down`: rank x in. `<target>.up`: out x rank.
    `sequential_head.*`: the state of a SequentialHead. `tail_heads.*`: that of PredictionHeads.
    """

    config: AdapterConfig
    tensors: dict[str, Any]
    """Torch's, or numpy arrays, as they were read."""
    is_gated: bool = True

    @property
    def mask_embedding(self) -> Any:
        return self.tensors[MASK_EMBEDDING]

    def low_rank(self, target: str) -> tuple[Any, Any]:
        """The two factors of a target: down (rank x in) and up (out x rank)."""
        return self.tensors[f"{target}.down"], self.tensors[f"{target}.up"]

    def sequential_head(self) -> "SequentialHead | None":
        """The head in float32, on the CPU, without gradients; None if the adapter has none."""
        from stridelm.models.sequential_head import SequentialHead

        if not self.config.sequential_size:
            return None
        head = SequentialHead(self.config.width, self.config.sequential_size)
        head.load_state_dict(self._below(SEQUENTIAL))
        return head.requires_grad_(False)

    def tail_heads(self) -> "PredictionHeads | None":
        """The heads on the last mask, likewise."""
        from stridelm.models.prediction_heads import PredictionHeads

        if not self.config.tail_heads:
            return None
        heads = PredictionHeads(self.config.width, self.config.tail_heads, self.config.tail_size)
        heads.load_state_dict(self._below(TAIL))
        return heads.requires_grad_(False)

    def _below(self, prefix: str) -> "dict[str, torch.Tensor]":
        return {
            name.removeprefix(prefix): tensor.float()
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


def sequential_tensors(head: "SequentialHead") -> "dict[str, torch.Tensor]":
    return {f"{SEQUENTIAL}{name}": tensor for name, tensor in head.state_dict().items()}


def tail_tensors(heads: "PredictionHeads") -> "dict[str, torch.Tensor]":
    return {f"{TAIL}{name}": tensor for name, tensor in heads.state_dict().items()}


def save_adapter(folder: Path, adapter: Adapter) -> None:
    kind = UNGATED if not adapter.is_gated else WITH_TAIL if adapter.config.tail_heads else GATED
    save_part(folder, kind, adapter.config, adapter.tensors)


_HINTS = {
    "adapter_config.json": "adapter_config.json is a PEFT adapter's: plain LoRA does not draft",
    "heads.json": "it holds heads: give it as --heads",
    "draft.json": "it holds a draft model: give it as --draft-model",
    "config.json": "it holds a whole model: give it as --model",
}


def load_adapter(folder: Path, read: Read | None = None) -> Adapter:
    """`read`: without one, torch's tensors are read."""
    if not (folder / CONFIG).is_file():
        found = next((hint for file, hint in _HINTS.items() if (folder / file).is_file()), None)
        hint = f" ({found})" if found else ""
        raise InputError(f"{folder}: no {CONFIG} there, so it is not a StrideLM adapter{hint}")
    if read is None:
        from stridelm.models.store import read_weights as read
    kind, config, tensors = load_part(folder, (GATED, WITH_TAIL, UNGATED), AdapterConfig, read)
    expected: dict[str, tuple[int | None, ...]] = {MASK_EMBEDDING: (config.masks, config.width)}
    for target in config.targets:
        expected |= {f"{target}.down": (config.rank, None), f"{target}.up": (None, config.rank)}
    expected |= _head_shapes(config)
    check_tensors(folder, kind, tensors, expected)
    return Adapter(config, tensors, is_gated=kind is not UNGATED)


def _head_shapes(config: AdapterConfig) -> Shapes:
    """The tensors of a SequentialHead and of PredictionHeads, if it has them."""
    width, size, tail, tail_size = config.width, config.sequential_size, config.tail_heads, config.tail_size
    sequential = {
        "read.weight": (2 * size, 2 * width),
        "read.bias": (2 * size,),
        "carry.weight": (2 * size, size),
        "write.weight": (width, size),
    }
    heads = {"up_HSC": (tail, tail_size, width), "down_HCS": (tail, width, tail_size)}
    shapes = {f"{SEQUENTIAL}{name}": shape for name, shape in sequential.items() if size}
    return shapes | {f"{TAIL}{name}": shape for name, shape in heads.items() if tail}


def check_takes_masks(config: "PreTrainedConfig") -> None:
    """Refuse models that need a token for every row: a mask is an embedding, not a token."""
    if getattr(config.get_text_config(), "hidden_size_per_layer_input", None):
        raise InputError(
            f"{config.model_type} models with inputs per layer (hidden_size_per_layer_input) look tokens up in every "
            "layer, where masks have nothing: adapters and training are not supported for them"
        )


def check_base(folder: Path, adapter: Adapter, name: str, fingerprint: str) -> None:
    """Refuse an adapter that was trained on other weights, where it must not be: it is merged, or handed over."""
    remedy = f"use the adapter of this model, or train one with `stridelm train --model {name}`"
    check_base_of(folder, GATED, (adapter.config.base, adapter.config.fingerprint), (name, fingerprint), remedy)
