"""One pass over the rows of a step: launches the kernels of all layers in order.

Shape letters: M rows, W wanted rows, C model width, V vocabulary, B blocks, P pages of a block, T ancestors beyond a
block's pending rows.
"""

# A kernel is launched with plain numbers where it names constants.
# pyright: reportArgumentType=false
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from stridelm.backends.gpu.attention_kernels import attend_spans, join_spans
from stridelm.backends.gpu.memory import PAGE, GpuMemory
from stridelm.backends.gpu.product_kernels import (
    add_product,
    embed_rows,
    gate_units,
    norm_rows,
    project_heads,
    score_rows,
)
from stridelm.backends.gpu.weights import Layer, Product, Weights

ROWS = 64
"""Rows per tile; fixed, so that a row's bits are."""
MAX_QUERIES = 32
"""Maximum number of queries (rows x query heads of one key head) that one program attends with."""
SPAN = 128
"""Positions that attention sums over at once; fixed for the same reason."""
MAX_SPAN_FLOATS = 1 << 26
"""Maximum size of the spans' results before they are joined: longer steps attend in parts."""
TAIL = 64
"""Maximum number of ancestors that a row may have among the drafts and masks of its block."""
VOCABULARY_TILE = 128
_HEAD_LOADS = 4
"""Loads in flight per program of the output head: two such programs fit side by side."""
_LARGE_WIDTH = 1024
"""Above this width a model's steps are bound by memory bandwidth rather than by latency."""
WIDE_HEAD = 64
"""Heads of at least this size are split over two programs."""
_SUM_BLOCK = 128
"""Inputs of a sum that are loaded at once."""
_PRODUCTS = 4
"""Products per layer."""
_MAX_PARTS = 3
"""Maximum number of linear layers that one product joins."""
_PROGRAMS = 128
"""Roughly how many programs a device runs side by side: sums are cut into that many tiles. Fixed as well."""
_OTHER_SHARED = 16 << 10
"""Bytes of shared memory that sums over tiles may take."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a step, all int32 and on the device: real rows first, then masks. Padding rows belong to an extra
    block that no sequence owns."""

    ids_M: torch.Tensor
    blocks_M: torch.Tensor
    depths_M: torch.Tensor
    """Position, relative to the block's start."""
    offsets_M: torch.Tensor
    """Slot in the cache, relative to the block's start."""
    masks_M: torch.Tensor
    """How many masks are among a row's ancestors, itself included: 0 for a real row."""
    runs_R4: torch.Tensor
    """For each run (rows each of which is the child of the previous one): its first row, the number of rows, their
    block and the first row's depth. A run of 0 rows is padding."""
    tails_RT: torch.Tensor
    """For each run, the cache offsets of its rows' ancestors beyond the block's chain, the rows themselves included."""
    wanted_W: torch.Tensor
    """Rows whose logits are wanted; -1 for none."""
    starts_B: torch.Tensor
    chains_B: torch.Tensor
    """Length of the chain at the start of each block: rows that are ancestors of all rows after them."""
    tables_BP: torch.Tensor
    """Pages of the cache."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the model says of the wanted rows."""

    hidden_WC: torch.Tensor
    """What the output head read."""
    logits_WV: torch.Tensor
    best_WT: torch.Tensor
    """For every tile of the vocabulary: the best logit; then its token, and the sum of e^(logit - best)."""
    best_tokens_WT: torch.Tensor
    exponentials_WT: torch.Tensor


