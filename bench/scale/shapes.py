"""What decoders weigh, from their shapes alone: weights, KV cache, adapters, training. For bench/scale/project.py."""

from dataclasses import dataclass

from bench.scale.step_cost import Shape

HALF, WHOLE = 2, 4
"""Bytes of a bfloat16 and of a float32."""
_TRAINED = 4 * WHOLE
"""Bytes of a trained value: itself, its gradient and AdamW's two moments, all float32."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One training step of an adapter."""

    texts: int
    length: int
    anchors: int
    k: int
    rank: int
    sequential_size: int

    @property
    def real_rows(self) -> int:
        return self.texts * self.length

    @property
    def mask_rows(self) -> int:
        return self.texts * self.anchors * (self.k - 1)


def matrices(shape: Shape) -> list[tuple[int, int]]:
    """(inputs, outputs) of a layer's seven, as `targets` of an adapter lists them."""
    width, kv_width = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    return [
        (shape.hidden, width), (shape.hidden, kv_width), (shape.hidden, kv_width), (width, shape.hidden),
        (shape.hidden, shape.inner), (shape.hidden, shape.inner), (shape.inner, shape.hidden),
    ]  # fmt: skip


def multiplied(shape: Shape) -> int:
    """Weights that every row is multiplied with: all layers' and the output matrix."""
    layer = sum(inputs * outputs for inputs, outputs in matrices(shape))
    return shape.layers * layer + shape.hidden * shape.vocabulary


def parameters(shape: Shape, *, tied: bool = False) -> int:
    """`tied`: embedding and output matrix are one."""
    norms = shape.hidden * (2 * shape.layers + 1)
    return multiplied(shape) + norms + (0 if tied else shape.hidden * shape.vocabulary)


def adapter_parameters(shape: Shape, rank: int, masks: int, sequential_size: int) -> int:
    """Of a gated adapter with its mask embeddings and sequential head (docs/adapter-format.md)."""
    low_rank = shape.layers * sum(rank * (inputs + outputs) for inputs, outputs in matrices(shape))
    size = sequential_size
    head = 2 * size * (2 * shape.hidden + 1) + 2 * size * size + shape.hidden * size
    return low_rank + masks * shape.hidden + head


def kv_bytes(shape: Shape) -> int:
    """Of one token's keys and values, in bfloat16."""
    return 2 * shape.layers * shape.kv_heads * shape.head_size * HALF


def activations(shape: Shape, rows: int) -> int:
    """Values that the linear layers read and write for so many rows: what grows with the rows in training."""
    return rows * shape.layers * sum(inputs + outputs for inputs, outputs in matrices(shape))


def training_operations(shape: Shape, recipe: Recipe) -> float:
    """Of one step: real rows go forward only; through mask rows the gradient goes back to them, not to the weights."""
    adapter = adapter_parameters(shape, recipe.rank, recipe.k - 1, recipe.sequential_size)
    rows = 2 * recipe.real_rows + 4 * recipe.mask_rows
    return float(multiplied(shape) * rows + 6 * adapter * recipe.mask_rows)


def adapter_training_bytes(shape: Shape, recipe: Recipe, bytes_per_activation: float, *, tied: bool = False) -> float:
    """On one GPU: the frozen base, what is trained, and what lies between."""
    adapter = adapter_parameters(shape, recipe.rank, recipe.k - 1, recipe.sequential_size)
    held = HALF * parameters(shape, tied=tied) + _TRAINED * adapter
    return held + bytes_per_activation * activations(shape, recipe.mask_rows)


def full_training_bytes(shape: Shape, processes: int) -> float:
    """Per process, without activations: a shard of the student, and the frozen teacher whole."""
    return _TRAINED * parameters(shape) / processes + HALF * parameters(shape)
