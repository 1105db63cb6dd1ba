"""One pass over the rows of a step: the kernels in their order.

Shape letters: M rows, W wanted rows, C model width, V vocabulary, B blocks, P pages of a block, T ancestors beyond a
block's pending rows.
"""

# A kernel is launched with plain numbers where it names constants.
# pyright: reportArgumentType=false
from dataclasses import dataclass
from typing import Any

import torch
import triton

from stridelm.model.gpu.attend import attended
from stridelm.model.gpu.memory import PAGE, GpuMemory
from stridelm.model.gpu.products import added, embedded, gated_units, normed_rows, scored, turned_heads
from stridelm.model.gpu.weights import Layer, Product, Weights

ROWS = 64
"""Of a tile; fixed, so that a row's bits are."""
RUN = 16
"""Rows of a chain that attend together."""
TAIL = 64
"""Ancestors that a row may have among the drafts and masks of its block."""
VOCABULARY_TILE = 128


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a step, all int32 and on the device. Rows that only fill it up belong to a block that is nobody's."""

    ids_M: torch.Tensor
    blocks_M: torch.Tensor
    depths_M: torch.Tensor
    """Position, counted from the block's start."""
    offsets_M: torch.Tensor
    """Place in the cache, counted alike."""
    masks_M: torch.Tensor
    """How many masks are among a row's ancestors, itself included: 0 for a real row."""
    run_rows_M: torch.Tensor
    """First row of each run: rows of which each is the child of the one before."""
    run_counts_M: torch.Tensor
    """Their number, at most RUN; 0 where there is no such run."""
    tails_MT: torch.Tensor
    """Per run, the places of its rows' ancestors beyond the pending ones, itself included, counted from the start."""
    wanted_W: torch.Tensor
    """Rows whose logits are wanted; -1 for none."""
    starts_B: torch.Tensor
    chains_B: torch.Tensor
    """Pending rows."""
    tables_BP: torch.Tensor
    """Pages of the cache."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the model says of the wanted rows."""

    hidden_WC: torch.Tensor
    """What the output head read."""
    logits_WV: torch.Tensor
    best_WT: torch.Tensor
    """Of every tile of the vocabulary the best logit, its token, and the sum of e^(logit - best)."""
    best_tokens_WT: torch.Tensor
    exponentials_WT: torch.Tensor


