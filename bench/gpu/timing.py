"""Times on a GPU: calls in turn, round after round, so that a slow moment hits all alike; medians with their spread."""

import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

WARM_UP = 4
"""Calls before anything is timed: a step runs twice before it is captured as a graph."""


@dataclass(frozen=True, slots=True)
class Timed:
    call: Callable[[], object]
    reset: Callable[[], object] | None = None
    """Brought back to where it began, before every run of calls."""
    does: int = 1
    """How often one call does what is timed."""


def interleaved(what: Mapping[str, Timed], device: torch.device, *, replays: int, times: int) -> dict[str, list[float]]:
    """Milliseconds of one call of each, so many times, each time over so many calls in a row."""
    for timed in what.values():
        _run(timed, WARM_UP if device.type == "cuda" else 1)
    found: dict[str, list[float]] = {name: [] for name in what}
    for _ in range(times):
        for name, timed in what.items():
            found[name].append(_time(timed, device, replays))
    return found


def _run(timed: Timed, count: int) -> None:
    if timed.reset is not None:
        timed.reset()
    for _ in range(count):
        timed.call()


def _time(timed: Timed, device: torch.device, replays: int) -> float:
    _run(timed, 1)  # while the device is busy with this one, the next are launched
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(replays):
            timed.call()
        return 1000 * (time.perf_counter() - started) / replays / timed.does
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        timed.call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / replays / timed.does


def summary(values: list[float]) -> dict[str, Any]:
    """The median, and what four fifths of the values lie between."""
    ordered = sorted(values)
    edge = len(ordered) // 10
    figures = {"median": statistics.median(ordered), "low": ordered[edge], "high": ordered[-1 - edge]}
    return {name: rounded(value) for name, value in figures.items()} | {"count": len(values)}


def ratios(over: list[float], under: list[float]) -> dict[str, Any]:
    """Of what was measured in the same rounds."""
    return summary([above / below for above, below in zip(over, under, strict=True)])


def rounded(value: float) -> float:
    return float(f"{value:.5g}")


@contextmanager
def at_most(seconds: int, what: str) -> Iterator[None]:
    """Raises TimeoutError where it takes longer; in the main thread only."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"{what} took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
