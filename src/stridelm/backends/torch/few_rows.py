"""Products of a few rows in C++ (few_rows.cpp), for the torch backend in float32.

Without a compiler, or on another kind of processor, torch's own products are used instead.
"""

import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stridelm.backends.common.compiler import CannotCompile, check_processor, compiled

log = logging.getLogger("stridelm")
_SOURCE = Path(__file__).with_name("few_rows.cpp")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC")
_NEEDED = {"x86_64": ("avx2",)}
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int


@cache
def library() -> Any | None:
    """The compiled products; None, with one warning, if they are not available."""
    try:
        check_processor(_NEEDED)
        # Linked without OpenMP: the library must use the OpenMP that torch has loaded, or two thread pools would
        # compete for the cores.
        return _bind(compiled(_SOURCE, _FLAGS))
    except (CannotCompile, OSError, AttributeError) as error:
        log.warning("the C++ products cannot be used (%s): passes over several tokens are slower", error)
        return None


def _bind(made: Path) -> Any:
    torch.get_num_threads()  # torch's OpenMP library is loaded by now
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libgomp" in line:
            ctypes.CDLL(line.split()[-1], ctypes.RTLD_GLOBAL)
            break
    bound = ctypes.CDLL(str(made))
    bound.product.argtypes = [_POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG, _INT]
    bound.add_low_rank.argtypes = [
        *(_POINTER, _POINTER, _LONG, _POINTER, _LONG, _LONG, _LONG),
        *(_POINTER, _POINTER, _POINTER, _POINTER, _INT),
    ]
    bound.product.restype = bound.add_low_rank.restype = None
    return bound


def into_panels(weight_OI: torch.Tensor, width: int) -> torch.Tensor:
    """Panels x inputs x width: for each input, the columns of a panel are contiguous. The last panel is padded with
    zeros."""
    outputs, inputs = weight_OI.shape
    count = -(-outputs // width)
    panels = weight_OI.new_zeros(count, inputs, width)
    for panel, rows_OI in zip(panels, weight_OI.split(width), strict=True):
        panel[:, : len(rows_OI)] = rows_OI.t()
    return panels


class PanelProduct:
    """One matrix in panels, or several in a row, each starting with a new panel."""

    def __init__(self, *weights: torch.Tensor) -> None:
        bound = library()
        assert bound is not None
        self._library, self.width = bound, int(bound.panel_width())
        self.panels = torch.cat([into_panels(weight, self.width) for weight in weights])
        self.inputs = weights[0].shape[1]
        self.starts = [0]
        """Per matrix, its first column in the product."""
        for weight in weights[:-1]:
            self.starts.append(self.starts[-1] + -(-weight.shape[0] // self.width) * self.width)
        self.outputs = self.starts[-1] + weights[-1].shape[0]

    def __call__(self, x_QI: torch.Tensor, outputs: int) -> torch.Tensor:
        """The first `outputs` columns of the product. Columns between two matrices hold zeros."""
        x_QI = x_QI.contiguous()
        rows = x_QI.shape[0]
        y_QO = x_QI.new_empty(rows, outputs)
        self._library.product(
            x_QI.data_ptr(), rows, self.inputs, self.panels.data_ptr(), y_QO.data_ptr(), outputs, outputs,
            torch.get_num_threads(),
        )  # fmt: skip
        return y_QO


class LowRankSum:
    """Multiplies by the second factors of several low-rank parts, and adds each result to the columns of its layer."""

    def __init__(self, ups: list[torch.Tensor], firsts: list[int], low_firsts: list[int]) -> None:
        """For each part, `ups`: the second factor, out x rank; `firsts`: the first of the columns that it adds to;
        `low_firsts`: the column where the first factor's product starts, in the same rows."""
        bound = library()
        assert bound is not None
        self._library, self.rank, self.parts = bound, ups[0].shape[1], len(ups)
        self._panels = [into_panels(up, int(bound.panel_width())) for up in ups]
        counts = [up.shape[0] for up in ups]
        self._tables = (
            (_POINTER * self.parts)(*(panels.data_ptr() for panels in self._panels)),
            *((_LONG * self.parts)(*values) for values in (low_firsts, firsts, counts)),
        )

    def __call__(self, y_QO: torch.Tensor, rows_M: torch.Tensor) -> None:
        y = y_QO.data_ptr()
        self._library.add_low_rank(
            y, y, y_QO.stride(0), rows_M.data_ptr(), len(rows_M), self.rank, self.parts, *self._tables,
            torch.get_num_threads(),
        )  # fmt: skip
