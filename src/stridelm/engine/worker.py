"""The engine in its own thread: sequences may be submitted from any thread, and events are delivered by callback."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Literal, Protocol

from stridelm.engine.engine import Engine
from stridelm.engine.thread import EngineThread
from stridelm.params import InputError
from stridelm.types import FinishReason, Sequence, Stride

log = logging.getLogger(__name__)

Event = Stride | Exception
"""What happens to a sequence: a stride (the last one has a finish reason), or its failure."""
Receive = Callable[[Event], None]
Ending = FinishReason | Literal["abort", "error"]
"""How a sequence ended: finished, cancelled ("abort") or failed ("error")."""


class Observer(Protocol):
    """Notified of every event, in the worker's thread. Its methods must be quick and must not raise."""

    def strode(self, sequence: Sequence, stride: Stride) -> None: ...

    def ended(self, sequence: Sequence, ending: Ending) -> None: ...


class EngineStopped(Exception):
    """The engine accepts no more sequences, or ended this one early."""

    def __init__(self, *, has_crashed: bool) -> None:
        """`has_crashed`: False if the engine was asked to stop."""
        super().__init__("the engine has crashed" if has_crashed else "the engine was told to stop")
        self.has_crashed = has_crashed


class Worker:
    """Runs steps as long as there is something to run. Of its methods only `stop` waits for a step."""

    def __init__(self, engine: Engine, observers: Iterable[Observer] = (), thread: EngineThread | None = None) -> None:
        """`thread`: preferably the one that has loaded the model; a new one by default."""
        self.engine = engine
        self.failure: BaseException | None = None
        """Why the engine crashed."""
        self._observers = list(observers)
        self._changed = threading.Condition()
        self._arrived: deque[tuple[Sequence, Receive]] = deque()
        self._left: deque[Sequence] = deque()
        self._holds: deque[tuple[Sequence, bool]] = deque()
        """Sequences to hold or to resume before the next step: `is_held` must not change during a step."""
        self._receivers: dict[Sequence, Receive] = {}
        self._is_stopping = False
        self._thread = thread or EngineThread()
        self._rounds: Future[None] | None = None
        """Done when the loop over steps has ended."""

    def add_observer(self, observer: Observer) -> None:
        """Call it before `start`."""
        self._observers.append(observer)

    def start(self) -> None:
        self._rounds = self._thread.run(self._run)

    def stop(self) -> None:
        """End all unfinished sequences, and wait for the step that is running."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._rounds is not None:
            self._rounds.result()

    @property
    def is_healthy(self) -> bool:
        return self.failure is None and self._rounds is not None and not self._rounds.done()

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for room in the cache, new or preempted. Held sequences do not count."""
        return len(self._arrived) + sum(not sequence.is_held for sequence in list(self.engine.scheduler.waiting))

    @property
    def running(self) -> int:
        return len(self.engine.scheduler.running)

    @property
    def is_idle(self) -> bool:
        return not self._arrived and not self._receivers

    def submit(self, sequence: Sequence, receive: Receive) -> None:
        """Add a sequence from the next step on; `receive` is called in the worker's thread."""
        with self._changed:
            if not self.is_healthy or self._is_stopping:
                raise EngineStopped(has_crashed=self.failure is not None)
            self._arrived.append((sequence, receive))
            self._changed.notify()

    def cancel(self, sequence: Sequence) -> None:
        """Remove a sequence: its blocks are freed before the next step, and it gets no more events after that."""
        with self._changed:
            self._left.append(sequence)
            self._changed.notify()

    def hold(self, sequence: Sequence, is_held: bool) -> None:
        """Leave a sequence out of steps because its client does not read, or resume it."""
        with self._changed:
            self._holds.append((sequence, is_held))
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._next_round():
                for sequence, event in self.engine.step():
                    self._deliver(sequence, event)
        except BaseException as error:
            log.exception("the engine has crashed")
            self.failure = error
        self._give_up_all()

    def _next_round(self) -> bool:
        """Wait for something to do, then add new sequences and remove cancelled ones. False: stop."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._arrived or self._left or self._holds or self._is_stopping or self.engine.scheduler.has_work
                )
            )
            if self._is_stopping:
                return False
            while self._holds:
                sequence, is_held = self._holds.popleft()
                sequence.is_held = is_held
            arrived, left = list(self._arrived), list(self._left)
            self._arrived.clear()
            self._left.clear()
        for sequence, receive in arrived:
            self._receivers[sequence] = receive
            try:
                self.engine.add(sequence)
            except InputError as error:
                self._deliver(sequence, error)
        for sequence in left:
            if self._receivers.pop(sequence, None) is not None:
                self.engine.remove(sequence)
                self._end(sequence, "abort")
        return True

    def _deliver(self, sequence: Sequence, event: Event) -> None:
        if isinstance(event, Stride):
            for observer in self._observers:
                observer.strode(sequence, event)
        ending = "error" if isinstance(event, Exception) else event.finish_reason
        receive = self._receivers.pop(sequence) if ending else self._receivers[sequence]
        if ending:  # observers first: the client may read their counters as soon as it has the last event
            self._end(sequence, ending)
        try:
            receive(event)
        except Exception:  # the client is gone, and its event loop with it
            log.exception("a stride could not be delivered")
            if not ending:
                self.cancel(sequence)

    def _end(self, sequence: Sequence, ending: Ending) -> None:
        for observer in self._observers:
            observer.ended(sequence, ending)

    def _give_up_all(self) -> None:
        """Deliver `EngineStopped` to every sequence that has not ended."""
        with self._changed:
            arrived = list(self._arrived)
            self._arrived.clear()
            self._is_stopping = True
        self._receivers |= dict(arrived)
        for sequence in list(self._receivers):
            self._deliver(sequence, EngineStopped(has_crashed=self.failure is not None))
        if self.failure is None:
            self.engine.reset()
