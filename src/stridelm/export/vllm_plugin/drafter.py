"""The drafter: a gated adapter applied to the target's weights.

vLLM loads it like any draft model. It holds the adapter's tensors and, once it is attached to a target, a copy of the
target that shares its weights (twin.py). A draft pass runs a chain of rows for each request: the token that was just
sampled, then masks. The first row is the target's own and predicts what the target will say next; the masks predict
what follows.

Shape letters: X chains, K rows of a chain, D mask rows of a chain, C model width, N candidates, V vocabulary.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from stridelm.export.vllm_plugin.checks import check_family, check_settings, check_target
from stridelm.export.vllm_plugin.imports import LinearBase
from stridelm.export.vllm_plugin.twin import Chains, GatedProduct, LowRank, twin_of
from stridelm.models.adapter import Adapter, load_adapter
from stridelm.models.sequential_head import choose_along
from stridelm.params import InputError
from stridelm.sampling import DRAFT_CANDIDATES


class GatedDrafter(nn.Module):
    """Implements the part of vLLM's interface of a text model that is used for a draft model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.folder = Path(vllm_config.model_config.model)
        self.adapter = load_adapter(self.folder)
        check_settings(vllm_config, self.adapter.config.k)
        self.chains = Chains()

    def load_weights(self, weights: Any) -> set[str]:
        """Does nothing: `load_adapter`, which also checks the adapter, has read the weights."""
        return set()

    def attach(self, target: Any, device: torch.device, dtype: torch.dtype) -> None:
        served = target.model.vllm_config.model_config
        check_family(type(target).__name__, served.hf_config)
        check_target(self.folder, self.adapter, Path(served.model))
        gated = gated_products(self.adapter, target, self.chains, device, dtype)
        # Held in a list, so that the target's modules are not counted as the drafter's.
        self.shared: list[Any] = [target, twin_of(target.model, gated)]
        self.mask_embedding_DC = self.adapter.mask_embedding.to(device, dtype)
        head = self.adapter.sequential_head()
        self.sequential_head = None if head is None else head.to(device)
        del self.adapter

    @property
    def attention_layers(self) -> set[str]:
        """The names of the target's attention layers, whose caches are read and written."""
        target, _ = self.shared
        return {module.layer_name for module in target.modules() if hasattr(module, "get_kv_cache_spec")}

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        target, _ = self.shared
        return target.embed_input_ids(input_ids)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """One pass over chains: `input_ids` has the first token of each chain, `positions` those of all rows."""
        _, twin = self.shared
        length = len(positions) // len(input_ids)
        embedded_XKC = self.mask_embedding_DC.new_empty(len(input_ids), length, self.mask_embedding_DC.shape[-1])
        embedded_XKC[:, 0] = self.embed_input_ids(input_ids)
        embedded_XKC[:, 1:] = self.mask_embedding_DC[: length - 1]
        self.chains.length = length
        hidden = twin(None, positions, None, inputs_embeds=embedded_XKC.flatten(0, 1))
        return hidden.view(embedded_XKC.shape)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        target, _ = self.shared
        return target.compute_logits(hidden_states)

    def choose(self, hidden_XKC: torch.Tensor) -> torch.Tensor:
        """The likeliest token of every row, given the tokens chosen before it in its chain."""
        chains, length, width = hidden_XKC.shape
        logits_XKV = self.compute_logits(hidden_XKC.reshape(-1, width)).view(chains, length, -1)
        if self.sequential_head is None:
            return logits_XKV.argmax(dim=-1)
        tokens_XKN = logits_XKV.topk(min(DRAFT_CANDIDATES, logits_XKV.shape[-1]), dim=-1).indices
        target, _ = self.shared
        weight_VC = target.lm_head.weight

        def choose(depth: int, output_XC: torch.Tensor) -> torch.Tensor:
            tokens_XN = tokens_XKN[:, depth + 1]
            scores_XN = (weight_VC[tokens_XN].float() @ output_XC.unsqueeze(-1)).squeeze(-1)
            return tokens_XN.gather(-1, scores_XN.argmax(dim=-1, keepdim=True)).squeeze(-1)

        masks_XDC = hidden_XKC[:, 1:].float()
        return choose_along(self.sequential_head, masks_XDC, tokens_XKN[:, 0, 0], self.embed_input_ids, choose)


def gated_products(
    adapter: Adapter, target: Any, chains: Chains, device: torch.device, dtype: torch.dtype
) -> dict[str, nn.Module]:
    """The target's layers that the adapter changes, by their paths below `target.model`. vLLM fuses some layers of a
    checkpoint into one product, and `packed_modules_mapping` says which."""
    packed: dict[str, list[str]] = target.packed_modules_mapping
    holders = {name: (holder, names.index(name)) for holder, names in packed.items() for name in names}
    parts: dict[str, list[LowRank]] = {}
    for name in adapter.config.targets:
        above, _, last = name.rpartition(".")
        holder, place = holders.get(last, (last, 0))
        path = f"{above}.{holder}"
        linear = _linear(target, path)
        sizes: list[int] = list(getattr(linear, "output_sizes", None) or [linear.output_size])
        down_RI, up_OR = (factor.to(device, dtype) for factor in adapter.low_rank(name))
        first = sum(sizes[:place])
        if (down_RI.shape[1], up_OR.shape[0]) != (linear.input_size, sizes[place]):
            raise InputError(
                f"the adapter's {name} takes {down_RI.shape[1]} values to {up_OR.shape[0]}, the model's "
                f"{linear.input_size} to {sizes[place]}: export the model and its conversion anew"
            )
        parts.setdefault(path, []).append(LowRank(first, first + sizes[place], down_RI, up_OR))
    return {
        path.removeprefix("model."): GatedProduct(_linear(target, path), low_ranks, chains)
        for path, low_ranks in parts.items()
    }


def _linear(target: Any, path: str) -> Any:
    try:
        linear = target.get_submodule(path)
    except AttributeError:
        linear = None
    if not isinstance(linear, LinearBase):
        raise InputError(
            f"the adapter changes {path}, but {type(target).__name__} has no such linear layer: export the model and "
            "its conversion anew"
        )
    return linear
