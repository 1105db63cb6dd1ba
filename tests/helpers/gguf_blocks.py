"""Random GGUF blocks of kinds that the gguf package reads but does not write."""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Stored

_SIZES = {
    Stored.Q5_0: ((0, 1.0),),
    Stored.Q5_1: ((0, 0.8), (2, -12.0)),
    Stored.IQ4_NL: ((0, 0.15),),
    Stored.Q2_K: ((80, 0.7), (82, 0.7)),
    Stored.Q3_K: ((108, 0.14),),
    Stored.Q4_K: ((0, 0.035), (2, 0.25)),
    Stored.Q5_K: ((0, 0.018), (2, 0.25)),
    Stored.Q6_K: ((208, 0.007),),
    Stored.IQ2_XXS: ((0, 0.1),),
}
"""Where a block has numbers in half precision, and how large they are for weights of about 10. All else is random."""
RANDOM_KINDS = frozenset(_SIZES)


def random_blocks(kind: Stored, outputs: int, inputs: int, *, size: float = 1.0, seed: int = 0) -> np.ndarray:
    """Rows of bytes. `size`: about the standard deviation of the weights."""
    draw = np.random.default_rng([seed, outputs, inputs, kind])
    per_block, length = gguf.GGML_QUANT_SIZES[kind]
    bytes_OBX = draw.integers(0, 256, size=(outputs, inputs // per_block, length), dtype=np.uint8)
    for at, about in _SIZES[kind]:
        # Halves of very different sizes, whole blocks of zeros among them.
        halves = about / 10 * size * draw.uniform(0.25, 1.75, size=(outputs, inputs // per_block, 1))
        halves[draw.random(halves.shape) < 0.03] = 0
        bytes_OBX[..., at : at + 2] = halves.astype(np.float16).view(np.uint8)
    return bytes_OBX.reshape(outputs, -1)
