"""Weights that are made when they are asked for, one at a time: a large model's do not fit into memory in float32."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

Chosen = slice | np.ndarray
"""Rows of a weight, in the given order."""


@dataclass(frozen=True, slots=True)
class LazyWeight:
    shape: tuple[int, ...]
    make: Callable[[Chosen], np.ndarray]
    """Makes some of its rows."""


class LazyWeights(Mapping[str, np.ndarray]):
    """Nothing of what is made is kept."""

    def __init__(self, made: Mapping[str, LazyWeight]) -> None:
        self._made = made

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: weight.shape for name, weight in self._made.items()}

    def rows(self, name: str, chosen: Chosen) -> np.ndarray:
        return self._made[name].make(chosen)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.rows(name, slice(None))

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
