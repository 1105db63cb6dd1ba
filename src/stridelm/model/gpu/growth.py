"""The drafts of the next step, from the masks of this one: launches the kernels of `draft`.

Shape letters: B places, K masks, N candidates, X nodes of a depth, S state of the sequential head, C model width.
"""

# A kernel is launched with plain numbers where it names constants.
# pyright: reportArgumentType=false
from dataclasses import dataclass

import torch
from torch.nn import functional

from stridelm.model.gpu.draft import candidates, grown
from stridelm.model.gpu.layers import VOCABULARY_TILE, Layers, Layout, Scores, power
from stridelm.model.gpu.sample import Drawing
from stridelm.model.gpu.template import Template

CANDIDATES = 16
"""The likeliest tokens of each mask, among which its drafts are chosen."""
_STATE_TILE = 16


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
        assert max(len(level.nodes_X) for level in self._levels) <= 16, "a tile of nodes has 16"

    def __call__(self, scores: Scores, layout: Layout, drawing: Drawing, ends_at_B: torch.Tensor) -> None:
        """Write the tokens of the nodes into `layout`. `ends_at_B`: the node where each place's walk has ended."""
        template, weights, places = self.template, self.layers.weights, self.places
        device, masks, real = weights.device, template.masks, self.places * template.nodes
        vocabulary, tiles = scores.logits_WV.shape[1], scores.best_WT.shape[1]
        tokens = torch.empty(places, masks * CANDIDATES + 1, dtype=torch.int32, device=device)
        scores_BKN = torch.empty(places, masks, CANDIDATES, dtype=torch.float32, device=device)
        outputs_BKC = scores.hidden_WC.new_empty(places, masks, weights.width)
        noisy = drawing.at_masks(scores, layout, template, ends_at_B) if drawing.kind else None
        candidates[(places, masks)](
            scores.logits_WV, scores.best_WT, noisy and noisy.best_RT, scores.hidden_WC, layout.ids_M, ends_at_B,
            layout.starts_B, drawing.inverses_B, drawing.keys_B, tokens, scores_BKN, outputs_BKC, real,
            NODES=template.nodes, K=masks, N=CANDIDATES, V=vocabulary, TILES=tiles, TILE_TILE=power(tiles),
            VT=VOCABULARY_TILE, C=weights.width, BC=power(weights.width), SAMPLES=noisy is not None,
            **self.layers.launch,
        )  # fmt: skip
        drafting = weights.drafting
        moves = before = read = state = None
        if drafting is not None:
            moves = weights.head_VC[tokens.flatten()] @ drafting.write_weight_CS
            before = functional.linear(_unit(weights.embedding_VC[tokens.flatten()]), drafting.before_weight_SC)
            read = functional.linear(_unit(outputs_BKC.flatten(0, 1)), drafting.output_weight_SC, drafting.bias_S)
        size = 1 if drafting is None else drafting.size
        for depth, level in enumerate(self._levels):
            is_last, count = depth == len(self._levels) - 1, len(level.nodes_X)
            if drafting is None and depth == 0:
                continue  # there is nothing to read
            new_state = torch.empty(places * count, size, dtype=torch.float32, device=device)
            grown[(1 if is_last or drafting is None else -(-size // _STATE_TILE), places)](
                tokens, scores_BKN, moves, before, read, drafting and drafting.carry_weight_SS, drawing.inverses_B,
                level.sources_X, level.ranks_X, level.nodes_X, state, new_state, layout.ids_M, depth,
                NODES=template.nodes, X=count, X_BEFORE=len(self._levels[depth - 1].nodes_X) if depth else 0,
                RANKS=level.ranks, K=masks, N=CANDIDATES, S=size, BX=16, BS=_STATE_TILE, BK=64, FIRST=depth == 0,
                LAST=is_last, MOVED=drafting is not None, SAMPLES=noisy is not None, **self.layers.launch,
            )  # fmt: skip
            state = new_state


def _level(template: Template, nodes: list[int], before: list[int], device: torch.device) -> _Level:
    parents = [template.parents[node] for node in nodes]
    ranks = [
        template.children(parent).index(node) if before else 0 for node, parent in zip(nodes, parents, strict=True)
    ]
    sources = [before.index(parent) if before else 0 for parent in parents]
    tensors = (torch.tensor(each, dtype=torch.int32, device=device) for each in (nodes, sources, ranks))
    return _Level(*tensors, ranks=max(ranks) + 1)


def _unit(x_XC: torch.Tensor) -> torch.Tensor:
    """As the sequential head reads outputs and embeddings."""
    return functional.rms_norm(x_XC.float(), x_XC.shape[-1:]).to(x_XC.dtype)
