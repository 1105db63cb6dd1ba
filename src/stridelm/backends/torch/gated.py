"""Runs the gated adapter: low-rank parts and embeddings that apply to the mask rows of a step, and to no others.

Each linear layer that the adapter names is wrapped. The base model's product runs over all rows as it would without the
adapter; then the low-rank part's result is added to the mask rows. So the output of a real row is, bit for bit, the
same as if the adapter were all zeros. Which rows are masks is held in a context variable during the forward pass, not
on the network, because engines on several threads share a network.

Shape letters: Q rows of a step, M mask rows, W wanted rows, I inputs and O outputs of a layer, R rank, D depths of a
chain, C model width, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from stridelm.backends.common.gate import TensorGate
from stridelm.backends.torch.few_rows import LowRankSum
from stridelm.backends.torch.linear import PanelLinear, Part, StoredLinear, best_storage, replace, store_linears
from stridelm.backends.torch.llama_layer import LlamaLayer
from stridelm.models.adapter import Adapter, check_takes_masks
from stridelm.params import InputError
from stridelm.types import Rows


@dataclass(slots=True)
class GatedPass:
    """A forward pass with mask rows among its rows, for the layers that treat mask rows differently."""

    rows: int
    masks: slice | torch.Tensor
    """The mask rows. For speed a slice if they are consecutive, as those of a single sequence are."""
    masks_M: torch.Tensor
    """The same as row numbers."""
    scored: torch.Tensor | None
    """Which of the wanted rows the output head runs on; None for all."""
    hidden_WC: torch.Tensor | None = None
    """The final hidden states of all wanted rows; filled when the output head runs."""


_PASS: ContextVar[GatedPass | None] = ContextVar("gated pass", default=None)


class TorchGate(TensorGate):
    """A `TensorGate` that is attached to the layers of its network."""

    def __init__(self, network: PreTrainedModel, adapter: Adapter) -> None:
        super().__init__(network, adapter)
        self.mask_embedding_DC = adapter.mask_embedding.to(network.device, network.dtype)
        storage = best_storage(network.device, torch.float32)
        if self.sequential_head is not None and storage is not None:
            store_linears(self.sequential_head, storage)

    @contextmanager
    def open(self, rows: Rows) -> Iterator[GatedPass]:
        """Inside this context, the network's forward pass runs over these rows."""
        first, last = int(rows.mask_rows_M[0]), int(rows.mask_rows_M[-1])
        is_run = last - first + 1 == len(rows.mask_rows_M)
        masks_M = torch.from_numpy(rows.mask_rows_M).to(self.device)
        masks = slice(first, last + 1) if is_run else masks_M
        in_flight = GatedPass(len(rows.ids_Q), masks, masks_M, _scored(rows, self.device))
        token = _PASS.set(in_flight)
        try:
            yield in_flight
        finally:
            _PASS.reset(token)

    def embed(self, rows: Rows, in_flight: GatedPass) -> torch.Tensor:
        """The tokens' embeddings for real rows, the embeddings of their depths for masks. Masks' ids are not looked up:
        they may be beyond the vocabulary."""
        ids_Q = torch.from_numpy(rows.ids_Q).to(self.device, copy=True)
        ids_Q[in_flight.masks] = 0
        embedded_QC = self.embedding(ids_Q)
        depths_M = np.minimum(rows.mask_depths_M, len(self.mask_embedding_DC)) - 1
        embedded_QC[in_flight.masks] = self.mask_embedding_DC[torch.from_numpy(depths_M).to(self.device)]
        return embedded_QC[None]


def _scored(rows: Rows, device: torch.device) -> torch.Tensor | None:
    if rows.scored_segments == rows.wanted_segments:
        return None
    return torch.cat([torch.arange(each.start, each.stop, device=device) for each in rows.scored_segments])


def attach(network: PreTrainedModel, adapter: Adapter) -> TorchGate:
    """Wrap the network's layers, plain or replaced by faster ones. A network takes one adapter, once."""
    assert not isinstance(network.get_output_embeddings(), _Tap), "the network has an adapter already"
    check_takes_masks(network.config)
    parts: dict[tuple[nn.Module, str], list[_LowRank]] = {}
    for target in adapter.config.targets:
        owner, name, part = _find(network, adapter, target)
        parts.setdefault((owner, name), []).append(part)
    gate = TorchGate(network, adapter)
    for (owner, name), low_ranks in parts.items():
        base = getattr(owner, name)
        replace(owner, name, (GatedPanels if isinstance(base, PanelLinear) else GatedLinear)(base, low_ranks))
    for owner, name in [place for module in network.modules() for place in _mixtures(module)]:
        replace(owner, name, _Experts(getattr(owner, name)))
    tap(network)
    return gate


def tap(network: PreTrainedModel) -> None:
    """Make the output head record its inputs."""
    network.set_output_embeddings(_Tap(network.get_output_embeddings()))


@dataclass(frozen=True, slots=True)
class _LowRank:
    """The two factors for one linear layer, and the layer's columns in the product."""

    first: int
    last: int
    down_RI: torch.Tensor
    up_OR: torch.Tensor


