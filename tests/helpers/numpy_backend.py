"""Torch models behind numpy arrays: what decoding sees of a native backend."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from stridelm import arrays
from stridelm.cache.kv_cache import KVCache, Table
from stridelm.contracts import Forward, Gate, Growth, Heads
from stridelm.models.target import Draft, LoadedModel
from stridelm.types import Output, Rows


def to_numpy(x: torch.Tensor) -> np.ndarray:
    return x.detach().numpy().copy()


def by_torch(function: Callable[..., Any], *given: Any) -> Any:
    """What a function of tensors makes of numpy arrays, as numpy arrays."""
    assert not any(isinstance(each, torch.Tensor) for each in given), "a tensor on the way of a native backend"
    made = function(*(torch.from_numpy(each.copy()) if isinstance(each, np.ndarray) else each for each in given))
    return tuple(map(to_numpy, made)) if isinstance(made, tuple) else to_numpy(made)


class NumpyGate:
    def __init__(self, gate: Gate) -> None:
        self.gate, self.k, self.state_size, self.tail = gate, gate.k, gate.state_size, gate.tail
        self.prior = gate.prior

    def foretell(self, hidden_C: np.ndarray) -> np.ndarray:
        return by_torch(self.gate.foretell, hidden_C)

    def start(self, chains: int) -> np.ndarray:
        return by_torch(self.gate.start, chains)

    def read(self, hidden_XC: np.ndarray, before: list[int], state_XS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return by_torch(self.gate.read, hidden_XC, before, state_XS)

    def grow(self, logits_DV: np.ndarray, hidden_DC: np.ndarray, state_1S: np.ndarray | None, growth: Growth) -> None:
        """Depth by depth."""

    def moved(self, tokens_N: np.ndarray, logits: np.ndarray, added: np.ndarray) -> np.ndarray:
        return by_torch(self.gate.moved, tokens_N, logits, added)

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return by_torch(self.gate.score, hidden_XC)

    def top(self, logits_V: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        return arrays.top(logits_V, count)


class NumpyHeads:
    def __init__(self, heads: Heads) -> None:
        self.heads, self.k = heads, heads.k

    def __call__(self, hidden_XC: np.ndarray) -> np.ndarray:
        return by_torch(self.heads, hidden_XC)


class NumpyForward:
    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.gate = None if forward.gate is None else NumpyGate(forward.gate)
        self.cache: KVCache = forward.cache
        self.width, self.layers, self.longest = forward.width, forward.layers, forward.longest
        self.backend, self.identity = "numpy", ("numpy", *forward.identity)

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        return [
            Output(
                to_numpy(output.logits_WV),
                None if output.hidden_WC is None else to_numpy(output.hidden_WC),
                {layer: to_numpy(read_qC) for layer, read_qC in output.layers_qC.items()},
            )
            for output in self.forward(rows, tables)
        ]

    def with_cache(self, tokens: int) -> "NumpyForward":
        return NumpyForward(self.forward.with_cache(tokens))

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return by_torch(self.forward.score, hidden_XC)

    def zeros(self, rows: int) -> np.ndarray:
        return to_numpy(self.forward.zeros(rows))

    def synchronize(self) -> None: ...

    def stepper(self, drafts: int, places: int, ends: frozenset[int]) -> None:
        """The host takes part in every step."""


def as_numpy(loaded: LoadedModel) -> LoadedModel:
    """The same, all of it behind numpy arrays."""
    draft, heads = loaded.draft, loaded.heads
    return replace(
        loaded,
        forward=NumpyForward(loaded.forward),
        draft=None if draft is None else Draft(draft.target, NumpyForward(draft.forward)),
        heads=None if heads is None else NumpyHeads(heads),
    )
