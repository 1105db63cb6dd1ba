"""A Llama-family network's weights as the kernels read them: linear layers of the same input are one matrix.

The network keeps its layers, whose weights become views of the stacked ones: nothing is stored twice.

Shape letters: C model width, H query heads, G key-value heads, D head size, I inner units, R rank, V vocabulary,
P positions, K masks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from stridelm.backends.common.gpu_families import FAMILIES
from stridelm.backends.common.scorer import cap_of
from stridelm.models.adapter import Adapter
from stridelm.models.sequential_head import SequentialHead
from stridelm.models.support import layer_window

DTYPES = (torch.bfloat16, torch.float32)
"""float16 is left out: the residual before a norm can exceed its range."""
_MERGE_BYTES = 2 << 30
"""Up to this model size in bytes, reading a second copy of the weights costs less than computing low-rank parts."""
_MAX_FLOAT32_HEAD = 64
"""Maximum head size in float32 for which a tile of keys fits in shared memory."""
SPARE_POSITIONS = 128
"""Rotary positions computed beyond the longest text, for drafts and masks."""
_TARGETS = {
    "heads": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "units": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix that joins linear layers, and what an adapter adds to them: either a second matrix for mask rows, into
    which the low-rank parts are merged, or these parts."""

    weight_KNC: torch.Tensor
    """The base's own matrix; then the one for mask rows, if there is one."""
    bias_N: torch.Tensor | None
    down_RC: torch.Tensor | None
    """The first factors of the low-rank parts, stacked."""
    up_NR: torch.Tensor | None
    """The second factors."""


@dataclass(frozen=True, slots=True)
class Layer:
    heads: Product
    output: Product
    units: Product
    down: Product
    norm_before_attention_C: torch.Tensor
    norm_before_units_C: torch.Tensor
    head_norms_2D: torch.Tensor | None
    """The norms of queries and of keys (Qwen 3)."""
    window: int
    """The sliding window; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class SequentialWeights:
    """The sequential head's weights, split by what each part reads."""

    size: int
    output_weight_SC: torch.Tensor
    """From a mask's output to both halves of the state's input."""
    before_weight_SC: torch.Tensor
    """From the previous token's embedding to the same."""
    bias_S: torch.Tensor
    carry_weight_SS: torch.Tensor
    write_weight_SC: torch.Tensor
    """Transposed: it is multiplied by rows of the output head."""

    @classmethod
    def of(cls, head: SequentialHead, dtype: torch.dtype, device: torch.device) -> "SequentialWeights":
        width = head.write.out_features
        return cls(
            head.size,
            *(
                part.to(device, dtype).contiguous()
                for part in (
                    head.read.weight[:, :width],
                    head.read.weight[:, width:],
                    head.read.bias,
                    head.carry.weight,
                    head.write.weight.T,
                )
            ),
        )


@dataclass(frozen=True, slots=True)
class Weights:
    layers: tuple[Layer, ...]
    embedding_VC: torch.Tensor
    mask_embedding_KC: torch.Tensor
    norm_C: torch.Tensor
    head_VC: torch.Tensor
    head_bias_V: torch.Tensor | None
    cosine_PD: torch.Tensor
    """Half a head wide, in float32."""
    sine_PD: torch.Tensor
    query_heads: int
    key_heads: int
    head_size: int
    inner: int
    rank: int
    """Rank of the low-rank parts as stored: a power of two, padded with zeros. 16 if there are none."""
    epsilon: float
    scaling: float
    sequential: SequentialWeights | None

    @property
    def is_merged(self) -> bool:
        """Whether mask rows have matrices of their own."""
        return len(self.layers[0].heads.weight_KNC) > 1

    @property
    def width(self) -> int:
        return self.embedding_VC.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding_VC.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding_VC.device


def is_supported(network: PreTrainedModel, adapter: Adapter | None) -> bool:
    """Whether the kernels compute this network, with this adapter."""
    layers = getattr(network.base_model, "layers", ())
    names = {name for names in _TARGETS.values() for name in names}
    targets = () if adapter is None else adapter.config.targets
    return (
        len(layers) > 0
        and all(type(layer).__name__ in FAMILIES.values() and _is_plain(layer) for layer in layers)
        and network.dtype in DTYPES
        and (network.dtype != torch.float32 or layers[0].self_attn.head_dim <= _MAX_FLOAT32_HEAD)
        and cap_of(network) is None
        and all(target.startswith("model.layers.") and target.split(".", 3)[3] in names for target in targets)
    )


