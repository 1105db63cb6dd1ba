"""Keys and values of the native backend, in half precision or as bytes; key_values.h has their order in memory."""

import mmap

import numpy as np

from stridelm.backends.native.library import Cache, Shape, library
from stridelm.cache.kv_cache import BLOCK_SIZE
from stridelm.params import InputError

assert BLOCK_SIZE == 16, "key_values.h has the same"
_BYTES = {"float16": 2, "int8": 1}


class NativeMemory:
    """Room for `blocks` blocks, in all layers. The system allocates pages when they are first written to."""

    def __init__(self, shape: Shape, blocks: int, numbers: str) -> None:
        self._shape = shape
        vectors = shape.layers * shape.key_heads * blocks * BLOCK_SIZE
        sizes = [vectors * shape.head_size * _BYTES[numbers]] * 2
        if numbers == "int8":
            sizes += [4 * vectors] * 2  # a scale each
        try:
            # Not numpy's own memory: that uses pages of 2 MB, and every head of every layer would take one.
            self._held = [mmap.mmap(-1, size, mmap.MAP_PRIVATE) for size in sizes]
        except (OSError, OverflowError, ValueError) as error:
            raise InputError(
                f"there is no memory for a KV cache of {blocks * BLOCK_SIZE} tokens: give it fewer with cache_tokens "
                "(--cache-tokens)"
            ) from error
        keys, values, *scales = (np.frombuffer(each, np.uint8).ctypes.data for each in self._held)
        self.cache = Cache(keys, values, *(scales or (None, None)), blocks)

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        """Copy slots to slots, in order; no slot may be written before it is read."""
        target, source = (np.ascontiguousarray(slots, dtype=np.int64) for slots in (target, source))
        library().stride_move(self._shape, self.cache, target.ctypes.data, source.ctypes.data, len(target))
