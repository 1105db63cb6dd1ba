"""The drafts of the next step, from the masks of this one: launches the kernels of `draft_kernels`.

Shape letters: B places, K masks, N candidates, X nodes of a depth, S state of the sequential head, C model width.
"""

# A kernel is launched with plain numbers where it names constants.
# pyright: reportArgumentType=false, reportCallIssue=false
from dataclasses import dataclass

import torch
import triton

from stridelm.backends.gpu.draft_kernels import find_candidates, grow_depth, project_inputs
from stridelm.backends.gpu.layers import ROWS, VOCABULARY_TILE, Layers, Layout, Scores, power_of_two
from stridelm.backends.gpu.sampling_kernels import Drawing
from stridelm.backends.gpu.template import Template
from stridelm.backends.gpu.weights import SequentialWeights
from stridelm.sampling import GREEDY_CANDIDATES

_STATE_TILE = 16
TILE_BYTES = 512
"""Bytes of a row that a warp loads in one instruction."""
HELD_TILES = 4
"""Tiles of each row of the sequential head's weights that registers hold until the state is there."""
_FEW_OUTPUTS, _MANY_OUTPUTS = 32, 64
"""Outputs per tile of the sequential head's inputs: for one place, many small tiles fill the device; for several,
large tiles load less."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The nodes of one depth."""

    nodes_X: torch.Tensor
    sources_X: torch.Tensor
    """Each node's parent, as an index into the previous depth."""
    ranks_X: torch.Tensor
    """Each node's rank among its parent's children, 0 for the likeliest."""
    ranks: int


class DraftGrower:
    """Fills in a template's drafts."""

    def __init__(
        self,
        layers: Layers,
        template: Template,
        places: int,
        *,
        candidates: int = GREEDY_CANDIDATES,
        tile_bytes: int = TILE_BYTES,
        held_tiles: int = HELD_TILES,
    ) -> None:
        self.layers, self.template, self.places = layers, template, places
        self.candidates, self.tile_bytes, self.held_tiles = candidates, tile_bytes, held_tiles
        device = layers.weights.device
        by_depth = template.by_depth()
        self._levels = [
            _level(template, nodes, by_depth[depth - 1] if depth else [], device)
            for depth, nodes in enumerate(by_depth)
        ]

    def __call__(self, scores: Scores, layout: Layout, drawing: Drawing, ends_at_B: torch.Tensor) -> None:
        """Write the tokens of the nodes into `layout`. `ends_at_B`: the node at which each place's walk ended."""
        template, weights, places = self.template, self.layers.weights, self.places
        device, masks, real = weights.device, template.masks, self.places * template.nodes
        vocabulary, tiles = scores.logits_WV.shape[1], scores.best_WT.shape[1]
        count = self.candidates
        tokens = torch.empty(places * (masks * count + 1), dtype=torch.int32, device=device)
        scores_BKN = torch.empty(places, masks, count, dtype=torch.float32, device=device)
        noisy = drawing.at_masks(scores, layout, template, ends_at_B) if drawing.kind else None
        find_candidates[(places, masks)](
            scores.logits_WV, scores.best_WT, noisy and noisy.best_RT, layout.ids_M, ends_at_B, layout.starts_B,
            drawing.inverses_B, drawing.keys_B, tokens, scores_BKN, real,
            NODES=template.nodes, K=masks, N=count, V=vocabulary, TILES=tiles, TILE_TILE=power_of_two(tiles),
            VT=VOCABULARY_TILE, SAMPLES=noisy is not None, **self.layers.launch,
            num_warps=1 if noisy is None else 4,  # one warp needs no shared memory; noise is worth more warps
        )  # fmt: skip
        sequential = weights.sequential
        inputs = None if sequential is None else self._project_inputs(sequential, tokens, scores, ends_at_B)
        size = 1 if sequential is None else sequential.size
        tile = min(power_of_two(size), self.tile_bytes // weights.dtype.itemsize)
        held = min(self.held_tiles, triton.cdiv(size, tile))
        state = None
        for depth, level in enumerate(self._levels[1:], start=1):
            is_last, nodes = depth == len(self._levels) - 1, len(level.nodes_X)
            new_state = torch.empty(places * nodes, size, dtype=torch.float32, device=device)
            grow_depth[(1 if is_last or sequential is None else triton.cdiv(size, _STATE_TILE), nodes, places)](
                tokens, scores_BKN, inputs and inputs.moves, inputs and inputs.before, inputs and inputs.read,
                sequential and sequential.carry_weight_SS, drawing.inverses_B, level.sources_X, level.ranks_X,
                level.nodes_X, state, new_state, layout.ids_M, depth,
                NODES=template.nodes, X=nodes, X_BEFORE=len(self._levels[depth - 1].nodes_X), RANKS=level.ranks,
                K=masks, N=count, S=size, BS=_STATE_TILE, BK=tile, HELD=held, FIRST=depth == 1, LAST=is_last,
                MOVED=sequential is not None, SAMPLES=noisy is not None, **self.layers.launch, num_warps=8,
            )  # fmt: skip
            state = new_state

    def _project_inputs(
        self, sequential: SequentialWeights, tokens: torch.Tensor, scores: Scores, ends_at_B: torch.Tensor
    ) -> "_HeadInputs":
        template, weights, places = self.template, self.layers.weights, self.places
        size, rows, masks = sequential.size, len(tokens), places * template.masks
        tile = _FEW_OUTPUTS if places == 1 else _MANY_OUTPUTS
        inputs = _HeadInputs(
            weights.head_VC.new_empty(rows, size),
            weights.head_VC.new_empty(rows, 2 * size),
            weights.head_VC.new_empty(masks, 2 * size),
        )
        columns = triton.cdiv(size, tile) + triton.cdiv(2 * size, tile)
        project_inputs[(columns, triton.cdiv(rows, ROWS) + triton.cdiv(masks, ROWS))](
            tokens, ends_at_B, scores.hidden_WC, weights.head_VC, weights.embedding_VC, sequential.write_weight_SC,
            sequential.before_weight_SC, sequential.output_weight_SC, sequential.bias_S, inputs.moves, inputs.before,
            inputs.read, places * template.nodes,
            B=places, NODES=template.nodes, K=template.masks, N=self.candidates, S=size, C=weights.width, BM=ROWS,
            BN=tile, BK=self.layers.block_k, **self.layers.launch, num_stages=8 // weights.dtype.itemsize,
        )  # fmt: skip
        return inputs


@dataclass(frozen=True, slots=True)
class _HeadInputs:
    """What the sequential head computes for all candidates before any is chosen."""

    moves: torch.Tensor
    """For every candidate (and the pending token): the change of its score per unit of state."""
    before: torch.Tensor
    """For every candidate: what it adds to both halves of the next state's input if it is chosen."""
    read: torch.Tensor
    """For every mask: what its output adds to them."""


def _level(template: Template, nodes: list[int], before: list[int], device: torch.device) -> _Level:
    parents = [template.parents[node] for node in nodes]
    ranks = [
        template.children(parent).index(node) if before else 0 for node, parent in zip(nodes, parents, strict=True)
    ]
    sources = [before.index(parent) if before else 0 for parent in parents]
    tensors = (torch.tensor(each, dtype=torch.int32, device=device) for each in (nodes, sources, ranks))
    return _Level(*tensors, ranks=max(ranks) + 1)
