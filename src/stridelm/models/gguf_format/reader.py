"""gguf's reader, made to refuse damaged files instead of following what they say."""

from itertools import pairwise
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

_LONGEST_ARRAY = 2**22
"""Maximum number of items. The longest arrays are the vocabulary and its merges: some hundred thousand."""


class Reader(gguf.GGUFReader):
    """Raises an error at the end of the file. gguf's own reader takes missing data as empty, an array with a damaged
    length as billions of items, and tensors wherever they are said to be."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == gguf.GGUFValueType.ARRAY:
            length = int(self._get(orig_offs + 4, np.uint64)[0])
            if length > _LONGEST_ARRAY:
                raise ValueError(f"a list of {length} items at byte {orig_offs}")
        return super()._get_field_parts(orig_offs, raw_type)

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None) -> npt.NDArray[Any]:
        found = super()._get(offset, dtype, count, override_order)
        if len(found) < count:
            raise ValueError(f"it ends at byte {len(self.data)}, before all of it was read")
        return found

    def _build_tensors(self, start_offs: int, fields: Any) -> None:
        if self.byte_order == "S":  # the package would hand out the weights with their bytes in the wrong order
            raise ValueError("its numbers are in the byte order of another kind of processor")
        super()._build_tensors(start_offs, fields)
        for tensor in self.tensors:
            if tensor.data_offset < start_offs or (tensor.data_offset - start_offs) % self.alignment:
                raise ValueError(f"{tensor.name} begins at byte {tensor.data_offset}, which is no place for a tensor")
        for before, after in pairwise(sorted(self.tensors, key=lambda tensor: tensor.data_offset)):
            if after.data_offset < before.data_offset + before.n_bytes:
                raise ValueError(f"{after.name} begins at byte {after.data_offset}, inside {before.name}")
