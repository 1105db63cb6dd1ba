"""The engine in a thread of its own: sequences come in from any thread, what happens to them goes out by callback."""

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
"""What happens to a sequence: a stride, the last of which has a finish reason, or its failure."""
Receive = Callable[[Event], None]
Ending = FinishReason | Literal["abort", "error"]
"""How a sequence left: by itself, because nobody wanted it any more, or failing."""


class Observer(Protocol):
    """Told of everything, in the worker's thread: quick, and never failing."""

    def strode(self, sequence: Sequence, stride: Stride) -> None: ...

    def ended(self, sequence: Sequence, ending: Ending) -> None: ...


class EngineStopped(Exception):
    """The engine takes no more sequences, or gave this one up."""

    def __init__(self, *, has_crashed: bool) -> None:
        """Otherwise it was told to stop."""
        super().__init__("the engine has crashed" if has_crashed else "the engine was told to stop")
        self.has_crashed = has_crashed


class Worker:
    """Runs steps as long as there is something to run. Nothing here waits for a step but `stop`."""

    def __init__(self, engine: Engine, observers: Iterable[Observer] = (), thread: EngineThread | None = None) -> None:
        """`thread`: where the model was loaded, best; a thread of its own otherwise."""
        self.engine = engine
        self.failure: BaseException | None = None
        """Why the engine crashed."""
        self._observers = list(observers)
        self._changed = threading.Condition()
        self._arrived: deque[tuple[Sequence, Receive]] = deque()
        self._left: deque[Sequence] = deque()
        self._holds: deque[tuple[Sequence, bool]] = deque()
        """Who is to be held or to go on, from the next step: within one nobody may be held all of a sudden."""
        self._receivers: dict[Sequence, Receive] = {}
        self._is_stopping = False
        self._thread = thread or EngineThread()
        self._rounds: Future[None] | None = None
        """Done when no more steps are run."""

    def add_observer(self, observer: Observer) -> None:
        """Before the start."""
        self._observers.append(observer)

    def start(self) -> None:
        self._rounds = self._thread.run(self._run)

    def stop(self) -> None:
        """Give up what is not finished, and wait for the step that runs."""
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
        """Sequences that have no room in the cache yet, or had to give it up. Those that are held want none."""
        return len(self._arrived) + sum(not sequence.is_held for sequence in list(self.engine.scheduler.waiting))

    @property
    def running(self) -> int:
        return len(self.engine.scheduler.running)

    @property
    def is_idle(self) -> bool:
        return not self._arrived and not self._receivers

    def submit(self, sequence: Sequence, receive: Receive) -> None:
        """Let a sequence take part from the next step on; `receive` is called in the worker's thread."""
        with self._changed:
            if not self.is_healthy or self._is_stopping:
                raise EngineStopped(has_crashed=self.failure is not None)
            self._arrived.append((sequence, receive))
            self._changed.notify()

    def cancel(self, sequence: Sequence) -> None:
        """Nobody wants it any more: its blocks are free before the next step. Nothing is received of it after that."""
        with self._changed:
            self._left.append(sequence)
            self._changed.notify()

    def hold(self, sequence: Sequence, is_held: bool) -> None:
        """Leave a sequence out of steps, because nobody reads what it writes, or let it go on."""
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
        """Wait for something to do; take in who came and who left. False: stop."""
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
        if ending:  # before whoever asked is told, who may ask next what was counted
            self._end(sequence, ending)
        try:
            receive(event)
        except Exception:  # whoever asked is gone, its event loop, too
            log.exception("a stride could not be delivered")
            if not ending:
                self.cancel(sequence)

    def _end(self, sequence: Sequence, ending: Ending) -> None:
        for observer in self._observers:
            observer.ended(sequence, ending)

    def _give_up_all(self) -> None:
        """Everyone who still waits is told."""
        with self._changed:
            arrived = list(self._arrived)
            self._arrived.clear()
            self._is_stopping = True
        self._receivers |= dict(arrived)
        for sequence in list(self._receivers):
            self._deliver(sequence, EngineStopped(has_crashed=self.failure is not None))
        if self.failure is None:
            self.engine.reset()
