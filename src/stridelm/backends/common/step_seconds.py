"""What a step of a stepper takes."""

import statistics
import time

from stridelm.contracts import Stepper

_TRIALS = 9


def median_seconds(stepper: Stepper) -> float:
    """The median of some steps of free places. Measure while the stepper is idle: timing runs real steps."""
    times: list[float] = []
    try:
        for _ in range(_TRIALS):
            started = time.perf_counter()
            stepper.launch()
            stepper.collect()
            times.append(time.perf_counter() - started)
    finally:
        stepper.forget()
    return statistics.median(times)
