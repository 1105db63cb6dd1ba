"""Qwen 3's mixtures of experts."""

from stridelm.models.gguf_format.architecture import (
    NAMES,
    Architecture,
    Shapes,
    attention_shapes,
    gated_shapes,
    norm_shapes,
)
from stridelm.models.gguf_format.llama import head_norms
from stridelm.models.gguf_format.metadata import GgufConfig, Metadata
from stridelm.params import InputError

_EXPERT = "mlp.experts.{expert}."


def _layer(config: GgufConfig) -> Shapes:
    width = config.hidden_size
    expert = {
        name.removeprefix("mlp."): shape for name, shape in gated_shapes(width, config.moe_intermediate_size).items()
    }
    return {
        **attention_shapes(config),
        **head_norms(config),
        **norm_shapes(width, "input_layernorm", "post_attention_layernorm"),
        "mlp.gate.weight": (config.num_experts, width),
        **{
            f"{_EXPERT.format(expert=number)}{name}": shape
            for number in range(config.num_experts)
            for name, shape in expert.items()
        },
    }


def _adjust(given: Metadata, config: GgufConfig) -> None:
    experts, used = given.count("expert_count"), given.count("expert_used_count")
    # Checked here, because a model of transformers has a list of all experts.
    for layer in range(config.num_hidden_layers):
        router = given.tensors.get(f"blk.{layer}.ffn_gate_inp.weight")
        if router is not None and int(router.shape[-1]) != experts:
            raise InputError(
                f"{given.path}: says {experts} experts, but {router.name} is for {router.shape[-1]}: fetch the file "
                "again"
            )
        if router is None:
            raise InputError(f"{given.path}: blk.{layer}.ffn_gate_inp.weight is missing: fetch the file again")
    if used > experts:
        raise InputError(f"{given.path}: says {used} of {experts} experts are used: fetch the file again")
    config.num_experts, config.num_experts_per_tok = experts, used
    config.moe_intermediate_size = given.count("expert_feed_forward_length", config.intermediate_size // used)
    config.norm_topk_prob = True  # llama.cpp always does, files do not say


QWEN3MOE = Architecture(
    "qwen3_moe",
    _layer,
    _adjust,
    frozenset({"expert_count"}),
    NAMES | {"ffn_gate_inp": "mlp.gate"},
    expert_tensors={f"ffn_{part}_exps": f"{_EXPERT}{part}_proj" for part in ("gate", "up", "down")},
)
