"""The rows of a step as the kernels take them: filled up to a few fixed shapes, each of which is captured once.

Shape letters: Q rows of the step, M the shape's, W wanted rows, B blocks, P pages of a block, T ancestors beyond a
block's chain.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch

from stridelm.model.gpu.layers import TAIL, Layout
from stridelm.model.kv_cache import Table
from stridelm.types import Rows

_ROWS = (1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
_BLOCKS = (1, 8, 64)
_BEYOND = 512
"""Larger steps are filled up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph is captured for."""

    rows: int
    wanted: int
    blocks: int
    has_masks: bool
    has_trees: bool

    @classmethod
    def of(cls, rows: Rows, has_trees: bool) -> "Shape":
        """The smallest that has room."""
        wanted = len(rows.wanted_W)
        return cls(
            rows=_fit(len(rows.ids_Q), _ROWS),
            wanted=_fit(wanted, _ROWS) if wanted else 0,
            blocks=_fit(len(rows.starts), _BLOCKS),
            has_masks=len(rows.mask_rows_M) > 0,
            has_trees=has_trees,
        )


def _fit(count: int, sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size >= count), -(-count // _BEYOND) * _BEYOND)


class LayoutBuffer:
    """The memory of one shape's layout: one copy brings a step to the device."""

    def __init__(self, shape: Shape, pages: int, device: torch.device) -> None:
        rows, blocks = shape.rows, shape.blocks + 1
        sizes = {
            "ids_M": (rows,),
            "blocks_M": (rows,),
            "depths_M": (rows,),
            "offsets_M": (rows,),
            "masks_M": (rows,),
            "run_rows_M": (rows,),
            "run_counts_M": (rows,),
            "tails_MT": (rows, TAIL),
            "wanted_W": (shape.wanted,),
            "starts_B": (blocks,),
            "chains_B": (blocks,),
            "tables_BP": (blocks, pages),
        }
        assert list(sizes) == [field.name for field in fields(Layout)]
        lengths = [int(np.prod(size)) for size in sizes.values()]
        self._host = np.zeros(sum(lengths), np.int32)
        self._device = torch.zeros(sum(lengths), dtype=torch.int32, device=device)
        ends = np.cumsum(lengths)
        spans = [slice(int(end) - length, int(end)) for end, length in zip(ends, lengths, strict=True)]
        self.host = {name: self._host[span].reshape(sizes[name]) for name, span in zip(sizes, spans, strict=True)}
        self.device = Layout(
            **{name: self._device[span].view(sizes[name]) for name, span in zip(sizes, spans, strict=True)}
        )

    def send(self) -> None:
        self._device.copy_(torch.from_numpy(self._host))


def runs_of(parents_Q: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """First rows and lengths of the runs: rows of which each is the child of the one before, cut at `longest`."""
    places = np.arange(len(parents_Q))
    begins = np.flatnonzero((parents_Q != places - 1) | (parents_Q < 0))
    lengths = np.diff(np.append(begins, len(parents_Q)))
    parts = -(-lengths // longest)
    first = np.repeat(begins, parts) + longest * (np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts))
    ends = np.repeat(begins + lengths, parts)
    return first, np.minimum(longest, ends - first)


def chain_of(parents_q: np.ndarray) -> int:
    """How many of a block's first rows are the first ancestors of all others: a row that sees beyond them sees them."""
    places = np.arange(len(parents_q))
    branches = np.flatnonzero(parents_q != places - 1)
    return int(min(branches[0], parents_q[branches].min() + 1)) if len(branches) else len(parents_q)


def fill(buffer: LayoutBuffer, rows: Rows, tables: list[Table], spare_page: int, run: int, deepest_mask: int) -> None:
    """Write a step into the host's side of a layout of its shape. `spare_page`: where rows that fill up are kept;
    `run`: rows of a chain that attend together; `deepest_mask`: masks beyond count as this one."""
    host, count = buffer.host, len(rows.ids_Q)
    nobody = len(host["starts_B"]) - 1
    for name in ("ids_M", "depths_M", "offsets_M", "masks_M", "run_rows_M", "run_counts_M", "starts_B", "chains_B"):
        host[name].fill(0)
    host["blocks_M"].fill(nobody)
    host["wanted_W"].fill(-1)
    host["tables_BP"][nobody] = spare_page
    host["ids_M"][:count] = rows.ids_Q
    host["masks_M"][rows.mask_rows_M] = np.minimum(rows.mask_depths_M, deepest_mask)
    host["wanted_W"][: len(rows.wanted_W)] = rows.wanted_W
    for block, (start, segment, table) in enumerate(zip(rows.starts, rows.segments, tables, strict=True)):
        own = rows.parents_Q[segment]
        host["blocks_M"][segment] = block
        host["depths_M"][segment] = rows.positions_Q[segment] - start
        host["offsets_M"][segment] = np.arange(segment.stop - segment.start)
        host["starts_B"][block] = start
        host["chains_B"][block] = chain_of(np.where(own < 0, -1, own - segment.start))
        host["tables_BP"][block, : len(table.blocks)] = table.blocks
    first, lengths = runs_of(rows.parents_Q, run)
    host["run_rows_M"][: len(first)] = first
    host["run_counts_M"][: len(first)] = lengths
    _fill_tails(host, rows, first + lengths - 1)


def _fill_tails(host: dict[str, np.ndarray], rows: Rows, last_rows: np.ndarray) -> None:
    """The places of the ancestors of every run's last row beyond its block's chain."""
    parents, depths = rows.parents_Q, host["depths_M"]
    for run, last in enumerate(last_rows.tolist()):
        chain = int(host["chains_B"][host["blocks_M"][last]])
        row = last
        while row >= 0 and (beyond := int(depths[row]) - chain) >= 0:
            assert beyond < TAIL, "a draft lies deeper than a step has room for"
            host["tails_MT"][run, beyond] = host["offsets_M"][row]
            row = int(parents[row])


def has_trees(rows: Rows) -> bool:
    """Whether a row of some block is not the child of the one before it."""
    firsts = {segment.start for segment in rows.segments}
    places = np.arange(len(rows.parents_Q))
    return any(int(row) not in firsts for row in np.flatnonzero(rows.parents_Q != places - 1))