def _is_plain(layer: Any) -> bool:
    mlp = (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    return layer.mlp.config.hidden_act == "silu" and all(linear.bias is None for linear in mlp)


@torch.no_grad()  # inference tensors could not be trained through, and the network's weights become views of these
def stack(network: PreTrainedModel, adapter: Adapter | None = None, *, merges: bool | None = None) -> Weights:
    """Stack the weights of a network that `is_supported`; its own layers become views of the result. `merges`: whether
    mask rows get matrices of their own; by default if the model is small."""
    whole: Any = network
    decoder, config = whole.base_model, network.config.get_text_config()
    attention = decoder.layers[0].self_attn
    rank = 16 if adapter is None else max(16, 1 << (adapter.config.rank - 1).bit_length())
    if merges is None:
        merges = sum(weight.nbytes for weight in network.parameters()) <= _MERGE_BYTES
    # Drafts and masks may be beyond the last position that a text may have.
    positions = torch.arange(int(config.max_position_embeddings) + SPARE_POSITIONS, device=network.device)[None]
    cosine_1PD, sine_1PD = decoder.rotary_emb(torch.zeros(1, device=network.device), position_ids=positions)
    half = attention.head_dim // 2
    sequential = None if adapter is None else adapter.sequential_head()
    embedding = whole.get_input_embeddings().weight
    head = whole.get_output_embeddings()
    masks = embedding.new_zeros(1, embedding.shape[1]) if adapter is None else adapter.mask_embedding
    return Weights(
        layers=tuple(_layer(network, index, adapter, rank, merges) for index in range(len(decoder.layers))),
        embedding_VC=embedding.detach(),
        mask_embedding_KC=masks.to(network.device, network.dtype).contiguous(),
        norm_C=decoder.norm.weight.detach(),
        head_VC=head.weight.detach(),
        head_bias_V=None if head.bias is None else head.bias.detach(),
        cosine_PD=cosine_1PD[0, :, :half].float().contiguous(),
        sine_PD=sine_1PD[0, :, :half].float().contiguous(),
        query_heads=int(config.num_attention_heads),
        key_heads=int(config.num_key_value_heads),
        head_size=int(attention.head_dim),
        inner=int(config.intermediate_size),
        rank=rank,
        epsilon=float(config.rms_norm_eps),
        scaling=float(attention.scaling),
        sequential=None if sequential is None else SequentialWeights.of(sequential, network.dtype, network.device),
    )


def _layer(network: Any, index: int, adapter: Adapter | None, rank: int, merges: bool) -> Layer:
    layer = network.base_model.layers[index]
    attention = layer.self_attn
    products = {
        name: _product(
            [layer.get_submodule(target) for target in targets],
            [f"model.layers.{index}.{target}" for target in targets],
            adapter,
            rank,
            merges,
        )
        for name, targets in _TARGETS.items()
    }
    norms = [getattr(attention, name).weight.detach() for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    return Layer(
        **products,
        norm_before_attention_C=layer.input_layernorm.weight.detach(),
        norm_before_units_C=layer.post_attention_layernorm.weight.detach(),
        head_norms_2D=torch.stack(norms) if norms else None,
        window=layer_window(attention.config, index) or 0,
    )


def _product(linears: list[nn.Linear], names: list[str], adapter: Adapter | None, rank: int, merges: bool) -> Product:
    outputs = [linear.out_features for linear in linears]
    firsts = [sum(outputs[:number]) for number in range(len(outputs))]
    kinds = 2 if adapter is not None and merges else 1
    weight_KNC = _as_one_matrix(linears) if kinds == 1 else None
    if weight_KNC is None:
        weight_KNC = linears[0].weight.new_empty(kinds, sum(outputs), linears[0].in_features)
        for first, linear in zip(firsts, linears, strict=True):
            weight_KNC[:, first : first + linear.out_features] = linear.weight
            # The parameter stays the same: others may share it.
            linear.weight.data = weight_KNC[0, first : first + linear.out_features]
    bias_N = None
    if any(linear.bias is not None for linear in linears):
        bias_N = torch.cat(
            [weight_KNC.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias for linear in linears]
        )
    if adapter is None:
        return Product(weight_KNC, bias_N, None, None)
    down_RC = None if merges else weight_KNC.new_zeros(rank * len(linears), weight_KNC.shape[2])
    up_NR = None if merges else weight_KNC.new_zeros(weight_KNC.shape[1], rank)
    for number, (first, name) in enumerate(zip(firsts, names, strict=True)):
        if name not in adapter.config.targets:
            continue
        down, up = (factor.to(weight_KNC.device) for factor in adapter.low_rank(name))
        if down_RC is None or up_NR is None:
            own = weight_KNC[1, first : first + len(up)]
            own.copy_(own.float() + up.float() @ down.float())
        else:
            down_RC[number * rank : number * rank + len(down)] = down
            up_NR[first : first + len(up), : up.shape[1]] = up
    return Product(weight_KNC, bias_N, down_RC, up_NR)


def _as_one_matrix(linears: list[nn.Linear]) -> torch.Tensor | None:
    """The weights of layers that are adjacent in memory already, as one matrix; None if they are not. A network may be
    stacked for several engines in turn."""
    weights = [linear.weight for linear in linears]
    place = weights[0].data_ptr()
    for weight in weights:
        is_same = weight.untyped_storage().data_ptr() == weights[0].untyped_storage().data_ptr()
        if not is_same or weight.data_ptr() != place or not weight.is_contiguous():
            return None
        place += weight.nbytes
    size = (1, sum(map(len, weights)), weights[0].shape[1])
    return weights[0].detach().as_strided(size, (size[1] * size[2], size[2], 1))
