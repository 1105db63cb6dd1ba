"""Where the GPU backend keeps keys and values: one tensor for all layers, token by token.

Shape letters: L layers, S slots (page x page size + offset), G key-value heads, D head size.
"""

import numpy as np
import torch

from stridelm.cache.kv_cache import BLOCK_SIZE, blocks_for
from stridelm.params import InputError

PAGE = BLOCK_SIZE


class GpuMemory:
    """Implements `cache.kv_cache.KVMemory`. Behind the pages that the cache gives out there is one for padding rows."""

    def __init__(
        self, tokens: int, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.spare_page = blocks_for(tokens)
        shape = (layers, 2, (self.spare_page + 1) * PAGE, heads, size)
        try:
            # Zeros: memory that was never written may be multiplied by a weight of zero, and NaN would survive that.
            self.layers_L2SGD = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as error:
            raise InputError(
                f"there is no memory for a KV cache of {tokens} tokens: give it fewer with cache_tokens "
                "(--cache-tokens)"
            ) from error

    @torch.inference_mode()
    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        to, of = (torch.from_numpy(slots).to(self.layers_L2SGD.device) for slots in (target, source))
        self.layers_L2SGD[:, :, to] = self.layers_L2SGD[:, :, of]
