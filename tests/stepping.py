"""Steps in which nothing may fail."""

from stridelm.engine.engine import Engine
from stridelm.types import Sequence, Stride


def step_of(engine: Engine) -> list[tuple[Sequence, Stride]]:
    """A step of the engine; what a sequence fails with is raised."""
    strides: list[tuple[Sequence, Stride]] = []
    for sequence, event in engine.step():
        if isinstance(event, Exception):
            raise event
        strides.append((sequence, event))
    return strides
