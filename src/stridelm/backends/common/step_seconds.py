"""How long a stepper's step takes."""

import statistics
import time

from stridelm.stepper import Stepper

_TRIALS = 9


def median_seconds(stepper: Stepper) -> float:
    """The median time of some steps with all places free. Measure while the stepper is idle: timing runs real steps."""
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
