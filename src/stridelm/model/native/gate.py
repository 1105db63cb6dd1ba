"""Masks on the native backend: their embeddings, and the sequential head that reads what was drafted.

Shape letters: X rows, M mask rows, D depths of a chain, C model width, S state size, N tokens.
"""

import numpy as np

from stridelm.model.native.packed import Packed
from stridelm.model.native.weights import MASK_EMBEDDING, Weights

READ, READ_BIAS, WRITE = "sequential.read", "sequential.read_bias", "sequential.write"
_EPSILON = np.float32(np.finfo(np.float32).eps)


class NativeGate:
    """What an adapter brings beside its low-rank parts, which the forward applies."""

    def __init__(self, weights: Weights, conversion: Packed) -> None:
        self._weights = weights
        notes = conversion.notes
        self.k = int(notes["masks"]) + 1
        self.state_size = int(notes["sequential_size"])
        self._embedding_DC = conversion.vector(MASK_EMBEDDING).reshape(notes["masks"], -1)
        if self.state_size:
            self._read, self._write = conversion.matrix(READ), conversion.matrix(WRITE)
            self._bias = conversion.vector(READ_BIAS)

    def embedded(self, depths_M: np.ndarray) -> np.ndarray:
        """Of mask rows, by how many masks of their chain they see."""
        return np.ascontiguousarray(self._embedding_DC[np.minimum(depths_M, len(self._embedding_DC)) - 1])

    def start(self, chains: int) -> np.ndarray:
        return np.zeros((chains, self.state_size), np.float32)

    def read(self, hidden_XC: np.ndarray, before: list[int], state_XS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sequential head at one depth: what it adds to these masks' outputs, the tokens before them being known,
        and its states."""
        width = hidden_XC.shape[1]
        before_XC = self._weights.unpack(self._weights.model.embedding, np.asarray(before))[:, :width]
        seen = np.concatenate([_unit(hidden_XC), _unit(before_XC), state_XS], axis=1)
        both_XS = self._weights.product(self._read, seen)[:, : 2 * self.state_size] + self._bias
        gate_XS, candidate_XS = both_XS[:, : self.state_size], both_XS[:, self.state_size :]
        state_XS = state_XS + (np.tanh(candidate_XS) - state_XS) / (1 + np.exp(-gate_XS))
        return self._weights.product(self._write, state_XS)[:, :width], state_XS

    def moved(self, tokens_N: np.ndarray, logits: np.ndarray, added: np.ndarray) -> np.ndarray:
        """The logits (... x N) of these tokens once the sequential head has added something (... x C) to a mask's
        output."""
        rows_NC = self._weights.unpack(self._weights.model.head, tokens_N)[:, : added.shape[-1]]
        return logits + added @ rows_NC.T

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return self._weights.score(hidden_XC)


def _unit(x_XC: np.ndarray) -> np.ndarray:
    """Of mean square one."""
    return x_XC / np.sqrt(np.mean(x_XC * x_XC, axis=1, keepdims=True) + _EPSILON)