class Layers:
    """Launches the kernels; has no state between passes."""

    def __init__(self, weights: Weights, memory: GpuMemory, *, wide_head: int = WIDE_HEAD) -> None:
        self.weights, self.memory = weights, memory
        self.max_span_floats = MAX_SPAN_FLOATS
        is_large = weights.width > _LARGE_WIDTH
        self.block_k = power_of_two(min(64, weights.width))
        self.max_loads = 8 if is_large else 5
        """Maximum number of loads in flight per program: a large model needs many to keep the memory busy; a small
        model's programs are too short for them."""
        self.piece = min(32, weights.rank)
        """Ranks of a low-rank part that one program computes."""
        self.unit_tile = min(64 if weights.inner > 4096 else 32, max(16, power_of_two(weights.inner)))
        self.sum_tile = max(16, power_of_two(_tiles(weights.width, _PROGRAMS)))
        self.tiles = _tiles(weights.width, self.sum_tile)
        """Tiles in which the residual is summed."""
        is_whole = weights.layers[0].head_norms_2D is not None or weights.head_size < wide_head
        self.split = 1 if is_whole else 2
        """Programs per head: a wide head has much to load."""
        self.half = max(16, power_of_two(weights.head_size // 2 // self.split))
        self.launch = _launch_options(weights.device, is_ahead=not is_large)
        self._shared = _shared_memory(weights.device)
        share = weights.query_heads // weights.key_heads
        self.run = max(1, MAX_QUERIES // share)
        """Rows of a chain that attend together."""
        self.queries = max(16, power_of_two(self.run * share))

    def __call__(
        self, layout: Layout, *, real: int, spans: int, has_trees: bool, layers: tuple[int, ...] = ()
    ) -> "LayerOutputs":
        """Run the rows through all layers. `real`: number of rows that are not masks; `spans`: spans that cover all
        positions; `layers`: those whose input is wanted."""
        weights, rows = self.weights, len(layout.ids_M)
        residual_MC = torch.empty(rows, weights.width, dtype=torch.float32, device=weights.device)
        x_MC = torch.empty(rows, weights.width, dtype=weights.dtype, device=weights.device)
        query_MX = x_MC.new_empty(rows, weights.query_heads * weights.head_size)
        attended_MX = torch.empty_like(query_MX)
        units_MI = x_MC.new_empty(rows, weights.inner)
        squares_MT = residual_MC.new_empty(rows, self.tiles)
        norms = [
            norm for layer in weights.layers for norm in (layer.norm_before_attention_C, layer.norm_before_units_C)
        ]
        norms.append(weights.norm_C)
        state = _State.of(self, residual_MC, x_MC, squares_MT, real)
        embed_rows[(rows,)](
            layout.ids_M, layout.masks_M, weights.embedding_VC, weights.mask_embedding_KC, norms[0], residual_MC, x_MC,
            squares_MT,
            C=weights.width, BC=power_of_two(weights.width), TILES=self.tiles, BT=power_of_two(self.tiles),
            **self.launch,
        )  # fmt: skip
        inputs: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(weights.layers):
            if index in layers:
                inputs[index] = residual_MC.to(weights.dtype, copy=True)
            self._turn_heads(index, layer, layout, state, query_MX)
            self.attend(index, layout, query_MX, attended_MX, spans=spans, has_trees=has_trees)
            self._add(layer.output, layout, attended_MX, state, norms[2 * index + 1])
            self._gate_units(layer, layout, state, units_MI)
            self._add(layer.down, layout, units_MI, state, norms[2 * index + 2])
        if len(weights.layers) in layers:
            every_row = torch.arange(rows, dtype=torch.int32, device=weights.device)
            inputs[len(weights.layers)] = self.normed(residual_MC, every_row)
        return LayerOutputs(residual_MC, inputs)

    def normed(self, residual_MC: torch.Tensor, wanted_W: torch.Tensor) -> torch.Tensor:
        weights = self.weights
        hidden_WC = torch.empty(len(wanted_W), weights.width, dtype=weights.dtype, device=weights.device)
        norm_rows[(len(wanted_W),)](
            residual_MC, weights.norm_C, wanted_W, hidden_WC, weights.epsilon,
            C=weights.width, BC=power_of_two(weights.width), **self.launch,
        )  # fmt: skip
        return hidden_WC

    def score(self, hidden_WC: torch.Tensor) -> Scores:
        weights, count = self.weights, len(hidden_WC)
        vocabulary = len(weights.head_VC)
        tiles = _tiles(vocabulary, VOCABULARY_TILE)
        logits_WV = torch.empty(count, vocabulary, dtype=torch.float32, device=weights.device)
        best_WT, exponentials_WT = (logits_WV.new_empty(count, tiles) for _ in range(2))
        tokens_WT = torch.empty(count, tiles, dtype=torch.int32, device=weights.device)
        score_rows[(_tiles(count, ROWS), tiles)](
            hidden_WC, weights.head_VC, weights.head_bias_V, logits_WV, best_WT, tokens_WT, exponentials_WT, count,
            V=vocabulary, C=weights.width, TILES=tiles, BM=ROWS, BN=VOCABULARY_TILE, BK=self.block_k,
            BIASED=weights.head_bias_V is not None, **self.launch,
            **self._loads(VOCABULARY_TILE, self.block_k, _HEAD_LOADS),
        )  # fmt: skip
        return Scores(hidden_WC, logits_WV, best_WT, tokens_WT, exponentials_WT)

    def _loads(self, columns: int, block: int, most: int, state: "_State | None" = None) -> dict[str, int]:
        """The number of pipeline stages that fit in shared memory. `columns`: outputs of the weights' tile; `block`:
        inputs loaded at once; `state`: if its mask rows have low-rank parts, their second factors take memory, too."""
        size = self.weights.dtype.itemsize
        held = columns * self.weights.rank * size if state is not None and state.pieces else 0
        return {"num_stages": max(1, min(most, (self._shared - held) // ((ROWS + columns) * block * size)))}

    def _turn_heads(self, index: int, layer: Layer, layout: Layout, state: "_State", query_MX: torch.Tensor) -> None:
        weights, rows, product = self.weights, len(state.x_MC), layer.heads
        heads, key_heads = weights.query_heads, weights.key_heads
        keys_SGD, values_SGD = self.memory.layers_L2SGD[index]
        programs = (heads + 2 * key_heads) * self.split + 3 * state.pieces
        project_heads[(state.tiles, programs)](
            state.x_MC, state.squares_MT, product.weight_KNC, product.bias_N, layer.head_norms_2D,
            product.down_RC, product.up_NR, *state.low(), weights.cosine_PD, weights.sine_PD, layout.blocks_M,
            layout.depths_M, layout.offsets_M, layout.masks_M, layout.starts_B, layout.tables_BP, query_MX, keys_SGD,
            values_SGD, state.real, rows, weights.epsilon,
            C=weights.width, H=heads, G=key_heads, D=weights.head_size, HALF=self.half, SPLIT=self.split,
            R=weights.rank, BR=self.piece, PAGES=layout.tables_BP.shape[1], PAGE=PAGE, BM=ROWS, BK=self.block_k,
            TILES=self.tiles, BT=power_of_two(self.tiles), MERGED=state.is_merged, LOW=state.pieces > 0,
            BIASED=product.bias_N is not None, HEAD_NORMED=layer.head_norms_2D is not None, **self.launch,
            **self._loads(2 * self.half, self.block_k, self.max_loads, state),
        )  # fmt: skip

    def attend(
        self,
        index: int,
        layout: Layout,
        query_MX: torch.Tensor,
        output_MX: torch.Tensor,
        *,
        spans: int,
        has_trees: bool,
    ) -> None:
        """Attention of one layer."""
        weights, rows = self.weights, len(query_MX)
        heads, key_heads, size = weights.query_heads, weights.key_heads, weights.head_size
        keys_SGD, values_SGD = self.memory.layers_L2SGD[index]
        part = max(1, min(rows, self.max_span_floats // (heads * spans * size)))
        sums = torch.empty(part * heads * spans, size, dtype=torch.float32, device=weights.device)
        bests, totals = (sums.new_empty(len(sums)) for _ in range(2))
        shape = {"H": heads, "G": key_heads, "D": size, "BD": max(16, power_of_two(size)), "SPAN": SPAN, "SPANS": spans,
                 "WINDOW": weights.layers[index].window, **self.launch}  # fmt: skip
        for first in range(0, rows, part):
            attend_spans[(len(layout.runs_R4), key_heads, spans)](
                query_MX, keys_SGD, values_SGD, layout.runs_R4, layout.starts_B, layout.chains_B, layout.tails_RT,
                layout.tables_BP, sums, bests, totals, weights.scaling, first, first + part,
                ROWS=self.run, BM=self.queries, PAGES=layout.tables_BP.shape[1], PAGE=PAGE, TAIL=TAIL,
                TREE=has_trees, **shape,
            )  # fmt: skip
            join_spans[(min(part, rows - first), key_heads)](
                sums, bests, totals, layout.blocks_M, layout.depths_M, layout.starts_B, output_MX, first,
                BX=power_of_two(heads // key_heads), **shape,
            )  # fmt: skip

    def _add(
        self, product: Product, layout: Layout, inputs_MI: torch.Tensor, state: "_State", norm_C: torch.Tensor
    ) -> None:
        """`norm_C`: the weight of the norm that reads the sum."""
        _, outputs, inputs = product.weight_KNC.shape
        block = power_of_two(min(_SUM_BLOCK, inputs))
        add_product[(state.tiles, self.tiles + state.pieces)](
            inputs_MI, product.weight_KNC, product.bias_N, product.down_RC, product.up_NR, *state.low(), layout.masks_M,
            state.residual_MC, norm_C, state.x_MC, state.squares_MT, state.real, len(inputs_MI),
            N=outputs, C=inputs, R=self.weights.rank, BR=self.piece, BM=ROWS, BN=self.sum_tile, BK=block,
            MERGED=state.is_merged, LOW=state.pieces > 0, BIASED=product.bias_N is not None, **self.launch,
            **self._loads(max(self.sum_tile, self.piece if state.pieces else 0), block, self.max_loads, state),
        )  # fmt: skip

    def _gate_units(self, layer: Layer, layout: Layout, state: "_State", units_MI: torch.Tensor) -> None:
        weights, product = self.weights, layer.units
        tile = self.unit_tile
        gate_units[(state.tiles, _tiles(weights.inner, tile) + 2 * state.pieces)](
            state.x_MC, state.squares_MT, product.weight_KNC, product.down_RC, product.up_NR, *state.low(),
            layout.masks_M, units_MI, state.real, len(units_MI), weights.epsilon,
            N=weights.inner, C=weights.width, R=weights.rank, BR=self.piece, BM=ROWS, BN=tile, BK=self.block_k,
            TILES=self.tiles, BT=power_of_two(self.tiles), MERGED=state.is_merged, LOW=state.pieces > 0, **self.launch,
            **self._loads(2 * tile, self.block_k, self.max_loads, state),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _State:
    """What one layer hands to the next, and how mask rows are treated."""

    residual_MC: torch.Tensor
    x_MC: torch.Tensor
    """The residual times the weight of the norm that reads it."""
    squares_MT: torch.Tensor
    """For each tile of the residual, the sum of its squares."""
    real: int
    is_merged: bool
    """Whether mask rows read weights of their own."""
    pieces: int
    """Pieces in which each of their low-rank parts is computed; 0 if there are none."""
    tiles: int
    """Tiles of rows."""
    low_MX: torch.Tensor | None
    """The products of the rows with the first low-rank factors."""
    done: Iterator[torch.Tensor]
    """For every product to come, the counters of pieces that are computed, one per tile of rows."""

    @classmethod
    def of(
        cls, layers: Layers, residual_MC: torch.Tensor, x_MC: torch.Tensor, squares_MT: torch.Tensor, real: int
    ) -> "_State":
        weights, rows = layers.weights, len(x_MC)
        has_masks = real < rows
        is_merged = has_masks and weights.is_merged
        # A row's bits must not depend on masks in the same step. In float32 the kernels with and without low-rank parts
        # gave different last bits on an H200 (in bfloat16 they did not), so float32 always runs those with parts.
        has_parts = weights.layers[0].heads.down_RC is not None
        is_low = has_parts and (has_masks or weights.dtype == torch.float32)
        # No tile holds rows that read different weights.
        tiles = _tiles(real, ROWS) + _tiles(rows - real, ROWS) if is_merged else _tiles(rows, ROWS)
        low_MX, done_PT = None, ()
        if is_low:
            low_MX = x_MC.new_empty(rows, _MAX_PARTS * weights.rank)
            done_PT = torch.zeros(_PRODUCTS * len(weights.layers), tiles, dtype=torch.int32, device=x_MC.device)
        pieces = weights.rank // layers.piece if is_low else 0
        return cls(residual_MC, x_MC, squares_MT, real, is_merged, pieces, tiles, low_MX, iter(done_PT))

    def low(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The low-rank results and counters of the next product."""
        return self.low_MX, next(self.done, None)


@dataclass(frozen=True, slots=True)
class LayerOutputs:
    """The result of a pass over all layers."""

    residual_MC: torch.Tensor
    inputs: dict[int, Any]
    """Layer -> its input, for the layers that were asked for. The number of layers stands for the output head."""


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def _launch_options(device: torch.device, *, is_ahead: bool) -> dict[str, Any]:
    """Options for all launches on a device. Products and sums are not fused: a row's bits must not depend on what else
    a variant of a kernel sums up."""
    if device.type != "cuda":
        return {"AHEAD": False}
    is_hopper = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    is_ahead = is_ahead and is_hopper
    return {"AHEAD": is_ahead, "enable_fp_fusion": False} | ({"launch_pdl": True} if is_ahead else {})


def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use for its loads."""
    if device.type != "cuda":
        return 1 << 16
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin - _OTHER_SHARED
