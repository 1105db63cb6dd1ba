"""The attention function that StrideLM registers with transformers: a row sees its ancestors, over our own KV cache.

transformers' models call it once per layer with the queries, keys and values of all packed rows of a step. Everything
else that the step needs is passed as one keyword argument, `stride_step`. Other arguments that this function does not
know are refused, never ignored.

Shape letters: H query heads, G key-value heads, Q rows of the step, q rows of one block, T tokens that a block reads,
D head size.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import functional
from transformers import AttentionInterface

from stridelm.backends.torch.memory import TorchMemory
from stridelm.cache.kv_cache import KVCache, Table
from stridelm.layout import visible
from stridelm.models.support import UnsupportedModel
from stridelm.types import Rows

NAME = "stridelm"

# Arguments that transformers' layers pass on, but attention itself does not depend on.
_HARMLESS = {"position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states",
             "output_router_logits", "return_dict", "logits_to_keep"}  # fmt: skip


class ScoreRule(NamedTuple):
    """How a layer turns the products of queries and keys into weights."""

    scaling: float | None
    softcap: float | None = None
    """Soft cap on the scores (Gemma 2)."""
    sinks_H: torch.Tensor | None = None
    """Attention sinks: logits that take a share of each head's weights (gpt-oss)."""

    @property
    def is_plain(self) -> bool:
        """Whether fused kernels support it."""
        return self.softcap is None and self.sinks_H is None