def _find(network: PreTrainedModel, adapter: Adapter, target: str) -> tuple[nn.Module, str, _LowRank]:
    """The module and its attribute that hold a linear layer, and the low-rank part to add to its product."""
    owner: Any = network
    path = target.split(".")
    while len(path) > 1 and not isinstance(owner, LlamaLayer):
        owner = getattr(owner, path.pop(0), None)
    name, first, last = ".".join(path), 0, None
    if isinstance(owner, LlamaLayer):
        name, first, last = owner.places.get(name, (name, 0, None))
    linear = getattr(owner, name, None)
    if not isinstance(linear, nn.Linear | StoredLinear | Part):
        raise InputError(
            f"the adapter changes {target}, but {network.config.model_type} has no such linear layer: use the adapter "
            "of this model"
        )
    last = linear.out_features if last is None else last
    down_RI, up_OR = (factor.to(network.device, network.dtype) for factor in adapter.low_rank(target))
    if (down_RI.shape[1], up_OR.shape[0]) != (linear.in_features, last - first):
        raise InputError(
            f"the adapter's {target} takes {down_RI.shape[1]} values to {up_OR.shape[0]}, the model's "
            f"{linear.in_features} to {last - first}: use the adapter of this model"
        )
    return owner, name, _LowRank(first, last, down_RI, up_OR)


class GatedLinear:
    """A product of the base model, whose columns may belong to several layers, with their low-rank parts."""

    def __init__(self, base: Any, low_ranks: list[_LowRank]) -> None:
        self.base = base
        # The parts read the same input, so their first factors are one product, stored in the order that it reads.
        self.down_IR = torch.cat([part.down_RI for part in low_ranks]).t().contiguous()
        self.ups = [(part.first, part.last, part.up_OR.t().contiguous()) for part in low_ranks]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product = self.base(x)
        in_flight = _PASS.get()
        if in_flight is not None:
            assert x.shape[-2] == in_flight.rows, "a gated layer must see all rows of a step, one behind the other"
            self._add(product, x, in_flight.masks)
        return product

    def _add(self, product: torch.Tensor, x: torch.Tensor, masks: slice | torch.Tensor) -> None:
        low_MR = x.reshape(-1, x.shape[-1])[masks] @ self.down_IR
        product_QO = product.view(-1, product.shape[-1])
        for (first, last, up_RO), part_MR in zip(self.ups, low_MR.chunk(len(self.ups), dim=-1), strict=True):
            product_QO[masks, first:last] += part_MR @ up_RO


class GatedPanels:
    """The same for weights that are stored in panels: the first factors are stacked under the weight, so that they are
    columns of one product. Computing them for real rows, too, costs less than a separate product."""

    def __init__(self, base: PanelLinear, low_ranks: list[_LowRank]) -> None:
        self.base = base
        self.in_features, self.out_features = base.in_features, base.out_features
        starts = base.stack([part.down_RI for part in low_ranks])
        self.add = LowRankSum([part.up_OR for part in low_ranks], [part.first for part in low_ranks], starts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        in_flight = _PASS.get()
        if in_flight is None:
            return self.base(x)
        assert x.shape[-2] == in_flight.rows, "a gated layer must see all rows of a step, one behind the other"
        product_QO = self.base.stacked(x)
        self.add(product_QO, in_flight.masks_M)
        return product_QO[:, : self.out_features].view(*x.shape[:-1], self.out_features)


def _mixtures(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """The children that hold experts: their weights are stacked matrices."""
    return [
        (module, name)
        for name, child in module.named_children()
        if any(weight.dim() == 3 for weight in child.parameters(recurse=False))
    ]


class _Experts:
    """A mixture's experts. Each runs its rows as one product, and the number of rows affects rounding. So mask rows run
    separately: their routing must not change the outputs of real rows."""

    def __init__(self, experts: nn.Module) -> None:
        self.experts = experts

    def __call__(self, x_QC: torch.Tensor, *routing: torch.Tensor) -> torch.Tensor:
        in_flight = _PASS.get()
        if in_flight is None:
            return self.experts(x_QC, *routing)
        assert len(x_QC) == in_flight.rows, "experts must see all rows of a step, one behind the other"
        is_mask_Q = torch.zeros(len(x_QC), dtype=torch.bool, device=x_QC.device)
        is_mask_Q[in_flight.masks] = True
        output_QC = torch.empty_like(x_QC)
        for rows_Q in (~is_mask_Q, is_mask_Q):
            output_QC[rows_Q] = self.experts(x_QC[rows_Q], *(each[rows_Q] for each in routing))
        return output_QC


class _Tap(nn.Module):
    """The output head, which also records its inputs."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        in_flight = _PASS.get()
        if in_flight is None:
            return self.head(hidden)
        in_flight.hidden_WC = hidden.reshape(-1, hidden.shape[-1])
        return self.head(hidden if in_flight.scored is None else hidden[..., in_flight.scored, :])
