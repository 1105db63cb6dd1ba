"""One forward pass over the packed rows of a step, through the kernels and a cache of our own.

A row's result is the same, to the bit, whatever the rows beside it: so verified decoding equals plain decoding with no
near-ties to excuse.

Shape letters: Q rows of a step, M mask rows, W wanted rows, C model width, V vocabulary.
"""

import numpy as np

from stridelm import __version__
from stridelm.model.kv_cache import KVCache, Table, blocks_for
from stridelm.model.native.gate import NativeGate
from stridelm.model.native.library import Step, library
from stridelm.model.native.memory import NativeMemory
from stridelm.model.native.weights import Weights, address
from stridelm.model.processor import processor_entry
from stridelm.types import Output, Rows


class NativeForward:
    """A packed model with a KV cache of its own. Several of these may share the weights."""

    def __init__(self, weights: Weights, cache_tokens: int) -> None:
        self.weights = weights
        self.memory = NativeMemory(weights.shape, blocks_for(cache_tokens))
        self.cache = KVCache(cache_tokens, self.memory)
        self.gate = None if weights.conversion is None else NativeGate(weights, weights.conversion)
        self.width, self.layers = weights.shape.width, weights.shape.layers
        self.longest = int(weights.packed.notes["context_length"])
        self._workspace = _Workspace()

    @property
    def identity(self) -> tuple[object, ...]:
        """What its speed depends on."""
        kind = ("native", __version__, processor_entry("model name"), library().stride_lanes())
        return *kind, self.weights.threads, self.weights.activations, self.gate is not None and self.gate.k

    def with_cache(self, tokens: int) -> "NativeForward":
        return NativeForward(self.weights, tokens)

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return self.weights.score(hidden_XC)

    def zeros(self, rows: int) -> np.ndarray:
        return np.zeros((rows, self.width), np.float32)

    def synchronize(self) -> None:
        """A call returns when all is done."""

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        """Append the rows to the cache and return, per block, what the model says of its wanted rows."""
        for table, segment in zip(tables, rows.segments, strict=True):
            self.cache.append(table, segment.stop - segment.start)
        logits_WV, hidden_WC, read_LQC = self._run(rows, tables)
        return [
            Output(
                logits_WV[scored],
                None if hidden_WC is None else hidden_WC[wanted],
                {layer: read_LQC[place, segment] for place, layer in enumerate(rows.layers)},
            )
            for scored, wanted, segment in zip(
                _one_behind_the_other(rows.scored_segments), rows.wanted_segments, rows.segments, strict=True
            )
        ]

    def _run(self, rows: Rows, tables: list[Table]) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        count, masks = len(rows.ids_Q), len(rows.mask_rows_M)
        real = count - masks
        # The kernels want the masks last, and do not mind where the others are.
        order_Q = np.arange(count) if masks == 0 else np.argsort(_is_mask(rows), kind="stable")
        place_of_Q = np.empty(count, np.int64)
        place_of_Q[order_Q] = np.arange(count)
        sequence_Q = np.repeat(np.arange(len(tables)), [each.stop - each.start for each in rows.segments])
        first_Q = np.asarray([each.start for each in rows.segments])[sequence_Q]
        parents_Q = np.where(rows.parents_Q < 0, -1, place_of_Q[rows.parents_Q])
        ids = np.ascontiguousarray(rows.ids_Q[order_Q[:real]])
        assert not real or 0 <= ids.min() <= ids.max() < self.weights.vocabulary, "no such token"
        embedded_MC = np.zeros((0, self.width), np.float32)
        if masks:
            assert self.gate is not None, "mask rows need an adapter"
            embedded_MC = self.gate.embedded(rows.mask_depths_M)
        lengths = [len(table.blocks) for table in tables]
        scored = [index for each in rows.scored_segments for index in range(each.start, each.stop)]
        wanted = len(rows.wanted_W)
        panels = self.weights.model.head.panels * library().stride_lanes()
        logits_WV = np.empty((len(scored), panels), np.float32)
        hidden_WC = np.empty((wanted, self.width), np.float32) if masks else None
        read_LQC = np.empty((len(rows.layers), count, self.width), np.float32)
        positions, sequences, places = rows.positions_Q, sequence_Q, np.arange(count) - first_Q
        rows_as_numbers = [_int32(each[order_Q]) for each in (positions, sequences, places, parents_Q)]
        blocks = [block for table in tables for block in table.blocks]
        others = (rows.starts, blocks, np.cumsum([0, *lengths[:-1]]), place_of_Q[rows.wanted_W], scored, rows.layers)
        numbers = [*rows_as_numbers, *(_int32(each) for each in others)]
        step = Step(
            *(count, real, len(tables), wanted, len(scored), len(rows.layers)),
            *(address(ids), address(embedded_MC)),
            *(address(each) for each in numbers),
            *(address(logits_WV), None if hidden_WC is None else address(hidden_WC), address(read_LQC)),
        )
        library().stride_forward(self.weights.model, self.memory.cache, step, self._workspace.handle)
        read_LQC = read_LQC if masks == 0 else read_LQC[:, place_of_Q]
        return logits_WV[:, : self.weights.vocabulary], hidden_WC, read_LQC


class _Workspace:
    """What the kernels keep between steps."""

    def __init__(self) -> None:
        self._free = library().stride_free_workspace
        self.handle = library().stride_workspace()

    def __del__(self) -> None:
        self._free(self.handle)


def _int32(values: object) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)


def _is_mask(rows: Rows) -> np.ndarray:
    is_mask_Q = np.zeros(len(rows.ids_Q), dtype=bool)
    is_mask_Q[rows.mask_rows_M] = True
    return is_mask_Q


def _one_behind_the_other(segments: tuple[slice, ...]) -> list[slice]:
    """The same lengths, without the gaps."""
    packed, start = [], 0
    for segment in segments:
        packed.append(slice(start, start + segment.stop - segment.start))
        start = packed[-1].stop
    return packed
