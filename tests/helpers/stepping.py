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
    # What a stepper objects to is the host's to run, and would not be noticed.
    device = getattr(engine.forward, "device", None)
    assert engine.own_steps.failures == getattr(device, "failed", 0), "a step of the backend's own failed"
    return strides