class Layers:
    """Launches the kernels; keeps nothing."""

    def __init__(self, weights: Weights, memory: GpuMemory) -> None:
        self.weights, self.memory = weights, memory
        self.block_k = _power(min(64, weights.width))
        self.half = max(16, _power(weights.head_size // 2))
        self.run = min(RUN, ROWS // (weights.query_heads // weights.key_heads))

    def __call__(self, layout: Layout, *, has_masks: bool, has_trees: bool, layers: tuple[int, ...] = ()) -> "Read":
        """Run the rows through all layers; `layers`: those whose input is wanted."""
        weights, rows = self.weights, len(layout.ids_M)
        residual_MC = torch.empty(rows, weights.width, dtype=torch.float32, device=weights.device)
        x_MC = torch.empty(rows, weights.width, dtype=weights.dtype, device=weights.device)
        query_MX = x_MC.new_empty(rows, weights.query_heads * weights.head_size)
        attended_MX = torch.empty_like(query_MX)
        units_MI = x_MC.new_empty(rows, weights.inner)
        embedded[(rows,)](
            layout.ids_M, layout.masks_M, weights.embedding_VC, weights.mask_embedding_KC, residual_MC, x_MC,
            C=weights.width, BC=_power(weights.width),
        )  # fmt: skip
        inputs: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(weights.layers):
            if index in layers:
                inputs[index] = x_MC.clone()
            self._turn_heads(index, layer, layout, x_MC, query_MX, has_masks)
            self._attend(index, layer, layout, query_MX, attended_MX, has_trees)
            self._add(layer.output, layout, attended_MX, residual_MC, x_MC, has_masks)
            self._gate_units(layer, layout, x_MC, units_MI, has_masks)
            self._add(layer.down, layout, units_MI, residual_MC, x_MC, has_masks)
        if len(weights.layers) in layers:
            every_row = torch.arange(rows, dtype=torch.int32, device=weights.device)
            inputs[len(weights.layers)] = self.normed(residual_MC, every_row)
        return Read(residual_MC, inputs)

    def normed(self, residual_MC: torch.Tensor, wanted_W: torch.Tensor) -> torch.Tensor:
        weights = self.weights
        hidden_WC = torch.empty(len(wanted_W), weights.width, dtype=weights.dtype, device=weights.device)
        normed_rows[(len(wanted_W),)](
            residual_MC, weights.norm_C, wanted_W, hidden_WC, weights.epsilon,
            C=weights.width, BC=_power(weights.width),
        )  # fmt: skip
        return hidden_WC

    def score(self, hidden_WC: torch.Tensor) -> Scores:
        weights, count = self.weights, len(hidden_WC)
        vocabulary = len(weights.head_VC)
        tiles = triton.cdiv(vocabulary, VOCABULARY_TILE)
        logits_WV = torch.empty(count, vocabulary, dtype=torch.float32, device=weights.device)
        best_WT, exponentials_WT = (logits_WV.new_empty(count, tiles) for _ in range(2))
        tokens_WT = torch.empty(count, tiles, dtype=torch.int32, device=weights.device)
        scored[(tiles, triton.cdiv(count, ROWS))](
            hidden_WC, weights.head_VC, weights.head_bias_V, logits_WV, best_WT, tokens_WT, exponentials_WT, count,
            V=vocabulary, C=weights.width, TILES=tiles, BM=ROWS, BN=VOCABULARY_TILE, BK=self.block_k,
            BIASED=weights.head_bias_V is not None,
        )  # fmt: skip
        return Scores(hidden_WC, logits_WV, best_WT, tokens_WT, exponentials_WT)

    def _turn_heads(
        self, index: int, layer: Layer, layout: Layout, x_MC: torch.Tensor, query_MX: torch.Tensor, has_masks: bool
    ) -> None:
        weights, rows, product = self.weights, len(x_MC), layer.heads
        heads, key_heads = weights.query_heads, weights.key_heads
        keys_SGD, values_SGD = self.memory.layers_L2SGD[index]
        turned_heads[(heads + 2 * key_heads, triton.cdiv(rows, ROWS))](
            x_MC, layer.norm_before_attention_C, product.weight_NC, product.bias_N, layer.head_norms_2D,
            product.down_RC, product.up_NR, weights.cosine_PD, weights.sine_PD, layout.blocks_M, layout.depths_M,
            layout.offsets_M, layout.masks_M, layout.starts_B, layout.tables_BP, query_MX, keys_SGD, values_SGD, rows,
            weights.epsilon,
            C=weights.width, H=heads, G=key_heads, D=weights.head_size, HALF=self.half, R=weights.rank,
            PAGES=layout.tables_BP.shape[1], PAGE=PAGE, BM=ROWS, BK=self.block_k, LOW=has_masks,
            BIASED=product.bias_N is not None, HEAD_NORMED=layer.head_norms_2D is not None,
        )  # fmt: skip

    def _attend(
        self, index: int, layer: Layer, layout: Layout, query_MX: torch.Tensor, output_MX: torch.Tensor, has_trees: bool
    ) -> None:
        weights = self.weights
        keys_SGD, values_SGD = self.memory.layers_L2SGD[index]
        attended[(len(layout.run_rows_M), weights.key_heads)](
            query_MX, keys_SGD, values_SGD, output_MX, layout.run_rows_M, layout.run_counts_M, layout.blocks_M,
            layout.depths_M, layout.starts_B, layout.chains_B, layout.tails_MT, layout.tables_BP, weights.scaling,
            H=weights.query_heads, G=weights.key_heads, D=weights.head_size, BD=max(16, _power(weights.head_size)),
            ROWS=self.run, BM=ROWS, BT=64, PAGES=layout.tables_BP.shape[1], PAGE=PAGE, TAIL=TAIL, WINDOW=layer.window,
            TREE=has_trees,
        )  # fmt: skip

    def _add(
        self, product: Product, layout: Layout, x_MI: torch.Tensor, residual_MC: torch.Tensor, sum_MC: torch.Tensor,
        has_masks: bool,
    ) -> None:  # fmt: skip
        outputs, inputs = product.weight_NC.shape
        tile = min(64 if outputs > 1024 else 32, max(16, _power(outputs)))
        added[(triton.cdiv(outputs, tile), triton.cdiv(len(x_MI), ROWS))](
            x_MI, product.weight_NC, product.bias_N, product.down_RC, product.up_NR, layout.masks_M, residual_MC,
            sum_MC, len(x_MI),
            N=outputs, C=inputs, R=self.weights.rank, BM=ROWS, BN=tile, BK=self.block_k, LOW=has_masks,
            BIASED=product.bias_N is not None,
        )  # fmt: skip

    def _gate_units(
        self, layer: Layer, layout: Layout, x_MC: torch.Tensor, units_MI: torch.Tensor, has_masks: bool
    ) -> None:
        weights, product = self.weights, layer.units
        tile = min(64 if weights.inner > 4096 else 32, max(16, _power(weights.inner)))
        gated_units[(triton.cdiv(weights.inner, tile), triton.cdiv(len(x_MC), ROWS))](
            x_MC, layer.norm_before_units_C, product.weight_NC, product.down_RC, product.up_NR, layout.masks_M,
            units_MI, len(x_MC), weights.epsilon,
            N=weights.inner, C=weights.width, R=weights.rank, BM=ROWS, BN=tile, BK=self.block_k, LOW=has_masks,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Read:
    """What the layers leave behind."""

    residual_MC: torch.Tensor
    inputs: dict[int, Any]
    """Layer -> what it read, of the layers that were asked for; their number stands for the output head."""


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
