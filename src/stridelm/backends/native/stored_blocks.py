"""Matrices from a GGUF file: in the file's own blocks where the kernels have them, else quantised again."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from stridelm.backends.native.quantised_matrix import EIGHT, KINDS, Groups, by_pieces, from_blocks, quantise
from stridelm.models.gguf_content import read_blocks

_GATE, _UP = "mlp.gate_proj.weight", "mlp.up_proj.weight"


class StoredBlocks:
    """The matrices of one file."""

    def __init__(self, path: Path, config: Any) -> None:
        self._blocks = read_blocks(path, config)
        gates = [name for name in self._blocks if name.endswith(_GATE)]
        pairs = [(gate, gate.replace(_GATE, _UP)) for gate in gates]
        # The kernels take gate and up of one kind.
        self._uneven = {name for pair in pairs for name in pair if len({*map(self._kind, pair)}) > 1}

    @property
    def requantised(self) -> list[str]:
        """The kinds that have no kernel: they are quantised again, to 8 bits."""
        return sorted({kind for kind, _ in self._blocks.values()} - set(KINDS))

    @property
    def message(self) -> str:
        """What is quantised again; empty if nothing is."""
        said = [f"{kind} requantised to 8 bits" for kind in self.requantised]
        if self._uneven:
            said.append(f"gate and up of {len(self._uneven) // 2} layers, which differ in kind, requantised to 8 bits")
        return ", ".join(said)

    def read(self, name: str) -> Groups:
        kind, rows = self._blocks[name]
        if kind in KINDS and name not in self._uneven:
            return from_blocks(kind, rows)

        def quantise_piece(piece: np.ndarray) -> Groups:
            floats = gguf.dequantize(np.ascontiguousarray(piece), gguf.GGMLQuantizationType[kind])
            return quantise(floats.astype(np.float32, copy=False), EIGHT)

        return by_pieces(rows, quantise_piece)

    def _kind(self, name: str) -> int:
        """The kernels' kind of what would be read."""
        kind, rows = self._blocks[name]
        return from_blocks(kind, rows[:1]).kind if kind in KINDS else EIGHT
