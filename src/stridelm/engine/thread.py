"""One thread for everything that a model does: loading, measuring, steps."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class EngineThread:
    """Runs jobs one after the other, always in the same thread.

    Every thread that computes in parallel has its own OpenMP helper threads. As soon as there are more of these than
    cores, OpenMP lets them sleep between two matrix products: a model that was loaded in one thread and run in another
    was a third slower on two cores (300 sleeps per forward instead of none).
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="stridelm-engine", daemon=True).start()

    def run(self, job: Callable[[], _Result]) -> Future[_Result]:
        future: Future[_Result] = Future()
        self._jobs.put((job, future))
        return future

    def _work(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
