"""One forward pass over the packed rows of a step, through the C++ kernels and a KV cache of our own.

A row's result is the same, to the bit, whatever other rows the step has: so verified decoding equals plain decoding,
even at near-ties.

Shape letters: Q rows of a step, M mask rows, W wanted rows, C model width, V vocabulary.
"""

from itertools import accumulate

import numpy as np

from stridelm.backends.common.processor import processor_name
from stridelm.backends.native.gate import NativeGate
from stridelm.backends.native.library import Step, Workspace, library
from stridelm.backends.native.memory import NativeMemory
from stridelm.backends.native.packed_file import VERSION
from stridelm.backends.native.stepper import NativeStepper
from stridelm.backends.native.weights import Weights, address
from stridelm.cache.kv_cache import KVCache, Table, blocks_for
from stridelm.types import Output, Rows

_NONE = np.zeros(0, np.float32)


class NativeForward:
    """A packed model with a KV cache of its own. Several of these may share the weights."""

    backend = "native"

    def __init__(self, weights: Weights, cache_tokens: int, cache_numbers: str = "float16") -> None:
        self.weights, self.cache_numbers = weights, cache_numbers
        self.memory = NativeMemory(weights.shape, blocks_for(cache_tokens), cache_numbers)
        self.cache = KVCache(cache_tokens, self.memory)
        self.gate = None if weights.adapter is None else NativeGate(weights, weights.adapter)
        self.width, self.layers = weights.shape.width, weights.shape.layers
        self.longest = int(weights.packed.notes["context_length"])
        self._logits = weights.model.head.panels * library().stride_lanes()
        self._workspace = Workspace()
        self._steppers: dict[tuple[int, frozenset[int]], NativeStepper] = {}

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that its speed depends on."""
        processor, lanes = processor_name(), library().stride_lanes()
        weights = self.weights
        return self.backend, VERSION, processor, lanes, weights.shape.threads, weights.activations, self.cache_numbers

    def with_cache(self, tokens: int) -> "NativeForward":
        return NativeForward(self.weights, tokens, self.cache_numbers)

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return self.weights.score(hidden_XC)

    def zeros(self, rows: int) -> np.ndarray:
        return np.zeros((rows, self.width), np.float32)

    def synchronize(self) -> None:
        """Nothing to wait for: calls are synchronous."""

    def stepper(self, drafts: int, places: int, ends: frozenset[int]) -> NativeStepper:
        """It plans its steps by itself, so there is one for any number of drafts."""
        if (places, ends) not in self._steppers:
            self._steppers[places, ends] = NativeStepper(
                self.weights, self.memory, self.gate, places, ends, self.longest
            )
        return self._steppers[places, ends]

    @property
    def steppers(self) -> list[NativeStepper]:
        """Those that were made so far."""
        return [*self._steppers.values()]

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        """Append the rows to the cache and return, per block, the outputs of its wanted rows."""
        for table, segment in zip(tables, rows.segments, strict=True):
            self.cache.append(table, segment.stop - segment.start)
        count, masks = len(rows.ids_Q), len(rows.mask_rows_M)
        scored = sum(each.stop - each.start for each in rows.scored_segments)
        logits_WX = np.empty((scored, self._logits), np.float32)
        log_sums_W = np.empty(scored, np.float32)
        hidden_WC = np.empty((len(rows.wanted_W), self.width), np.float32) if masks else None
        read_LQC = np.empty((len(rows.layers), count, self.width), np.float32)
        order = self._run(rows, tables, (logits_WX, log_sums_W, hidden_WC, read_LQC))
        logits_WV = logits_WX[:, : self.weights.vocabulary]
        if order is not None and len(read_LQC):
            read_LQC[:, order] = read_LQC.copy()
        return [
            Output(
                logits_WV[scored],
                None if hidden_WC is None else hidden_WC[wanted],
                {layer: read_LQC[place, segment] for place, layer in enumerate(rows.layers)},
                log_sums_W[scored],
            )
            for scored, wanted, segment in zip(
                _without_gaps(rows.scored_segments), rows.wanted_segments, rows.segments, strict=True
            )
        ]

    def _run(
        self, rows: Rows, tables: list[Table], results: tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]
    ) -> list[int] | None:
        """Fill the results. Returns the order in which the kernels ran the rows; None if it is the given one.

        A forward takes four milliseconds, so every array that is created in between shows: the many small numbers of a
        step are collected in a list and become one array.
        """
        count, real = len(rows.ids_Q), len(rows.ids_Q) - len(rows.mask_rows_M)
        places = [place for each in rows.segments for place in range(each.stop - each.start)]
        sequences = [number for number, each in enumerate(rows.segments) for _ in range(each.stop - each.start)]
        by_row = [rows.positions_Q.tolist(), sequences, places, rows.parents_Q.tolist()]
        wanted, ids, order = rows.wanted_W.tolist(), rows.ids_Q, None
        embedded_MC = _NONE
        if real < count:
            assert self.gate is not None, "mask rows need an adapter"
            embedded_MC = self.gate.embed(rows.mask_depths_M)
            # The kernels want the masks last; the order of the other rows does not matter.
            is_mask = dict.fromkeys(rows.mask_rows_M.tolist())
            order = [*(row for row in range(count) if row not in is_mask), *is_mask]
            at = {row: place for place, row in enumerate(order)} | {-1: -1}
            by_row = [[values[row] for row in order] for values in by_row]
            by_row[3] = [at[parent] for parent in by_row[3]]
            wanted, ids = [at[row] for row in wanted], np.ascontiguousarray(ids[order[:real]])
        assert real == 0 or 0 <= ids.min() <= ids.max() < self.weights.vocabulary, "no such token"
        scored = [index for each in rows.scored_segments for index in range(each.start, each.stop)]
        blocks = [block for table in tables for block in table.blocks]
        starts = [0, *accumulate(len(table.blocks) for table in tables)][:-1]
        lists = (*by_row, rows.starts, blocks, starts, wanted, scored, rows.layers)
        sheet = np.array([number for values in lists for number in values], np.int32)
        first = address(sheet)
        places_in_sheet = accumulate((4 * len(values) for values in lists[:-1]), initial=first)
        logits_WX, log_sums_W, hidden_WC, read_LQC = results
        step = Step(
            count, real, len(tables), len(wanted), len(scored), len(rows.layers),
            address(ids), address(embedded_MC), *places_in_sheet, address(logits_WX), address(log_sums_W),
            None if hidden_WC is None else address(hidden_WC), address(read_LQC),
        )  # fmt: skip
        library().stride_forward(self.weights.model, self.memory.cache, step, self._workspace.handle)
        return order


def _without_gaps(segments: tuple[slice, ...]) -> list[slice]:
    """The same lengths, without the gaps."""
    packed, start = [], 0
    for segment in segments:
        packed.append(slice(start, start + segment.stop - segment.start))
        start = packed[-1].stop
    return packed