class AttentionInput(NamedTuple):
    """The inputs of a layer's attention, for all rows of a pass."""

    layer: int
    query_HQD: torch.Tensor
    key_GQD: torch.Tensor
    value_GQD: torch.Tensor
    window: int | None
    """Sliding window: how far back a row sees; None for no limit."""
    rule: ScoreRule

    @property
    def projections(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.query_HQD, self.key_GQD, self.value_GQD


class Pass(Protocol):
    """How the rows of one pass attend: a decoding step, or one of the passes in `train.students`."""

    def attend(self, given: AttentionInput) -> torch.Tensor:
        """Q x H x D."""
        ...


class StepPass:
    """One step's view of the cache: where its rows are written, and what each block reads and sees."""

    def __init__(
        self,
        rows: Rows,
        cache: KVCache,
        memory: TorchMemory,
        tables: list[Table],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Allocates the rows in the cache. `memory` is the cache's memory."""
        self.rows = rows
        self.memory = memory
        self.device = device
        self.dtype = dtype
        counts = (segment.stop - segment.start for segment in rows.segments)
        written = [cache.append(table, count) for table, count in zip(tables, counts, strict=True)]
        self.write_slots_Q = torch.cat([torch.from_numpy(slots) for slots in written]).to(device)
        self.read_slots = [
            slots if isinstance(slots, slice) else torch.from_numpy(slots).to(device)
            for slots in map(cache.reading_slots, tables)
        ]
        self.windows: dict[int, int | None] = {}
        """Layer -> the sliding window that the layer passed; filled as the layers run."""
        self._masks: dict[tuple[int, int | None], torch.Tensor | None] = {}

    def mask(self, block: int, window: int | None) -> torch.Tensor | None:
        """The mask that is added to a block's scores: 0 for keys that a row sees, -inf for others. Made once for all
        layers."""
        key = (block, window)
        if key not in self._masks:
            rows = self.rows
            sees = visible(rows.starts[block], rows.ancestors[block], rows.positions_Q[rows.segments[block]], window)
            self._masks[key] = None if sees is None else self._additive(sees)
        return self._masks[key]

    def attend(self, given: AttentionInput) -> torch.Tensor:
        """Write the step's keys and values to the cache, then run attention block by block: Q x H x D."""
        layer, query_HQD, key_GQD, value_GQD, window, rule = given
        self.windows[layer] = window
        self.memory.write(layer, self.write_slots_Q, key_GQD, value_GQD)
        outputs: list[torch.Tensor] = []
        for block, rows in enumerate(self.rows.segments):
            key_GTD, value_GTD = self.memory.read(layer, self.read_slots[block])
            output_HqD = attend_block(query_HQD[:, rows], key_GTD, value_GTD, self.mask(block, window), rule)
            outputs.append(output_HqD.transpose(0, 1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _additive(self, sees: Any) -> torch.Tensor:
        mask = torch.zeros(sees.shape, dtype=self.dtype)
        return mask.masked_fill_(torch.from_numpy(~sees), -torch.inf).to(self.device)


def attend(
    module: torch.nn.Module,
    query_1HQD: torch.Tensor,
    key_1GQD: torch.Tensor,
    value_1GQD: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001
    *,
    stride_step: Pass | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    family = type(module).__name__
    if stride_step is None:
        raise UnsupportedModel(f"{family} does not hand its keyword arguments on to attention: not supported")
    unknown = sorted(name for name, value in rest.items() if value is not None and name not in _HARMLESS)
    if unknown or dropout or is_causal is False or not getattr(module, "is_causal", True):
        what = ", ".join(unknown) or ("dropout" if dropout else "attention to later tokens")
        raise UnsupportedModel(f"{family} asks attention for {what}, which StrideLM does not do")
    if key_1GQD.shape[2] != query_1HQD.shape[2]:
        raise UnsupportedModel(f"{family} reads the keys of another layer, which StrideLM does not do")
    layer, rule = int(module.layer_idx), ScoreRule(scaling, softcap, s_aux)  # type: ignore[arg-type]
    given = AttentionInput(layer, query_1HQD[0], key_1GQD[0], value_1GQD[0], sliding_window, rule)
    return stride_step.attend(given)[None], None


def attend_block(
    query_HqD: torch.Tensor,
    key_GTD: torch.Tensor,
    value_GTD: torch.Tensor,
    mask_qT: torch.Tensor | None,
    rule: ScoreRule,
) -> torch.Tensor:
    """Attention of one block's rows to the keys that it reads; without a mask each row sees all of them."""
    if rule.is_plain:
        return _fused(query_HqD, key_GTD, value_GTD, mask_qT, rule.scaling)
    return _explicit(query_HqD, key_GTD, value_GTD, mask_qT, rule)


def _fused(
    query_HqD: torch.Tensor,
    key_GTD: torch.Tensor,
    value_GTD: torch.Tensor,
    mask_qT: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    if mask_qT is None:
        # All rows see all keys, so the query heads of a key head can be treated as more rows of it, which is faster.
        heads, count, size = query_HqD.shape
        grouped_GxD = query_HqD.reshape(key_GTD.shape[0], -1, size)
        output_GxD = functional.scaled_dot_product_attention(
            grouped_GxD[None], key_GTD[None], value_GTD[None], scale=scaling
        )
        return output_GxD.reshape(heads, count, -1)
    return functional.scaled_dot_product_attention(
        query_HqD[None], key_GTD[None], value_GTD[None], attn_mask=mask_qT, scale=scaling, enable_gqa=True
    )[0]


def _explicit(
    query_HqD: torch.Tensor,
    key_GTD: torch.Tensor,
    value_GTD: torch.Tensor,
    mask_qT: torch.Tensor | None,
    rule: ScoreRule,
) -> torch.Tensor:
    """Attention written out, for what fused kernels lack: capped scores (Gemma 2) and sinks (gpt-oss)."""
    scaling, softcap, sinks_H = rule
    heads, count, size = query_HqD.shape
    groups = key_GTD.shape[0]
    query_GxD = query_HqD.reshape(groups, -1, size)
    scores_HqT = (query_GxD @ key_GTD.transpose(1, 2)).view(heads, count, -1) * (scaling or size**-0.5)
    if softcap is not None:
        scores_HqT = softcap * torch.tanh(scores_HqT / softcap)
    if mask_qT is not None:
        scores_HqT = scores_HqT + mask_qT
    if sinks_H is not None:
        scores_HqT = torch.cat([scores_HqT, sinks_H.view(-1, 1, 1).expand(-1, count, 1)], dim=-1)
    weights_HqT = scores_HqT.softmax(dim=-1, dtype=torch.float32).to(value_GTD.dtype)[..., : key_GTD.shape[1]]
    return (weights_HqT.reshape(groups, -1, key_GTD.shape[1]) @ value_GTD).view(heads, count, -1)


AttentionInterface.register(NAME, attend)
