"""A Llama-shaped decoder layer in fewer, larger operations.

At one row a layer's products take 0.7 ms on two cores, and the sixty small operations around them half as much again.
This layer needs twenty: query, key and value are one product and are rotated together, the norm is a vector norm, and
residuals are added in place. It replaces the layers named below if their weights are stored for a CPU. That it computes
the same is checked when a model is loaded, like everything else (stridelm.backends.torch.trial).

Shape letters: Q rows, C model width, H query heads, G key-value heads, D head size.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stridelm.backends.common.slots import SLOTS
from stridelm.backends.torch.attention import AttentionInput, ScoreRule, StepPass
from stridelm.backends.torch.linear import StoredLinear
from stridelm.models.support import layer_window

_LLAMA_SHAPED = {"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"}


def fuse_layers(network: nn.Module, storage: type[StoredLinear]) -> None:
    """Replace the Llama-shaped layers of a model, one by one, so that only one layer's weights are held twice."""
    for layers in [module for module in network.modules() if isinstance(module, nn.ModuleList)]:
        for index in range(len(layers)):
            if _is_llama_shaped(layers[index]):
                layers[index] = LlamaLayer(layers[index], storage)


def _is_llama_shaped(layer: Any) -> bool:
    return type(layer).__name__ in _LLAMA_SHAPED and layer.mlp.config.hidden_act == "silu"


def has_llama_layers(network: Any) -> bool:
    """Whether all layers of a model were replaced."""
    layers = getattr(network.base_model, "layers", ())
    return len(layers) > 0 and all(isinstance(layer, LlamaLayer) for layer in layers)


def run_llama(
    network: Any,
    ids_1Q: torch.Tensor,
    embedded_1QC: torch.Tensor | None,
    positions_1Q: torch.Tensor,
    wanted_W: torch.Tensor,
    step: StepPass,
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Run embedding, layers, norm and head, without transformers' code around them. Returns the logits of the wanted
    rows, and the inputs of those layers that the step asks for."""
    decoder = network.base_model
    hidden_1QC = decoder.embed_tokens(ids_1Q) if embedded_1QC is None else embedded_1QC
    cosine_1QD, sine_1QD = decoder.rotary_emb(hidden_1QC, position_ids=positions_1Q)
    # Change the sign of the first half, for `x * cos + rolled x * sin`.
    sine_1QD = torch.cat([-sine_1QD[..., : sine_1QD.shape[-1] // 2], sine_1QD[..., sine_1QD.shape[-1] // 2 :]], dim=-1)
    cosine_Q1D, sine_Q1D = cosine_1QD[0].unsqueeze(1), sine_1QD[0].unsqueeze(1)
    hidden_QC = hidden_1QC[0]
    read: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(decoder.layers):
        if index in step.rows.layers:
            read[index] = hidden_QC
        hidden_QC = layer.forward(hidden_QC, cosine_Q1D, sine_Q1D, step)
    if len(decoder.layers) in step.rows.layers:
        read[len(decoder.layers)] = decoder.norm(hidden_QC)
    # Computed separately, so that asking for hidden states does not change the bits of the logits.
    return network.lm_head(decoder.norm(hidden_QC[wanted_W])), read


class LlamaLayer(nn.Module):
    """Attention and a gated SiLU MLP, each after an RMS norm and with a residual connection."""

    def __init__(self, layer: Any, storage: type[StoredLinear]) -> None:
        super().__init__()
        attention = layer.self_attn
        self.layer_index = attention.layer_idx
        self.head_size = attention.head_dim
        self.score_rule = ScoreRule(attention.scaling)
        self.window = layer_window(attention.config, attention.layer_idx)
        self.query_heads = attention.q_proj.out_features // self.head_size
        self.key_heads = attention.k_proj.out_features // self.head_size
        self.query_key_value, self.attention_output, self.gate_up, self.down = (
            storage([layer.get_submodule(name) for name in names]) for names in SLOTS.values()
        )
        self.norm_before_attention = _Norm(layer.input_layernorm)
        self.norm_before_mlp = _Norm(layer.post_attention_layernorm)
        self.places = _places(layer)
        """Name of a linear layer in the replaced layer -> the product that contains it here, and its first and last
        column in it."""

    def forward(
        self,
        hidden_QC: torch.Tensor,
        cosine_Q1D: torch.Tensor,
        sine_Q1D: torch.Tensor,
        step: StepPass,
    ) -> torch.Tensor:
        heads, key_heads = self.query_heads, self.key_heads
        products = self.query_key_value(self.norm_before_attention(hidden_QC))
        products_QXD = products.view(len(hidden_QC), heads + 2 * key_heads, self.head_size)
        plain_QXD = products_QXD[:, : heads + key_heads]
        turned_XQD = torch.addcmul(plain_QXD * cosine_Q1D, plain_QXD.roll(self.head_size // 2, -1), sine_Q1D).transpose(
            0, 1
        )
        value_GQD = products_QXD[:, heads + key_heads :].transpose(0, 1)
        attended_QHD = step.attend(
            AttentionInput(
                self.layer_index, turned_XQD[:heads], turned_XQD[heads:], value_GQD, self.window, self.score_rule
            )
        )
        hidden_QC = hidden_QC + self.attention_output(attended_QHD.reshape(len(hidden_QC), -1))
        gate, up = self.gate_up(self.norm_before_mlp(hidden_QC)).chunk(2, dim=-1)
        return hidden_QC.add_(self.down(functional.silu(gate).mul_(up)))


def _places(layer: Any) -> dict[str, tuple[str, int, int]]:
    places: dict[str, tuple[str, int, int]] = {}
    for slot, names in SLOTS.items():
        first = 0
        for name in names:
            last = first + layer.get_submodule(name).out_features
            places[name] = slot, first, last
            first = last
    return places


class _Norm:
    """x * weight / sqrt(mean(x^2) + eps), as x / sqrt(|x|^2 + n eps) * (weight sqrt(n))."""

    def __init__(self, norm: Any) -> None:
        size = norm.weight.numel()
        self.weight = norm.weight.detach() * math.sqrt(size)
        self.floor = torch.tensor(math.sqrt(size * norm.variance_epsilon))

    def __call__(self, x_QC: torch.Tensor) -> torch.Tensor:
        length_Q1 = torch.linalg.vector_norm(x_QC, dim=-1, keepdim=True)
        return (x_QC / torch.hypot(length_Q1, self.floor)).mul_(self.weight)
