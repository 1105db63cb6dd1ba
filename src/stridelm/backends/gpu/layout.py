"""The rows of a step as the kernels take them: padded to a few fixed shapes, each of which is captured once.

Shape letters: Q rows of the step, M rows of the padded shape, W wanted rows, B blocks, P pages of a block, T ancestors
beyond a block's chain.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from stridelm.backends.gpu.layers import SPAN, TAIL, Layout
from stridelm.backends.gpu.template import Template
from stridelm.cache.kv_cache import Table
from stridelm.layout import lay_out
from stridelm.types import ROOT, Rows

_ROWS = (1, 8, 16, 32, 56, 64, 96, 128, 192, 256, 384, 512)
"""Includes 56: eight real rows and 56 masks (seven drafts, seven masks off each) fill one tile of 64."""
_BLOCKS = (1, 8, 64)
_MIN_SPANS = 4
_BEYOND = 512
"""Larger steps are padded to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape that a graph is captured for."""

    real: int
    masks: int
    wanted: int
    blocks: int
    spans: int
    """Spans of positions that attention sums over."""
    runs: int
    has_trees: bool

    @property
    def rows(self) -> int:
        return self.real + self.masks

    @classmethod
    def of(cls, rows: Rows, run: int) -> "Shape":
        """The smallest shape with room for the rows. `run`: rows of a chain that attend together."""
        wanted, masks, has_trees = len(rows.wanted_W), len(rows.mask_rows_M), _has_trees(rows)
        real = _fit(len(rows.ids_Q) - masks, _ROWS)
        masks = _fit(masks, _ROWS) if masks else 0
        blocks = _fit(len(rows.starts), _BLOCKS)
        return cls(
            real=real,
            masks=masks,
            wanted=_fit(wanted, _ROWS) if wanted else 0,
            blocks=blocks,
            runs=real + masks if has_trees else _max_runs(real, blocks, run) + _max_runs(masks, blocks, run),
            spans=spans_for(int(rows.positions_Q.max()) + 1),
            has_trees=has_trees,
        )


def spans_for(tokens: int) -> int:
    """Number of spans that texts of `tokens` tokens fit in: a power of two, so that few shapes occur."""
    return 1 << (max(_MIN_SPANS, -(-tokens // SPAN)) - 1).bit_length()


def _max_runs(rows: int, blocks: int, run: int) -> int:
    """Maximum number of runs among rows of one kind, real or mask, if each block's rows of that kind are a chain."""
    return min(rows, blocks + rows // run)


def _fit(count: int, sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size >= count), -(-count // _BEYOND) * _BEYOND)


class LayoutBuffer:
    """The memory of one shape's layout, on the host and on the device: one copy sends a step."""

    def __init__(self, shape: Shape, pages: int, device: torch.device) -> None:
        self.shape = shape
        rows, blocks = shape.rows, shape.blocks + 1
        sizes = {
            "ids_M": (rows,),
            "blocks_M": (rows,),
            "depths_M": (rows,),
            "offsets_M": (rows,),
            "masks_M": (rows,),
            "runs_R4": (shape.runs, 4),
            "tails_RT": (shape.runs, TAIL),
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
    """First rows and lengths of the runs: each row of a run is the child of the previous one. Longer runs are cut into
    pieces of at most `longest` rows."""
    places = np.arange(len(parents_Q))
    begins = np.flatnonzero((parents_Q != places - 1) | (parents_Q < 0))
    lengths = np.diff(np.append(begins, len(parents_Q)))
    parts = -(-lengths // longest)
    first = np.repeat(begins, parts) + longest * (np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts))
    ends = np.repeat(begins + lengths, parts)
    return first, np.minimum(longest, ends - first)


def chain_of(parents_q: np.ndarray) -> int:
    """Length of the chain at the start of a block: its rows are ancestors of all rows after them."""
    places = np.arange(len(parents_q))
    branches = np.flatnonzero(parents_q != places - 1)
    return int(min(branches[0], parents_q[branches].min() + 1)) if len(branches) else len(parents_q)


def _places_of(rows: Rows, shape: Shape) -> np.ndarray:
    """Each row's index in the padded shape: real rows first, then masks."""
    is_mask_Q = np.zeros(len(rows.ids_Q), dtype=bool)
    is_mask_Q[rows.mask_rows_M] = True
    return np.where(is_mask_Q, shape.real + np.cumsum(is_mask_Q) - 1, np.cumsum(~is_mask_Q) - 1)


def fill(
    buffer: LayoutBuffer, rows: Rows, tables: list[Table], spare_page: int, run: int, deepest_mask: int
) -> np.ndarray:
    """Write a step into the host's side of a layout; returns its rows' indices there. `spare_page`: the page of padding
    rows; `run`: rows of a chain that attend together; `deepest_mask`: deeper masks get this one's embedding."""
    host, places_Q = buffer.host, _places_of(rows, buffer.shape)
    nobody = len(host["starts_B"]) - 1
    for name in ("ids_M", "depths_M", "offsets_M", "masks_M", "runs_R4", "starts_B", "chains_B"):
        host[name].fill(0)
    host["blocks_M"].fill(nobody)
    host["wanted_W"].fill(-1)
    host["tables_BP"][nobody] = spare_page
    host["ids_M"][places_Q] = rows.ids_Q
    host["masks_M"][places_Q[rows.mask_rows_M]] = np.minimum(rows.mask_depths_M, deepest_mask)
    host["wanted_W"][: len(rows.wanted_W)] = places_Q[rows.wanted_W]
    for block, (start, segment, table) in enumerate(zip(rows.starts, rows.segments, tables, strict=True)):
        own, places_q = rows.parents_Q[segment], places_Q[segment]
        host["blocks_M"][places_q] = block
        host["depths_M"][places_q] = rows.positions_Q[segment] - start
        host["offsets_M"][places_q] = np.arange(segment.stop - segment.start)
        host["starts_B"][block] = start
        host["chains_B"][block] = chain_of(np.where(own < 0, -1, own - segment.start))
        host["tables_BP"][block, : len(table.blocks)] = table.blocks
    _fill_runs(host, rows, places_Q, run)
    return places_Q


def _fill_runs(host: dict[str, np.ndarray], rows: Rows, places_Q: np.ndarray, longest: int) -> None:
    """The runs, and for each run the cache offsets of its last row's ancestors beyond the block's chain."""
    order_Q = np.argsort(places_Q)
    parents_Q = np.where(rows.parents_Q < 0, ROOT, places_Q[rows.parents_Q])
    # In the padded order: a row that is the child of the previous row continues that row's run.
    goes_on_Q = parents_Q[order_Q] == places_Q[order_Q] - 1
    first, lengths = runs_of(np.where(goes_on_Q, np.arange(len(order_Q)) - 1, ROOT), longest)
    heads = places_Q[order_Q][first]
    host["runs_R4"][: len(first)] = np.stack([heads, lengths, host["blocks_M"][heads], host["depths_M"][heads]], axis=1)
    for run, last in enumerate(order_Q[first + lengths - 1].tolist()):
        chain = int(host["chains_B"][host["blocks_M"][places_Q[last]]])
        row = last
        while row >= 0 and (beyond := int(host["depths_M"][places_Q[row]]) - chain) >= 0:
            assert beyond < TAIL, "a draft lies deeper than a step has room for"
            host["tails_RT"][run, beyond] = host["offsets_M"][places_Q[row]]
            row = int(rows.parents_Q[row])


def _has_trees(rows: Rows) -> bool:
    """Whether any row of a block is not the child of the previous row."""
    firsts = {segment.start for segment in rows.segments}
    places = np.arange(len(rows.parents_Q))
    return any(int(row) not in firsts for row in np.flatnonzero(rows.parents_Q != places - 1))


def template_layout(
    template: Template, places: int, pages: int, run: int, spare_page: int, device: torch.device
) -> Layout:
    """A step with the template's block at every place: first the nodes of all places, then their masks. All rows are
    wanted, in this order; later only ids, starts and tables change."""
    rows = lay_out([template.block] * places)
    masks = len(rows.mask_rows_M)
    shape = Shape(
        real=len(rows.ids_Q) - masks,
        masks=masks,
        wanted=len(rows.ids_Q),
        blocks=places,
        spans=spans_for(0),
        runs=len(rows.ids_Q),
        has_trees=masks > 0,
    )
    buffer = LayoutBuffer(shape, pages, device)
    nowhere = Table(blocks=[spare_page] * pages)
    fill(buffer, rows, [nowhere] * places, spare_page, run, template.masks)
    buffer.host["wanted_W"][:] = np.arange(shape.wanted)
    buffer.send()
    runs, whole = int(np.count_nonzero(buffer.host["runs_R4"][:, 1])), buffer.device
    # Without padding: no empty runs, no extra block.
    return replace(
        whole,
        runs_R4=whole.runs_R4[:runs],
        tails_RT=whole.tails_RT[:runs],
        starts_B=whole.starts_B[:places],
        chains_B=whole.chains_B[:places],
        tables_BP=whole.tables_BP[:places],
    )
