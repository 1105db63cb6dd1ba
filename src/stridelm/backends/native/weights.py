"""A packed model and its adapter, as C structures that the kernels take."""

import os
from dataclasses import dataclass

import numpy as np

from stridelm.backends.native.library import (
    Adapter,
    JoinedMatrix,
    Layer,
    LowRank,
    Matrix,
    Model,
    Part,
    Shape,
    library,
)
from stridelm.backends.native.packed_file import Packed
from stridelm.backends.native.quantised_matrix import EIGHT

ACTIVATIONS = {"int16": 16, "int8": 8}
EMBEDDING, HEAD, LAST_NORM, FREQUENCIES = "embedding", "head", "last_norm", "frequencies"
MASK_EMBEDDING = "mask_embedding"
_SLOTS = ("query_key_value", "attention_output", "gate_up", "down")
_VECTORS = ("attention_norm", "mlp_norm", "bias", "query_norm", "key_norm")


@dataclass(frozen=True, slots=True)
class Weights:
    """Shared by all forwards of one model; never changes."""

    packed: Packed
    adapter: Packed | None
    """The packed adapter."""
    model: Model
    """The C structure; it points into both files."""
    activations: str

    @property
    def shape(self) -> Shape:
        return self.model.shape

    @property
    def vocabulary(self) -> int:
        return self.model.vocabulary

    def product(self, matrix: Matrix, x_XI: np.ndarray) -> np.ndarray:
        """Any matrix times rows of 16-bit activations: X x the outputs of all panels."""
        rows, size = x_XI.shape
        filled = np.zeros((rows, matrix.groups * 32), np.float32)
        filled[:, :size] = x_XI
        y = np.empty((rows, matrix.panels * library().stride_lanes()), np.float32)
        if rows:
            library().stride_product(matrix, 16, self.shape.threads, filled.ctypes.data, rows, y.ctypes.data)
        return y

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return self.product(self.model.head, np.asarray(hidden_XC, np.float32))[:, : self.vocabulary]


def takes_bytes(packed: Packed) -> bool:
    """Whether a matrix of a layer has less than 8 bits: only these are multiplied by 8-bit activations."""
    layers = range(packed.notes["shape"]["layers"])
    return any(packed.kind(f"{number}.{slot}") != EIGHT for number in layers for slot in _SLOTS)


def part_name(name: str, part: int) -> str:
    """Of a matrix that consists of several, since they are of different kinds: the first has the name of the whole."""
    return f"{name}.part{part}" if part else name


def make_weights(packed: Packed, adapter: Packed | None, threads: int, activations: str) -> Weights:
    """`threads`: 0 for one per core that this process may use."""
    threads = threads or len(os.sched_getaffinity(0))
    notes = packed.notes["shape"]
    sizes = (notes[name] for name in ("layers", "width", "heads", "key_heads", "head_size", "inner", "window"))
    shape = Shape(*sizes, threads, ACTIVATIONS[activations], notes["epsilon"])
    layers = (Layer * notes["layers"])(*(_layer(packed, number) for number in range(notes["layers"])))
    adapters = None
    if adapter is not None:
        adapters = (Adapter * notes["layers"])(*(_adapter(adapter, number) for number in range(notes["layers"])))
    model = Model(
        shape,
        layers,
        adapters,
        packed.matrix(EMBEDDING),
        packed.matrix(EMBEDDING if packed.notes["tied"] else HEAD),
        packed.notes["vocabulary"],
        packed.vector(LAST_NORM).ctypes.data,
        packed.vector(FREQUENCIES).ctypes.data,
    )
    return Weights(packed, adapter, model, activations)


def _layer(packed: Packed, number: int) -> Layer:
    joined = [part_name(f"{number}.{_SLOTS[0]}", part) for part in range(3)]
    parts = [packed.matrix(name) for name in joined if packed.has(name)]
    first = JoinedMatrix((Matrix * 3)(*parts), sum(part.panels for part in parts))
    matrices = [packed.matrix(f"{number}.{slot}") for slot in _SLOTS[1:]]
    vectors = [f"{number}.{name}" for name in _VECTORS]
    return Layer(first, *matrices, *(packed.vector(name).ctypes.data if packed.has(name) else None for name in vectors))


def _adapter(adapter: Packed, number: int) -> Adapter:
    return Adapter(*(_low_rank(adapter, f"{number}.{slot}") for slot in _SLOTS))


def _low_rank(adapter: Packed, name: str) -> LowRank:
    parts = adapter.notes["parts"].get(name, [])
    if not parts:
        return LowRank()
    made = [Part(adapter.matrix(f"{name}.up{place}"), *where) for place, where in enumerate(parts)]
    return LowRank(adapter.matrix(f"{name}.low"), len(made), (Part * 3)(*made))


def address(array: np.ndarray) -> int:
    """The address of an array's first item, for the kernels: the array must be kept until they are done."""
    assert array.flags.c_contiguous
    return array.__array_interface__["data"][0]  # takes a third of the time of `ctypes.data`
