"""The memory behind the KV cache, as torch tensors.

Shape letters: H key-value heads, S slots (block number x block size + offset), D head size, T tokens.
"""

from collections.abc import Mapping

import numpy as np
import torch

from stridelm.params import InputError


class TorchMemory:
    """Implements `cache.kv_cache.KVMemory`. A layer's tensors are allocated when the layer first writes."""

    def __init__(self, slots: int, borrowed: Mapping[int, int] | None = None) -> None:
        """`borrowed`: layers without their own keys and values -> the earlier layer whose tensors they read."""
        self.slots = slots
        self.borrowed = borrowed or {}
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def write(self, layer: int, slots: torch.Tensor, keys_HTD: torch.Tensor, values_HTD: torch.Tensor) -> None:
        if layer in self.borrowed:
            return  # the earlier layer has written the same already
        if layer not in self.layers:
            self.layers[layer] = self._part(keys_HTD), self._part(values_HTD)
        keys_HSD, values_HSD = self.layers[layer]
        keys_HSD.index_copy_(1, slots, keys_HTD)
        values_HSD.index_copy_(1, slots, values_HTD)

    def _part(self, like_HTD: torch.Tensor) -> torch.Tensor:
        try:
            return like_HTD.new_empty((like_HTD.shape[0], self.slots, like_HTD.shape[2]))
        except RuntimeError as error:
            raise InputError(
                f"there is no memory for a KV cache of {self.slots} tokens: give it fewer with cache_tokens "
                "(--cache-tokens)"
            ) from error

    def read(self, layer: int, slots: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at these slots, which come from `KVCache.reading_slots`."""
        keys_HSD, values_HSD = self.layers[self.borrowed.get(layer, layer)]
        return keys_HSD[:, slots], values_HSD[:, slots]

    @torch.inference_mode()
    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        for keys, values in self.layers.values():
            to, of = (torch.from_numpy(slots).to(keys.device) for slots in (target, source))
            keys[:, to] = keys[:, of]
            values[:, to] = values[:, of]
