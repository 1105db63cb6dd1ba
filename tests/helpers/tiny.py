"""Tiny random models of several families, with a tokenizer of bytes: real folders, loaded the way a user's are."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4AssistantConfig,
    Gemma4TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.heads import HeadsConfig, TorchHeads
from stridelm.models.adapter import MASK_EMBEDDING, Adapter, AdapterConfig, sequential_tensors, tail_tensors
from stridelm.models.prediction_heads import PredictionHeads
from stridelm.models.sequential_head import SequentialHead
from stridelm.settings import LoadSettings

EOS = "<eos>"
CONTEXT = 512
_CHAT = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    # Wide enough that the two best logits are rarely equal to four digits.
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": 256,
}

_GEMMA4: dict[str, Any] = {
    **_COMMON,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention"],
    "global_head_dim": 16,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
}

FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_COMMON),
    "qwen2": Qwen2Config(**_COMMON),
    "qwen3": Qwen3Config(**_COMMON, tie_word_embeddings=True),
    "mistral": MistralConfig(**_COMMON, sliding_window=12),
    "gemma2": Gemma2Config(**_COMMON, sliding_window=12, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(
        **_COMMON, sliding_window=12, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "gemma4": Gemma4TextConfig(**_GEMMA4),
    "mixtral": MixtralConfig(**_COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "qwen3_moe": Qwen3MoeConfig(**_COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
    "gpt_oss": GptOssConfig(
        **_COMMON,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=12,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
}


def byte_tokenizer(extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """256 bytes, an end-of-text token, and three spare ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    tokenizer.add_tokens(list(extra))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS)
    wrapped.chat_template = _CHAT
    return wrapped


def save_tiny(folder: Path, family: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Write a tiny random model as a Hugging Face folder."""
    config = type(FAMILIES[family])(**FAMILIES[family].to_dict() | changes)
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    network.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def save_assistant(folder: Path, *, seed: int = 0, of: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write a tiny random assistant for the tiny Gemma 4. `of`: changes to its text model."""
    text = {**_GEMMA4, "hidden_size": 16, "num_kv_shared_layers": 2, "final_logit_softcapping": None} | (of or {})
    settings = {"text_config": Gemma4TextConfig(**text), "backbone_hidden_size": _COMMON["hidden_size"]} | changes
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(Gemma4AssistantConfig(**settings), dtype=torch.float32)
    network.save_pretrained(folder)
    return folder


def load_tiny(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder), LoadSettings(device="cpu"))


@cache
def plain_network(folder: str) -> Any:
    """A model as transformers made it, with its own attention: what naive forwards run through."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return network.eval().requires_grad_(False)


def random_adapter(
    checkpoint: Checkpoint,
    *,
    rank: int = 4,
    masks: int = 3,
    sequential_size: int = 8,
    tail_heads: int = 2,
    seed: int = 0,
) -> Adapter:
    """An adapter that knows nothing, but changes what mask rows say a lot."""
    network = AutoModelForCausalLM.from_pretrained(checkpoint.name, dtype=torch.float32)
    linears = {name: module for name, module in network.named_modules() if type(module) is nn.Linear}
    targets = {name: linear for name, linear in linears.items() if ".layers." in name and "experts" not in name}
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        # As the format stores them: what is saved is what is loaded.
        return torch.randn(shape, generator=random).div(shape[-1] ** 0.5).bfloat16().float()

    width = network.config.hidden_size
    tensors = {MASK_EMBEDDING: draw(masks, width)}
    for name, linear in targets.items():
        tensors |= {f"{name}.down": draw(rank, linear.in_features), f"{name}.up": draw(linear.out_features, rank)}
    if sequential_size:
        for name, tensor in sequential_tensors(SequentialHead(width, sequential_size)).items():
            tensors[name] = 4 * draw(*tensor.shape)
    tail_size = 8 if tail_heads else 0
    if tail_heads:
        for name, tensor in tail_tensors(PredictionHeads(width, tail_heads, tail_size)).items():
            tensors[name] = draw(*tensor.shape)
    config = AdapterConfig(
        base=checkpoint.name,
        fingerprint=checkpoint.fingerprint,
        width=width,
        rank=rank,
        masks=masks,
        mask_token="<|mask|>",
        mask_token_id=checkpoint.vocabulary,
        extends_vocabulary=True,
        targets=tuple(targets),
        unadapted=(),
        sequential_size=sequential_size,
        tail_heads=tail_heads,
        tail_size=tail_size,
    )
    return Adapter(config, tensors)


def random_heads(checkpoint: Checkpoint, *, heads: int = 3, size: int = 16, seed: int = 0) -> TorchHeads:
    """Heads that know nothing, but say something else than the model does."""
    module = TorchHeads(checkpoint.network.config.hidden_size, heads, size).requires_grad_(False)
    random = torch.Generator().manual_seed(seed)
    for factor in module.parameters():
        # As the format stores them: what is saved is what is loaded.
        factor.copy_(torch.randn(factor.shape, generator=random).div(factor.shape[-1] ** 0.5).bfloat16().float())
    return module


def heads_config(checkpoint: Checkpoint, module: TorchHeads) -> HeadsConfig:
    heads, size, width = module.up_HSC.shape
    return HeadsConfig(checkpoint.name, checkpoint.fingerprint, width, heads, size)


def trained(student: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in student.parameters() if parameter.requires_grad]
