"""Masks on the native backend: their embeddings, and the sequential head that reads what was drafted.

Shape letters: X rows, M mask rows, D depths of a chain, C model width, S state size, N tokens.
"""

import numpy as np

from stridelm.model.native.library import Sequential, Workspace, library
from stridelm.model.native.packed import Packed
from stridelm.model.native.weights import MASK_EMBEDDING, Weights, address

READ, READ_BIAS, WRITE = "sequential.read", "sequential.read_bias", "sequential.write"


class NativeGate:
    """What an adapter brings beside its low-rank parts, which the forward applies."""

    def __init__(self, weights: Weights, conversion: Packed) -> None:
        self._weights, self._workspace = weights, Workspace()
        notes = conversion.notes
        self.k = int(notes["masks"]) + 1
        self.state_size = int(notes["sequential_size"])
        self._embedding_DC = conversion.vector(MASK_EMBEDDING).reshape(notes["masks"], -1)
        if self.state_size:
            matrices, bias = (conversion.matrix(name) for name in (READ, WRITE)), conversion.vector(READ_BIAS)
            self._sequential = Sequential(*matrices, address(bias), self.state_size)

    def embedded(self, depths_M: np.ndarray) -> np.ndarray:
        """Of mask rows, by how many masks of their chain they see."""
        return np.ascontiguousarray(self._embedding_DC[np.minimum(depths_M, len(self._embedding_DC)) - 1])

    def start(self, chains: int) -> np.ndarray:
        return np.zeros((chains, self.state_size), np.float32)

    def read(self, hidden_XC: np.ndarray, before: list[int], state_XS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sequential head at one depth: what it adds to these masks' outputs, the tokens before them being known,
        and its states."""
        assert 0 <= min(before) <= max(before) < self._weights.vocabulary, "no such token"
        hidden_XC, state_XS = (np.ascontiguousarray(each, np.float32) for each in (hidden_XC, state_XS))
        before_X = np.array(before, np.int64)
        added_XC, next_XS = np.empty_like(hidden_XC), np.empty_like(state_XS)
        library().stride_read_chain(
            self._weights.model, self._sequential, self._workspace.handle, len(before), address(hidden_XC),
            address(before_X), address(state_XS), address(added_XC), address(next_XS),
        )  # fmt: skip
        return added_XC, next_XS

    def moved(self, tokens_N: np.ndarray, logits: np.ndarray, added: np.ndarray) -> np.ndarray:
        """The logits (... x N) of these tokens once the sequential head has added something (... x C) to a mask's
        output."""
        rows_NC = self._weights.unpack(self._weights.model.head, tokens_N)[:, : added.shape[-1]]
        return logits + added @ rows_NC.T

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return self._weights.score(hidden_XC)
