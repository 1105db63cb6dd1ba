"""Steps that the device runs by itself: forward, walk, drafts and the next block are one CUDA graph. The host only
reads what was emitted, and may launch the next step before it has read it.

Shape letters: B places, D draws of a step, E tokens that end a text, N nodes.
"""

# A kernel is launched with plain numbers where it names constants.
# pyright: reportArgumentType=false
from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from stridelm.backends.common.cuda_graph import Graphed
from stridelm.backends.common.step_seconds import median_seconds
from stridelm.backends.gpu.accept_kernels import accept_drafts, compact_cache
from stridelm.backends.gpu.draft_grower import DraftGrower
from stridelm.backends.gpu.layers import LayerOutputs, Layers, Scores, power_of_two
from stridelm.backends.gpu.layout import spans_for, template_layout
from stridelm.backends.gpu.memory import PAGE
from stridelm.backends.gpu.sampling_kernels import Drawing
from stridelm.backends.gpu.template import Template
from stridelm.stepper import Continuation, Emitted


class GpuStepper:
    """Implements `stepper.Stepper`. Steppers of one model share weights and cache."""

    max_in_flight = 2
    plans = False
    obeys = frozenset({
        *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "choice", "eos_ids", "is_traced"),
    })  # fmt: skip

    def __init__(
        self,
        network: PreTrainedModel,
        layers: Layers,
        template: Template,
        places: int,
        pages: int,
        ends: frozenset[int],
        pool: Any = None,
    ) -> None:
        """`pool`: a memory pool shared with graphs that never run at the same time as this one's."""
        self.layers, self.template, self.places = layers, template, places
        self.device = layers.weights.device
        self.draws = template.deepest + 1
        self.layout = template_layout(template, places, pages, layers.run, layers.memory.spare_page, self.device)
        self.draft_grower = DraftGrower(layers, template, places) if template.masks else None
        integers = {"dtype": torch.int32, "device": self.device}
        self.drawing = Drawing(places, self.device)
        self.rooms_B = torch.zeros(places, **integers)
        self.ends_E = torch.tensor(_filled(sorted(ends)), **integers)
        self.begins_B, self.ends_at_B, self.counts_B = (torch.zeros(places, **integers) for _ in range(3))
        self.kept_BD = torch.zeros(places, self.draws, **integers)
        self.parents_N = torch.tensor(template.parents, **integers)
        self.results = torch.zeros(places, 1 + 2 * self.draws + self.drafts, **integers)
        """What the host reads: counts, tokens, their confidences, and the drafts that were verified."""
        self._graphed = Graphed(self._step, network, self.device, pool=pool)
        is_cuda = self.device.type == "cuda"
        slots = range(self.max_in_flight)
        self._host = [torch.zeros(self.results.shape, dtype=torch.int32, pin_memory=is_cuda) for _ in slots]
        self._events = [torch.cuda.Event() for _ in slots] if is_cuda else []
        self._launched = self._collected = 0
        self._lengths = [0] * places
        """Lengths of the texts in the cache, as of the last collected step."""
        self._first_steps = [0] * places
        """The number of each text's first step: earlier steps still in flight belong to another text."""
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
        assert not self.in_flight
        if self._seconds is None:
            self._seconds = median_seconds(self)
        return self._seconds

    @property
    def _spans(self) -> int:
        """Number of spans that the texts fit in after the next step."""
        longest = max(self._lengths) + self.in_flight * self.draws
        return spans_for(longest + self.draws + self.template.masks)

    @torch.inference_mode()
    def begin(self, place: int, text: Continuation) -> None:
        """There are no drafts at first."""
        first, ids = place * self.template.nodes, [text.pending, *[-1] * self.drafts]
        self.layout.ids_M[first : first + len(ids)] = torch.tensor(ids, dtype=torch.int32)
        self.layout.starts_B[place] = self._lengths[place] = text.cached
        self._first_steps[place] = self._launched
        self.rooms_B[place] = text.room
        self.drawing.begin(place, text.params, text.seed, text.choice)
        self.give_blocks(place, text.blocks)

    @torch.inference_mode()
    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        self.layout.tables_BP[place, : len(blocks)] = torch.tensor(list(blocks), dtype=torch.int32)

    @torch.inference_mode()
    def end(self, place: int) -> None:
        """The place is empty: its rows write to the spare page, which is never read."""
        self.rooms_B[place] = 0
        self.drawing.end(place)
        self.layout.starts_B[place] = self._lengths[place] = 0
        self.layout.tables_BP[place] = self.layers.memory.spare_page

    @torch.inference_mode()
    def launch(self, waiting: Items[int] = ()) -> None:
        assert not waiting and self.in_flight < self.max_in_flight
        self._graphed((self.drawing.kind, self._spans))
        slot = self._launched % self.max_in_flight
        self._host[slot].copy_(self.results, non_blocking=True)
        if self._events:
            self._events[slot].record()
        self._launched += 1

    def collect(self) -> list[Emitted]:
        """What the earliest step in flight emitted at each place."""
        assert self.in_flight
        slot = self._collected % self.max_in_flight
        if self._events:
            self._events[slot].synchronize()
        self._collected += 1
        results = self._host[slot].numpy()
        counts = results[:, 0].tolist()
        for place, first in enumerate(self._first_steps):
            if self._collected > first:
                self._lengths[place] += counts[place]
        tokens_BD, sure_BD, drafts_BN = np.split(results[:, 1:], [self.draws, 2 * self.draws], axis=1)
        sure_BD = sure_BD.view(np.float32)
        if not self.drafts:  # rollouts have a thousand places
            columns = zip(counts, tokens_BD[:, 0].tolist(), sure_BD[:, 0].tolist(), strict=True)
            return [Emitted((token,), (sure,)) if count else Emitted((), ()) for count, token, sure in columns]
        columns = zip(counts, tokens_BD.tolist(), sure_BD.tolist(), drafts_BN.tolist(), strict=True)
        return [
            # Places without drafts yet hold -1 in their place.
            Emitted(tuple(tokens[:count]), tuple(sure[:count]), tuple(drafts) if drafts[0] >= 0 else ())
            for count, tokens, sure, drafts in columns
        ]

    @torch.inference_mode()
    def forget(self) -> None:
        """Clears all places at once: rollouts have a thousand."""
        self._collected = self._launched
        self._lengths = [0] * self.places
        self.rooms_B.zero_()
        self.layout.starts_B.zero_()
        self.layout.tables_BP.fill_(self.layers.memory.spare_page)
        for place in range(self.places):
            self.drawing.end(place)

    def _step(self) -> torch.Tensor:
        """What a graph captures; there is one per kind of draws and number of spans."""
        scores = self.layers.score(self.layers.normed(self.read_rows().residual_MC, self.layout.wanted_W))
        self._accept_drafts(scores)
        if not self.template.is_chain:
            self._compact_cache()
        if self.draft_grower is not None:
            self.draft_grower(scores, self.layout, self.drawing, self.ends_at_B)
        return self.results

    def read_rows(self) -> LayerOutputs:
        """Run the rows of all places through all layers."""
        nodes, masks = self.template.nodes, self.template.masks
        return self.layers(self.layout, real=self.places * nodes, spans=self._spans, has_trees=masks > 0)

    def _accept_drafts(self, scores: Scores) -> None:
        template, tiles = self.template, scores.best_WT.shape[1]
        noisy = self.drawing.at_nodes(scores, self.layout, template) if self.drawing.kind else None
        accept_drafts[(self.places,)](
            self.layout.ids_M, self.parents_N, scores.logits_WV, scores.best_WT, scores.best_tokens_WT,
            scores.exponentials_WT, noisy and noisy.best_RT, noisy and noisy.tokens_RT, self.layout.starts_B,
            self.begins_B, self.rooms_B, self.ends_E, self.ends_at_B, self.kept_BD, self.results, self.counts_B,
            NODES=template.nodes, NODE_TILE=power_of_two(template.nodes), DRAWS=self.draws, V=scores.logits_WV.shape[1],
            TILES=tiles, TILE_TILE=power_of_two(tiles), ENDS=len(self.ends_E), SAMPLES=noisy is not None,
            **self.layers.launch,
        )  # fmt: skip

    def _compact_cache(self) -> None:
        memory = self.layers.memory.layers_L2SGD
        size = memory.shape[3] * memory.shape[4]
        compact_cache[(memory.shape[0] * 2, self.places)](
            memory, self.kept_BD, self.counts_B, self.begins_B, self.layout.tables_BP, memory.stride(1),
            DRAWS=self.draws, SIZE=size, TILE=power_of_two(size), PAGES=self.layout.tables_BP.shape[1], PAGE=PAGE,
            **self.layers.launch,
        )  # fmt: skip


def _filled(ends: list[int]) -> list[int]:
    """Padded to a power of two with -1, which is no token."""
    return [*ends, *[-1] * (power_of_two(max(1, len(ends))) - len(ends))]
