"""Keys and values of the native backend, in half precision; attention.h describes their order in memory."""

import mmap

import numpy as np

from stridelm.backends.native.library import Cache, Shape, library
from stridelm.cache.kv_cache import BLOCK_SIZE
from stridelm.params import InputError

assert BLOCK_SIZE == 16, "attention.h has the same"


class NativeMemory:
    """Room for `blocks` blocks, in all layers. The system allocates pages when they are first written to."""

    def __init__(self, shape: Shape, blocks: int) -> None:
        self._shape = shape
        values = shape.layers * shape.key_heads * blocks * BLOCK_SIZE * shape.head_size
        try:
            # Not numpy's own memory: that uses pages of 2 MB, and every head of every layer would take one.
            self._keys, self._values = (mmap.mmap(-1, 2 * values, mmap.MAP_PRIVATE) for _ in range(2))
        except (OSError, OverflowError, ValueError) as error:
            raise InputError(
                f"there is no memory for a KV cache of {blocks * BLOCK_SIZE} tokens: give it fewer with cache_tokens "
                "(--cache-tokens)"
            ) from error
        starts = (np.frombuffer(each, np.float16).ctypes.data for each in (self._keys, self._values))
        self.cache = Cache(*starts, blocks)

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        """Copy slots to slots, in order; no slot may be written before it is read."""
        target, source = (np.ascontiguousarray(slots, dtype=np.int64) for slots in (target, source))
        library().stride_move(self._shape, self.cache, target.ctypes.data, source.ctypes.data, len(target))
