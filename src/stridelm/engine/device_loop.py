"""The loop over steps that a backend runs by itself: it launches steps, collects results, and tracks steps in flight.

Each text takes a place of a stepper. While the host reads what one step wrote, the backend already runs the next:

    backend   step 1 | step 2 | step 3 | ...
    host               read 1 | read 2 | ...

(unless it needs the host's processor, as on a CPU: `max_in_flight` says how many steps may be ahead).

A text may take a free place or leave its place at any time without affecting other texts. The loop remembers, for each
step in flight, which texts had places at its launch; results for a text that has left since are dropped.

Serving (`own_steps`), rollouts in training and the frontier (both by way of `rollout`) all use this loop.
"""

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stridelm.stepper import Continuation, Emitted, Stepper


class Text(Protocol):
    """A text that can take a place."""

    @property
    def room(self) -> int:
        """How many more tokens may be written, counting those of collected steps only."""
        ...


TextT = TypeVar("TextT", bound=Text)
OrderT = TypeVar("OrderT")


@dataclass(frozen=True, slots=True)
class Collected(Generic[TextT, OrderT]):
    """The result of a step, for the texts that still have the places they had at its launch."""

    texts: list[tuple[int, TextT, Emitted]]
    """Place, text and what the step emitted for it."""
    order: OrderT
    """The argument of `launch`."""


class DeviceLoop(Generic[TextT, OrderT]):
    """A stepper, the texts at its places and the steps in flight. `OrderT`: any value that the caller passes to
    `launch` and gets back with the step's result, such as the object that asked for the step."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.texts: list[TextT | None] = [None] * stepper.places
        self._launched: deque[tuple[list[TextT | None], OrderT]] = deque()
        stepper.forget()

    @property
    def in_flight(self) -> int:
        return len(self._launched)

    def free_places(self) -> list[int]:
        return [place for place, text in enumerate(self.texts) if text is None]

    def begin(self, place: int, text: TextT, continuation: Continuation) -> None:
        """Put a text into a free place. Steps that are already in flight do not write for it."""
        assert self.texts[place] is None, "the place is taken"
        self.stepper.begin(place, continuation)
        self.texts[place] = text

    def end(self, place: int) -> None:
        """Free a place. Results in flight for its text are dropped."""
        self.texts[place] = None
        self.stepper.end(place)

    def launch(self, order: OrderT, waiting: Items[int] = ()) -> None:
        """Launch up to `max_in_flight` steps, as long as a text has room left: each step in flight writes at least one
        token. `waiting`: places that are left out, if the stepper plans."""
        texts = [None if place in waiting else text for place, text in enumerate(self.texts)]
        while self.in_flight < self.stepper.max_in_flight and any(
            text is not None and text.room > self.in_flight for text in texts
        ):
            self.stepper.launch(waiting)
            self._launched.append((texts, order))

    def collect(self) -> Collected[TextT, OrderT]:
        """Wait for the earliest step in flight and return its result."""
        texts, order = self._launched.popleft()
        results = self.stepper.collect()
        kept = [
            (place, text, emitted)
            for place, (text, current, emitted) in enumerate(zip(texts, self.texts, results, strict=True))
            if text is not None and text is current
        ]
        return Collected(kept, order)

    def forget(self) -> None:
        """Free all places and drop the steps in flight."""
        self._launched.clear()
        self.texts = [None] * self.stepper.places
        self.stepper.forget()
