"""One forward pass over the packed rows of a step, through a transformers model and our own cache."""

from typing import cast

import torch
from transformers import PreTrainedModel

from stridelm.model.attention import Step
from stridelm.model.kv_cache import KVCache, Table
from stridelm.types import RowKind, Rows


class TorchForward:
    """A transformers model with a KV cache of its own. Several of these may share a model."""

    def __init__(self, network: PreTrainedModel, cache: KVCache) -> None:
        self.network = network
        self.cache = cache

    @torch.inference_mode()
    def __call__(self, rows: Rows, tables: list[Table]) -> list[torch.Tensor]:
        """Append the rows to the cache and return, per block, the logits of its wanted rows."""
        assert not rows.kinds_Q.any(), f"{RowKind.MASK!r} rows need an adapter"
        device, dtype = self.network.device, self.network.dtype
        for table, segment in zip(tables, rows.segments, strict=True):
            self.cache.append(table, segment.stop - segment.start)
        step = Step(rows, self.cache, tables, device, dtype)
        output = self.network(
            input_ids=torch.from_numpy(rows.ids_Q)[None].to(device),
            position_ids=torch.from_numpy(rows.positions_Q)[None].to(device),
            logits_to_keep=torch.from_numpy(rows.wanted_W).to(device),
            use_cache=False,
            stride_step=step,
        )
        logits_WV = cast(torch.Tensor, output.logits)[0].float()
        return [logits_WV[segment] for segment in rows.wanted_segments]
