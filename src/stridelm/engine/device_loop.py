"""The loop over steps that a backend runs by itself: launch, collect, what is in flight, forget.

Texts take places of a stepper. While the host reads what one step wrote, the next one runs already:

    backend   step 1 | step 2 | step 3 | ...
    host               read 1 | read 2 | ...

A text takes a free place and leaves it at any time; the others do not notice. Each step in flight is remembered with
the texts that had places when it was launched, so what it wrote for a text that has left since is dropped.

Serving (`own_steps`), rollouts in training and the frontier (both by way of `rollout`) all run through it.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stridelm.contracts import Continuation, Emitted, Stepper


class Text(Protocol):
    """What takes a place."""

    @property
    def room(self) -> int:
        """How many more tokens may be written, as far as steps were collected."""
        ...


TextT = TypeVar("TextT", bound=Text)
OrderT = TypeVar("OrderT")


@dataclass(frozen=True, slots=True)
class Collected(Generic[TextT, OrderT]):
    """What a step wrote, for the texts that still have the places they had when it was launched."""

    texts: list[tuple[int, TextT, Emitted]]
    """Place, text and what it got."""
    order: OrderT
    """What the step was launched with."""


class DeviceLoop(Generic[TextT, OrderT]):
    """A stepper, the texts at its places and the steps in flight. `OrderT`: whatever the caller wants back with a step,
    such as who ordered it."""

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
        """Let a text have a free place. Steps that are in flight do not write for it."""
        assert self.texts[place] is None, "the place is taken"
        self.stepper.begin(place, continuation)
        self.texts[place] = text

    def end(self, place: int) -> None:
        """Free a place. What is in flight for its text is dropped."""
        self.texts[place] = None
        self.stepper.end(place)

    def launch(self, order: OrderT) -> None:
        """Keep the backend busy, as long as a text has more room than the steps in flight fill at least."""
        while self.in_flight < self.stepper.max_in_flight and any(
            text is not None and text.room > self.in_flight for text in self.texts
        ):
            self.stepper.launch()
            self._launched.append((list(self.texts), order))

    def collect(self) -> Collected[TextT, OrderT]:
        """Wait for the earliest step in flight."""
        texts, order = self._launched.popleft()
        results = self.stepper.collect()
        kept = [
            (place, text, emitted)
            for place, (text, current, emitted) in enumerate(zip(texts, self.texts, results, strict=True))
            if text is not None and text is current
        ]
        return Collected(kept, order)

    def forget(self) -> None:
        """Free all places and drop what is in flight."""
        self._launched.clear()
        self.texts = [None] * self.stepper.places
        self.stepper.forget()
