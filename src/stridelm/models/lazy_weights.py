"""Weights that are made when they are asked for, one at a time: a large model's do not fit into memory in float32."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np


class LazyWeights(Mapping[str, np.ndarray]):
    """By name: a shape, and what makes the array. Nothing is kept."""

    def __init__(self, made: Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]) -> None:
        self._made = made

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (shape, _) in self._made.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._made[name][1]()

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
