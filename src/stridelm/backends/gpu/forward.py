"""Implements `contracts.Forward` on a GPU: every step is padded to one of a few fixed shapes, each captured as a CUDA
graph when it first occurs."""

import torch
import triton
from transformers import PreTrainedModel

from stridelm.backends.common.cuda_graph import Graphed
from stridelm.backends.common.gate import TensorGate
from stridelm.backends.gpu.layers import Layers, Scores
from stridelm.backends.gpu.layout import LayoutBuffer, Shape, fill
from stridelm.backends.gpu.memory import GpuMemory
from stridelm.backends.gpu.stepper import GpuStepper
from stridelm.backends.gpu.template import Template
from stridelm.backends.gpu.weights import SPARE_POSITIONS, Weights
from stridelm.cache.kv_cache import KVCache, Table, blocks_for
from stridelm.types import Output, Rows

_SPARE_ROWS = 1024
"""Maximum number of rows that a step may write behind the longest text."""


class GpuForward:
    """A model's weights with a cache of its own. Several of these may share the weights."""

    backend = "gpu"

    def __init__(
        self,
        network: PreTrainedModel,
        weights: Weights,
        cache_tokens: int,
        gate: TensorGate | None = None,
        *,
        captures: bool = True,
    ) -> None:
        """`network`: the weights were stacked from it. `captures`: whether steps become graphs; a stepper's always
        do."""
        self.network, self.weights, self.gate, self.captures = network, weights, gate, captures
        self.memory = GpuMemory(
            cache_tokens, len(weights.layers), weights.key_heads, weights.head_size, weights.dtype, weights.device
        )
        self.cache = KVCache(cache_tokens, self.memory)
        self.run_layers = Layers(weights, self.memory)
        self.pages = min(blocks_for(self.longest + _SPARE_ROWS), self.cache.block_count)
        # Only one graph runs at a time, so they share the memory of their intermediate results.
        self._pool = torch.cuda.graph_pool_handle() if weights.device.type == "cuda" else None
        self._buffers: dict[Shape, LayoutBuffer] = {}
        self._graphs: dict[Shape, Graphed] = {}
        self._scores: dict[Shape, Scores] = {}
        self._steppers: dict[tuple[int, int, frozenset[int]], GpuStepper] = {}

    @torch.inference_mode()
    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        shape = Shape.of(rows, self.run_layers.run)
        for segment, table in zip(rows.segments, tables, strict=True):
            self.cache.append(table, segment.stop - segment.start)
        buffer = self._buffers.get(shape)
        if buffer is None:
            buffer = self._buffers[shape] = LayoutBuffer(shape, self.pages, self.weights.device)
        deepest = len(self.weights.mask_embedding_KC)
        places_Q = fill(buffer, rows, tables, self.memory.spare_page, self.run_layers.run, deepest)
        buffer.send()
        inputs: dict[int, torch.Tensor] = {}
        if rows.layers:
            scores, read = self._run(shape, rows.layers)
            stands_Q = torch.from_numpy(places_Q).to(self.weights.device)
            inputs = {layer: read_MC[stands_Q] for layer, read_MC in read.items()}
        else:
            self._graph(shape)(shape)
            scores = self._scores[shape]
        return [
            Output(
                scores.logits_WV[scored].clone(),
                scores.hidden_WC[wanted].clone() if shape.masks else None,
                {layer: read_QC[segment] for layer, read_QC in inputs.items()},
            )
            for scored, wanted, segment in zip(_scored(rows), rows.wanted_segments, rows.segments, strict=True)
        ]

    def _graph(self, shape: Shape) -> Graphed:
        if shape not in self._graphs:

            def run() -> torch.Tensor:
                self._scores[shape], _ = self._run(shape)
                return self._scores[shape].logits_WV

            self._graphs[shape] = Graphed(
                run, self.network, self.weights.device, captures=self.captures, pool=self._pool
            )
        return self._graphs[shape]

    def _run(self, shape: Shape, layers: tuple[int, ...] = ()) -> tuple[Scores, dict[int, torch.Tensor]]:
        layout = self._buffers[shape].device
        read = self.run_layers(layout, real=shape.real, spans=shape.spans, has_trees=shape.has_trees, layers=layers)
        return self.run_layers.score(self.run_layers.normed(read.residual_MC, layout.wanted_W)), read.inputs

    @property
    def width(self) -> int:
        return self.weights.width

    @property
    def layers(self) -> int:
        return len(self.weights.layers)

    @property
    def longest(self) -> int:
        return len(self.weights.cosine_PD) - SPARE_POSITIONS

    @property
    def identity(self) -> tuple[object, ...]:
        place = torch.cuda.get_device_name() if self.weights.device.type == "cuda" else "interpreter"
        return self.backend, self.weights.dtype, place, torch.__version__, triton.__version__

    def with_cache(self, tokens: int) -> "GpuForward":
        return GpuForward(self.network, self.weights, tokens, self.gate, captures=self.captures)

    def score(self, hidden_XC: torch.Tensor) -> torch.Tensor:
        return self.run_layers.score(hidden_XC.to(self.weights.dtype).contiguous()).logits_WV

    def zeros(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, self.width, device=self.weights.device, dtype=self.weights.dtype)

    def synchronize(self) -> None:
        if self.weights.device.type == "cuda":
            torch.cuda.synchronize(self.weights.device)

    def stepper(self, drafts: int, places: int, ends: frozenset[int]) -> GpuStepper:
        key = (drafts, places, ends)
        if key not in self._steppers:
            self._steppers[key] = GpuStepper(
                self.network, self.run_layers, Template.chain(drafts), places, self.pages, ends, self._pool
            )
        return self._steppers[key]


def _scored(rows: Rows) -> list[slice]:
    """Each block's rows with logits, as part of the wanted rows: without the masks of blocks that defer them."""
    return [
        slice(wanted.start, wanted.start + scored.stop - scored.start)
        for wanted, scored in zip(rows.wanted_segments, rows.scored_segments, strict=True)
    ]
