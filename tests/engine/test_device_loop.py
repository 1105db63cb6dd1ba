"""The loop over a backend's own steps, driven by hand: what a text gets is its own, whoever had its place before and
whatever was in flight when it came."""

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from random import Random

import pytest

from stridelm.engine.device_loop import DeviceLoop
from stridelm.stepper import Continuation, Emitted


class CountingStepper:
    """A text that begins with the token n goes on with n + 1, n + 2, ... What a step writes is settled when it is
    launched, as on a device."""

    obeys = frozenset({"max_tokens"})
    plans = False
    drafts, rows, seconds = 0, 1, 1.0

    def __init__(self, places: int, max_in_flight: int) -> None:
        self.places, self.max_in_flight = places, max_in_flight
        self.last: list[int | None] = [None] * places
        self.results: deque[list[Emitted]] = deque()

    def begin(self, place: int, text: Continuation) -> None:
        self.last[place] = text.pending

    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        raise AssertionError("nobody has blocks to give")

    def end(self, place: int) -> None:
        self.last[place] = None

    def launch(self, waiting: Items[int] = ()) -> None:
        assert not waiting and len(self.results) < self.max_in_flight
        self.last = [None if token is None else token + 1 for token in self.last]
        self.results.append([Emitted(() if token is None else (token,), ()) for token in self.last])

    def collect(self) -> list[Emitted]:
        return self.results.popleft()

    def forget(self) -> None:
        self.results.clear()
        self.last = [None] * self.places


@dataclass(eq=False)
class CountingText:
    first: int
    max_tokens: int = 10**6
    written: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.max_tokens - len(self.written)

    @property
    def is_own(self) -> bool:
        return self.written == [self.first + 1 + count for count in range(len(self.written))]


CountingLoop = DeviceLoop[CountingText, str]


def begin(loop: CountingLoop, place: int, text: CountingText) -> CountingText:
    loop.begin(place, text, Continuation(cached=0, pending=text.first, room=text.room, blocks=()))
    return text


def collect(loop: CountingLoop) -> str:
    """What the step was launched with."""
    collected = loop.collect()
    for place, text, emitted in collected.texts:
        assert loop.texts[place] is text
        text.written.extend(emitted.tokens)
    return collected.order


@pytest.mark.parametrize("max_in_flight", [1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_texts_come_and_go_and_get_only_their_own(seed: int, max_in_flight: int) -> None:
    dice = Random(seed)
    loop = CountingLoop(CountingStepper(3, max_in_flight))
    texts: list[CountingText] = []
    for _ in range(400):
        place = dice.randrange(3)
        action = dice.choice(("come", "leave", "launch", "collect", "collect"))
        if action == "come" and loop.texts[place] is None:
            texts.append(begin(loop, place, CountingText(1000 * (len(texts) + 1))))
        elif action == "leave" and loop.texts[place] is not None:
            loop.end(place)
        elif action == "launch":
            loop.launch("")
        elif action == "collect" and loop.in_flight:
            collect(loop)
    assert len(texts) > 10 and sum(len(text.written) for text in texts) > 50
    assert all(text.is_own for text in texts)


def test_the_next_text_of_a_place_gets_nothing_that_is_in_flight() -> None:
    loop = CountingLoop(CountingStepper(2, 2))
    stays, leaves = begin(loop, 0, CountingText(100)), begin(loop, 1, CountingText(200))
    loop.launch("before")
    loop.end(1)
    assert loop.free_places() == [1]
    comes = begin(loop, 1, CountingText(300))
    assert (collect(loop), collect(loop)) == ("before", "before")
    loop.launch("after")
    assert collect(loop) == "after"
    assert (stays.written, leaves.written, comes.written) == ([101, 102, 103], [], [301])


def test_forget_frees_places_and_drops_what_is_in_flight() -> None:
    stepper = CountingStepper(2, 2)
    loop = CountingLoop(stepper)
    begin(loop, 0, CountingText(100))
    loop.launch("")
    assert loop.in_flight == 2
    loop.forget()
    assert (loop.in_flight, loop.free_places(), stepper.last, len(stepper.results)) == (0, [0, 1], [None, None], 0)
    text = begin(loop, 0, CountingText(200))
    loop.launch("")
    collect(loop)
    assert text.written == [201]


def test_a_loop_begins_with_a_stepper_that_is_free() -> None:
    """Whoever used it last may have left texts and steps in flight."""
    stepper = CountingStepper(1, 2)
    begin(CountingLoop(stepper), 0, CountingText(100))
    stepper.launch()
    CountingLoop(stepper)
    assert (stepper.last, len(stepper.results)) == ([None], 0)


@pytest.mark.parametrize(("rooms", "launched"), [((), 0), ((1,), 1), ((2,), 2), ((1, 3), 3), ((9, 9), 4)])
def test_no_step_is_launched_that_no_text_has_room_for(rooms: tuple[int, ...], launched: int) -> None:
    loop = CountingLoop(CountingStepper(2, 4))
    for place, room in enumerate(rooms):
        begin(loop, place, CountingText(100 * place, room))
    loop.launch("")
    loop.launch("")
    assert loop.in_flight == launched
