"""Steps that the device runs by itself: forward, walk, drafts and the next block are one CUDA graph. The host only
reads what was emitted, and may start the next step before it has.

Shape letters: B places, M rows, W = M, C model width, S state of the sequential head, N candidates, D draws of a step.
"""

# A kernel is launched with plain numbers where it names constants.
# pyright: reportArgumentType=false
import statistics
import time
from collections.abc import Sequence as Items

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from stridelm.contracts import GREEDY, Emitted
from stridelm.layout import lineage
from stridelm.model.cuda_graph import Graphed
from stridelm.model.gpu.decide import candidates, cell, gathered, picked, settled
from stridelm.model.gpu.layers import TAIL, VOCABULARY_TILE, Layers, Layout, Scores
from stridelm.model.gpu.layout import runs_of
from stridelm.model.gpu.memory import PAGE
from stridelm.model.gpu.sample import Drawing
from stridelm.model.gpu.template import Template
from stridelm.params import SamplingParams

CANDIDATES = 16
_STATE_TILE = 16
_IN_FLIGHT = 2
"""Steps whose results the host has not read yet."""
_TRIALS = 9


class GpuStepper:
    """Keeps `contracts.Stepper`. Those of one model share weights and cache."""

    def __init__(
        self,
        network: PreTrainedModel,
        layers: Layers,
        template: Template,
        places: int,
        pages: int,
        ends: frozenset[int],
    ) -> None:
        self.layers, self.template, self.places = layers, template, places
        self.drafting = layers.weights.drafting
        self.device = layers.weights.device
        self.draws = template.deepest + 1
        self.layout = _layout(template, places, pages, layers, self.device)
        integers = {"dtype": torch.int32, "device": self.device}
        self.drawing = Drawing(places, self.device)
        self.rooms_B = torch.zeros(places, **integers)
        self.ends_E = torch.tensor(_filled(sorted(ends)), **integers)
        self.ends_at_B, self.counts_B = (torch.zeros(places, **integers) for _ in range(2))
        self.kept_BD = torch.zeros(places, self.draws, **integers)
        self.parents_N = torch.tensor(template.parents, **integers)
        self.results = torch.zeros(places, 1 + 2 * self.draws, **integers)
        """What the host reads: counts, tokens, and how sure the model was of them."""
        self.emitted_BD = torch.zeros(places, self.draws, **integers)
        self.sureness_BD = torch.zeros(places, self.draws, device=self.device)
        self._levels = _levels(template, self.device)
        self._graphed = Graphed(self._step, network, self.device)
        is_cuda = self.device.type == "cuda"
        self._host = [torch.zeros(self.results.shape, dtype=torch.int32, pin_memory=is_cuda) for _ in range(_IN_FLIGHT)]
        self._events = [torch.cuda.Event() for _ in range(_IN_FLIGHT)] if is_cuda else []
        self._launched = self._collected = 0
        self._seconds: float | None = None

    @property
    def drafts(self) -> int:
        return self.template.nodes - 1

    @property
    def rows(self) -> int:
        return self.template.rows

    @property
    def in_flight(self) -> int:
        return self._launched - self._collected

    @property
    def seconds(self) -> float:
        """The middle of some steps, on places that are nobody's."""
        assert not self.in_flight
        if self._seconds is None:
            times: list[float] = []
            for _ in range(_TRIALS):
                started = time.perf_counter()
                self.launch()
                self.collect()
                times.append(time.perf_counter() - started)
            self._seconds = statistics.median(times)
        return self._seconds

    @torch.inference_mode()
    def begin(
        self,
        place: int,
        *,
        cached: int,
        pending: int,
        room: int,
        blocks: Items[int],
        params: SamplingParams = GREEDY,
        seed: int = 0,
        choice: int = 0,
    ) -> None:
        """There are no drafts at first."""
        first = place * self.rows
        ids = [pending, *[-1] * self.drafts]
        self.layout.ids_M[first : first + len(ids)] = torch.tensor(ids, dtype=torch.int32)
        self.layout.starts_B[place] = cached
        self.rooms_B[place] = room
        self.drawing.begin(place, params, seed, choice)
        self.give_blocks(place, blocks)

    @torch.inference_mode()
    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        self.layout.tables_BP[place, : len(blocks)] = torch.tensor(list(blocks), dtype=torch.int32)

    @torch.inference_mode()
    def end(self, place: int) -> None:
        """Nobody is at this place: what its rows write goes where nobody reads."""
        self.rooms_B[place] = 0
        self.drawing.end(place)
        self.layout.starts_B[place] = 0
        self.layout.tables_BP[place] = self.layers.memory.spare_page

    @torch.inference_mode()
    def launch(self) -> None:
        assert self.in_flight < _IN_FLIGHT
        self._graphed(self.drawing.kind)
        slot = self._launched % _IN_FLIGHT
        self._host[slot].copy_(self.results, non_blocking=True)
        if self._events:
            self._events[slot].record()
        self._launched += 1

    def collect(self) -> list[Emitted]:
        """What the earliest step that was not collected gave each place."""
        assert self.in_flight
        slot = self._collected % _IN_FLIGHT
        if self._events:
            self._events[slot].synchronize()
        self._collected += 1
        results = self._host[slot].numpy()
        sureness = results[:, 1 + self.draws :].view(np.float32)
        return [
            Emitted(tuple(tokens[: int(count)]), tuple(sure[: int(count)]))
            for count, tokens, sure in zip(
                results[:, 0], results[:, 1 : 1 + self.draws].tolist(), sureness.tolist(), strict=True
            )
        ]

    def _step(self) -> torch.Tensor:
        """One of several graphs, by what the places' draws need."""
        template, layout = self.template, self.layout
        has_masks = template.masks > 0
        read = self.layers(layout, has_masks=has_masks, has_trees=has_masks)
        scores = self.layers.score(self.layers.normed(read.residual_MC, layout.wanted_W))
        self._settle(scores)
        if not template.is_chain:
            self._gather()
        if has_masks:
            self._draft(scores)
        self.results[:, 0] = self.counts_B
        self.results[:, 1 : 1 + self.draws] = self.emitted_BD
        self.results[:, 1 + self.draws :] = self.sureness_BD.view(torch.int32)
        return self.results

    def _settle(self, scores: Scores) -> None:
        template, tiles = self.template, scores.best_WT.shape[1]
        noisy = self.drawing.at_nodes(scores, self.layout, template) if self.drawing.kind else None
        settled[(self.places,)](
            self.layout.ids_M, self.parents_N, scores.logits_WV, scores.best_WT, scores.best_tokens_WT,
            scores.exponentials_WT, noisy and noisy.best_RT, noisy and noisy.tokens_RT, self.layout.starts_B,
            self.rooms_B, self.ends_E, self.ends_at_B, self.kept_BD, self.emitted_BD, self.sureness_BD, self.counts_B,
            ROWS=template.rows, NODES=template.nodes, NODE_TILE=_power(template.nodes), DRAWS=self.draws,
            V=scores.logits_WV.shape[1], TILES=tiles, TILE_TILE=_power(tiles), ENDS=len(self.ends_E),
            SAMPLES=noisy is not None,
        )  # fmt: skip

    def _gather(self) -> None:
        memory = self.layers.memory.layers_L2SGD
        size = memory.shape[3] * memory.shape[4]
        gathered[(memory.shape[0] * 2, self.places)](
            memory, self.kept_BD, self.counts_B, self.layout.starts_B, self.rooms_B, self.layout.tables_BP,
            memory.stride(1),
            DRAWS=self.draws, SIZE=size, TILE=_power(size), PAGES=self.layout.tables_BP.shape[1], PAGE=PAGE,
        )  # fmt: skip

    def _draft(self, scores: Scores) -> None:
        template, weights, places = self.template, self.layers.weights, self.places
        vocabulary, tiles = scores.logits_WV.shape[1], scores.best_WT.shape[1]
        tokens_BKN = torch.empty(places, template.masks, CANDIDATES, dtype=torch.int32, device=self.device)
        scores_BKN = torch.empty(tokens_BKN.shape, dtype=torch.float32, device=self.device)
        outputs_BKC = scores.hidden_WC.new_empty(places, template.masks, weights.width)
        drawing, noisy = self.drawing, None
        if drawing.kind:
            noisy = drawing.at_masks(scores, self.layout, template, self.ends_at_B)
        candidates[(places, template.masks)](
            scores.logits_WV, scores.best_WT, noisy and noisy.best_RT, scores.hidden_WC, self.ends_at_B,
            self.layout.starts_B, drawing.inverses_B, drawing.keys_B, tokens_BKN, scores_BKN, outputs_BKC,
            ROWS=template.rows, NODES=template.nodes, MASKS=template.masks, N=CANDIDATES, V=vocabulary, TILES=tiles,
            TILE_TILE=_power(tiles), VT=VOCABULARY_TILE, C=weights.width, BC=_power(weights.width),
            SAMPLES=noisy is not None,
        )  # fmt: skip
        drafting = self.drafting
        moves = read = state = None
        if drafting is not None:
            rows = weights.head_VC[tokens_BKN.flatten()]
            moves = rows.to(drafting.write_weight_CS.dtype) @ drafting.write_weight_CS
            unit = functional.rms_norm(outputs_BKC.float(), (weights.width,)).to(drafting.bias_S.dtype)
            read = functional.linear(unit.flatten(0, 1), drafting.output_weight_SC, drafting.bias_S)
        before = 0
        for depth, (nodes, sources, children_XR) in enumerate(self._levels):
            count = len(nodes)
            if drafting is not None:
                state = self._read(depth, nodes, sources, state, before, read)
            picked[(places, count)](
                tokens_BKN, scores_BKN, moves, state, drawing.inverses_B, children_XR, self.layout.ids_M, depth,
                ROWS=template.rows, X=count, BRANCHES=children_XR.shape[1], MASKS=template.masks, N=CANDIDATES,
                S=1 if drafting is None else drafting.size, BS=64, MOVED=drafting is not None,
                SAMPLES=noisy is not None,
            )  # fmt: skip
            before = count

    def _read(
        self,
        depth: int,
        nodes: torch.Tensor,
        sources: torch.Tensor,
        state: torch.Tensor | None,
        before: int,
        read: torch.Tensor | None,
    ) -> torch.Tensor:
        """The sequential head's states once it has read the tokens of a depth's nodes."""
        drafting, template, weights = self.drafting, self.template, self.layers.weights
        assert drafting is not None
        rows = self.places * len(nodes)
        new_state = torch.empty(rows, drafting.size, dtype=torch.float32, device=self.device)
        cell[(-(-drafting.size // _STATE_TILE), -(-rows // 16))](
            self.layout.ids_M, weights.embedding_VC, drafting.before_weight_SC, drafting.carry_weight_SS, read, nodes,
            sources, state, new_state, rows, depth,
            ROWS=template.rows, X=len(nodes), X_BEFORE=before, MASKS=template.masks, C=weights.width, S=drafting.size,
            BX=16, BS=_STATE_TILE, BK=64,
        )  # fmt: skip
        return new_state


def _layout(template: Template, places: int, pages: int, layers: Layers, device: torch.device) -> Layout:
    """The rows of all places, of which only the ids and starts will change."""
    parents = np.array(template.row_parents)
    sees, depths = lineage(template.row_parents)
    is_mask = np.arange(template.rows) >= template.nodes
    mask_depths = np.where(is_mask, (sees & is_mask[None, :]).sum(axis=1), 0)
    first, counts = runs_of(parents, layers.run)
    tails = np.zeros((len(first), TAIL), np.int32)
    for run, last in enumerate((first + counts - 1).tolist()):
        row = last
        while row > 0:
            tails[run, depths[row] - 1] = row
            row = int(parents[row])

    def spread(of_one: np.ndarray, step: int = 0) -> torch.Tensor:
        copies = [of_one + step * place for place in range(places)]
        return torch.from_numpy(np.concatenate(copies).astype(np.int32)).to(device)

    blocks = np.repeat(np.arange(places), template.rows)
    integers = {"dtype": torch.int32, "device": device}
    return Layout(
        ids_M=torch.zeros(places * template.rows, **integers),
        blocks_M=torch.from_numpy(blocks.astype(np.int32)).to(device),
        depths_M=spread(depths),
        offsets_M=spread(np.arange(template.rows)),
        masks_M=spread(mask_depths),
        run_rows_M=spread(first, template.rows),
        run_counts_M=spread(counts),
        tails_MT=spread(tails),
        wanted_W=torch.arange(places * template.rows, **integers),
        starts_B=torch.zeros(places, **integers),
        chains_B=torch.ones(places, **integers),
        tables_BP=torch.full((places, pages), layers.memory.spare_page, **integers),
    )


Level = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A depth's nodes that have children; of each, which one of the level before it hangs off; and their children, by
rank, -1 where there is none."""


def _levels(template: Template, device: torch.device) -> list[Level]:
    levels = template.levels()
    found: list[Level] = []
    for depth, nodes in enumerate(levels):
        sources = [levels[depth - 1].index(template.parents[node]) if depth else 0 for node in nodes]
        children = [template.children(node) for node in nodes]
        widest = max(map(len, children))
        filled = [[*own, *[-1] * (widest - len(own))] for own in children]
        found.append(
            tuple(torch.tensor(each, dtype=torch.int32, device=device) for each in (nodes, sources, filled))  # type: ignore[arg-type]
        )
    return found


def _filled(ends: list[int]) -> list[int]:
    """Up to a power of two, by what no token is."""
    return [*ends, *[-1] * (_power(max(1, len(ends))) - len(ends))]


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
