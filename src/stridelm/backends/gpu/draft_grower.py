"""The drafts of the next step, from the masks of this one: launches the kernels of `draft`.

Shape letters: B places, K masks, N candidates, X nodes of a depth, S state of the sequential head, C model width.
"""

# A kernel is launched with plain numbers where it names constants.
# pyright: reportArgumentType=false, reportCallIssue=false
from dataclasses import dataclass

import torch
import triton

from stridelm.backends.gpu.draft_kernels import candidates, grown, taken_in
from stridelm.backends.gpu.layers import ROWS, VOCABULARY_TILE, Layers, Layout, Scores, power
from stridelm.backends.gpu.sampling_kernels import Drawing
from stridelm.backends.gpu.template import Template
from stridelm.backends.gpu.weights import Drafting

CANDIDATES = 16
"""The likeliest tokens of each mask, among which its drafts are chosen."""
_STATE_TILE = 16
_READ_AT_ONCE = 512
"""Bytes of a row that a warp reads in one instruction."""
_HELD = 4
"""Times as much that registers hold of a row of the sequential head's weights until the state is there."""
_FEW_OUTPUTS, _MANY_OUTPUTS = 32, 64
"""Of a tile of what the sequential head takes in: many tiles fill the device where there is one place, large ones read
less where there are several."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The nodes of one depth."""

    nodes_X: torch.Tensor
    sources_X: torch.Tensor
    """Which node of the depth before each hangs off."""
    ranks_X: torch.Tensor
    """Its place among that one's children, the likeliest being 0."""
    ranks: int


class Growth:
    """Fills in a template's drafts."""

    def __init__(self, layers: Layers, template: Template, places: int) -> None:
        self.layers, self.template, self.places = layers, template, places
        device = layers.weights.device
        by_depth = template.by_depth()
        self._levels = [
            _level(template, nodes, by_depth[depth - 1] if depth else [], device)
            for depth, nodes in enumerate(by_depth)
        ]

    def __call__(self, scores: Scores, layout: Layout, drawing: Drawing, ends_at_B: torch.Tensor) -> None:
        """Write the tokens of the nodes into `layout`. `ends_at_B`: the node where each place's walk has ended."""
        template, weights, places = self.template, self.layers.weights, self.places
        device, masks, real = weights.device, template.masks, self.places * template.nodes
        vocabulary, tiles = scores.logits_WV.shape[1], scores.best_WT.shape[1]
        tokens = torch.empty(places * (masks * CANDIDATES + 1), dtype=torch.int32, device=device)
        scores_BKN = torch.empty(places, masks, CANDIDATES, dtype=torch.float32, device=device)
        noisy = drawing.at_masks(scores, layout, template, ends_at_B) if drawing.kind else None
        candidates[(places, masks)](
            scores.logits_WV, scores.best_WT, noisy and noisy.best_RT, layout.ids_M, ends_at_B, layout.starts_B,
            drawing.inverses_B, drawing.keys_B, tokens, scores_BKN, real,
            NODES=template.nodes, K=masks, N=CANDIDATES, V=vocabulary, TILES=tiles, TILE_TILE=power(tiles),
            VT=VOCABULARY_TILE, SAMPLES=noisy is not None, **self.layers.launch,
            num_warps=1 if noisy is None else 4,  # one warp needs no shared memory, noise takes more of them
        )  # fmt: skip
        drafting = weights.drafting
        taken = None if drafting is None else self._take_in(drafting, tokens, scores, ends_at_B)
        size = 1 if drafting is None else drafting.size
        tile = min(power(size), _READ_AT_ONCE // weights.dtype.itemsize)
        state = None
        for depth, level in enumerate(self._levels[1:], start=1):
            is_last, count = depth == len(self._levels) - 1, len(level.nodes_X)
            new_state = torch.empty(places * count, size, dtype=torch.float32, device=device)
            grown[(1 if is_last or drafting is None else triton.cdiv(size, _STATE_TILE), count, places)](
                tokens, scores_BKN, taken and taken.moves, taken and taken.before, taken and taken.read,
                drafting and drafting.carry_weight_SS, drawing.inverses_B, level.sources_X, level.ranks_X,
                level.nodes_X, state, new_state, layout.ids_M, depth,
                NODES=template.nodes, X=count, X_BEFORE=len(self._levels[depth - 1].nodes_X), RANKS=level.ranks,
                K=masks, N=CANDIDATES, S=size, BS=_STATE_TILE, BK=tile, HELD=min(_HELD, triton.cdiv(size, tile)),
                FIRST=depth == 1, LAST=is_last, MOVED=drafting is not None, SAMPLES=noisy is not None,
                **self.layers.launch, num_warps=8,
            )  # fmt: skip
            state = new_state

    def _take_in(self, drafting: Drafting, tokens: torch.Tensor, scores: Scores, ends_at_B: torch.Tensor) -> "_TakenIn":
        template, weights, places = self.template, self.layers.weights, self.places
        size, rows, masks = drafting.size, len(tokens), places * template.masks
        tile = _FEW_OUTPUTS if places == 1 else _MANY_OUTPUTS
        taken = _TakenIn(
            weights.head_VC.new_empty(rows, size),
            weights.head_VC.new_empty(rows, 2 * size),
            weights.head_VC.new_empty(masks, 2 * size),
        )
        columns = triton.cdiv(size, tile) + triton.cdiv(2 * size, tile)
        taken_in[(columns, triton.cdiv(rows, ROWS) + triton.cdiv(masks, ROWS))](
            tokens, ends_at_B, scores.hidden_WC, weights.head_VC, weights.embedding_VC, drafting.write_weight_SC,
            drafting.before_weight_SC, drafting.output_weight_SC, drafting.bias_S, taken.moves, taken.before,
            taken.read, places * template.nodes,
            B=places, NODES=template.nodes, K=template.masks, N=CANDIDATES, S=size, C=weights.width, BM=ROWS, BN=tile,
            BK=self.layers.block_k, **self.layers.launch, num_stages=8 // weights.dtype.itemsize,
        )  # fmt: skip
        return taken


@dataclass(frozen=True, slots=True)
class _TakenIn:
    """What the sequential head takes from all that may be drafted, and gives to it."""

    moves: torch.Tensor
    """Of every candidate, the pending token among them, what its score gains per unit of state."""
    before: torch.Tensor
    """Of every one, what is added to both halves of the state's input where it comes before."""
    read: torch.Tensor
    """Of every mask, the same."""


def _level(template: Template, nodes: list[int], before: list[int], device: torch.device) -> _Level:
    parents = [template.parents[node] for node in nodes]
    ranks = [
        template.children(parent).index(node) if before else 0 for node, parent in zip(nodes, parents, strict=True)
    ]
    sources = [before.index(parent) if before else 0 for parent in parents]
    tensors = (torch.tensor(each, dtype=torch.int32, device=device) for each in (nodes, sources, ranks))
    return _Level(*tensors, ranks=max(ranks) + 1)
