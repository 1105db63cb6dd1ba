"""A device that is a hash: keeps `stepper.Stepper` over the memory of a HashForward, as a GPU would.

What a step reads and writes lies in the cache's memory, by the blocks that it was given: lost or overwritten ones show
as wrong tokens. It does so when it is launched; the results wait until they are collected.
"""

import math
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from random import Random
from typing import Literal, get_args

import numpy as np

from hashing_model import CONTEXT, VOCABULARY, HashForward, TokenMemory, answer, contributions, logits_of
from stridelm.backends.gpu.stepper import GpuStepper
from stridelm.cache.kv_cache import BLOCK_SIZE, KVCache, blocks_for
from stridelm.decode.autoregressive import Autoregressive
from stridelm.params import SamplingParams
from stridelm.sampling import draw
from stridelm.stepper import GREEDY, Continuation, Emitted
from stridelm.types import Sequence

_MASK = -2
"""What a mask row, or one without a draft, leaves in the memory: nobody may read it."""
_NO_DRAFT = -1

Fault = Literal["make", "seconds", "begin", "end", "forget", "launch", "launched", "collect", "place"]
"""Where a stepper fails: when it is made, timed, given a text, rid of one or of all; a step before it has run or after,
when it is collected, or in what it gave one of several texts."""
FAULTS: tuple[Fault, ...] = get_args(Fault)


@dataclass
class Device:
    """How the steppers of a forward behave, and what they have done."""

    right: float = 0.7
    """How often a draft is right, if all before it are."""
    row_seconds: float = 0.01
    """Of a step, per draft and place, beside a second for the step itself."""
    launches: int = 0
    begins: int = 0
    spoilt: set[int] = field(default_factory=set)
    """Texts that begin with one of these tokens have logits that are not finite."""
    faults: list[Fault] = field(default_factory=list)
    """What goes wrong next, the first one first: each happens once."""

    failed: int = 0
    """Faults that have happened."""

    def fail(self, kind: Fault) -> None:
        """Raise if this is the next fault."""
        if self.is_due(kind):
            self.failed += 1
            raise RuntimeError(f"the device failed: {kind}")

    def is_due(self, kind: Fault) -> bool:
        is_due = self.faults[:1] == [kind]
        del self.faults[: int(is_due)]
        return is_due


class SteppingForward(HashForward):
    """A HashForward whose steps the device can run by itself."""

    def __init__(self, blocks: int, device: Device | None = None) -> None:
        super().__init__(blocks)
        # Behind the blocks of the cache lies one for the rows of nobody.
        self.memory = TokenMemory((blocks + 1) * BLOCK_SIZE)
        self.cache = KVCache(blocks * BLOCK_SIZE, self.memory)
        self.device = device or Device()
        self.steppers: dict[tuple[int, int, frozenset[int]], HashStepper] = {}

    def stepper(self, drafts: int, places: int, ends: frozenset[int]) -> "HashStepper":  # type: ignore[override]
        key = (drafts, places, ends)
        if key not in self.steppers:
            self.device.fail("make")
            self.steppers[key] = HashStepper(self, *key)
        return self.steppers[key]

    @property
    def in_flight(self) -> int:
        return sum(stepper.in_flight for stepper in self.steppers.values())


@dataclass
class _Place:
    """What the device knows of a text."""

    start: int = 0
    ids: list[int] = field(default_factory=list)
    """The pending token and the drafts."""
    room: int = 0
    blocks: list[int] = field(default_factory=list)
    """None: nobody is here."""
    params: SamplingParams = GREEDY
    seed: int = 0
    choice: int = 0

    def draw(self, seen: list[int]) -> int:
        logits_V = _logits_after(seen)
        return draw(logits_V, self.params, seen, len(seen), seed=self.seed, choice=self.choice)


class Unreadable(Emitted):
    """What a step gave one text, which the host cannot read."""

    __slots__ = ("device",)

    def __init__(self, device: Device) -> None:
        object.__setattr__(self, "device", device)

    def __getattribute__(self, name: str) -> object:
        if name == "device":
            return object.__getattribute__(self, name)
        self.device.failed += 1  # or nobody may look at it
        raise RuntimeError("the device failed: place")


class HashStepper:
    """Obeys what the GPU's steppers obey."""

    obeys = GpuStepper.obeys
    plans = False

    def __init__(self, forward: SteppingForward, drafts: int, places: int, ends: frozenset[int]) -> None:
        self.drafts, self.places, self.ends, self.max_in_flight = drafts, places, ends, 2
        self.rows = (drafts + 1) ** 2
        self.cache, self.tokens, self.device = forward.cache, forward.memory.tokens, forward.device
        self._texts = [_Place() for _ in range(places)]
        self._results: deque[list[Emitted]] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._results)

    @property
    def seconds(self) -> float:
        assert not self.in_flight and not any(text.blocks for text in self._texts), "measured while somebody is there"
        self.device.fail("seconds")
        return 1 + self.device.row_seconds * self.drafts * self.places

    def begin(self, place: int, text: Continuation) -> None:
        assert text.room > 0 and text.pending >= 0
        self.device.fail("begin")
        self.device.begins += 1
        ids = [text.pending, *[_NO_DRAFT] * self.drafts]
        self._texts[place] = _Place(text.cached, ids, text.room, list(text.blocks), text.params, text.seed, text.choice)

    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        self._texts[place].blocks = list(blocks)

    def end(self, place: int) -> None:
        self.device.fail("end")
        self._texts[place] = _Place()

    def forget(self) -> None:
        self._results.clear()
        self._texts = [_Place() for _ in range(self.places)]
        self.device.fail("forget")

    def launch(self, waiting: Items[int] = ()) -> None:
        assert not waiting and self.in_flight < self.max_in_flight
        self.device.fail("launch")
        self.device.launches += 1
        # All write, then all read: a step that wrote into another's blocks would be seen.
        for text in self._texts:
            self._write(text)
        self._results.append([self._read(text) for text in self._texts])
        self.device.fail("launched")

    def collect(self) -> list[Emitted]:
        self.device.fail("collect")
        results = self._results.popleft()
        written = [place for place, emitted in enumerate(results) if emitted.tokens]
        if written and self.device.is_due("place"):
            results[written[-1]] = Unreadable(self.device)
        return results

    def _write(self, text: _Place) -> None:
        if not text.blocks:
            self.tokens[-BLOCK_SIZE:] = _MASK
            return
        places = np.arange(text.start, text.start + self.rows)
        written = text.blocks[text.start // BLOCK_SIZE : blocks_for(text.start + self.rows)]
        assert len(text.blocks) >= blocks_for(text.start + self.rows), "rows lie behind the text's blocks"
        held = blocks_for(text.start + self.rows)
        owners = [table for table in self.cache.tables if table.blocks[:held] == text.blocks[:held]]
        assert len(owners) == 1 and owners[0].length <= text.start, "the blocks are not the text's"
        assert (self.cache.references[written] == 1).all(), "a step writes into a shared block"
        self.tokens[self._slots(text, places)] = [
            *(token if token >= 0 else _MASK for token in text.ids),
            *[_MASK] * (self.rows - len(text.ids)),
        ]

    def _read(self, text: _Place) -> Emitted:
        """Walk the chain, and leave the place as the next step finds it."""
        emitted: list[int] = []
        confidence: list[float] = []
        drafts = tuple(token for token in text.ids[1:] if token != _NO_DRAFT)
        while text.room and text.blocks:
            seen = self.tokens[self._slots(text, np.arange(text.start + len(emitted) + 1))].tolist()
            logits_V, token = _logits_after(seen), text.draw(seen)
            emitted.append(token)
            confidence.append(float(1 / np.exp(logits_V - logits_V[token]).sum()))
            is_end = token in self.ends or len(emitted) == text.room
            if is_end or text.ids[len(emitted) : len(emitted) + 1] != [token]:
                break
        if emitted and self.tokens[text.blocks[0] * BLOCK_SIZE] in self.device.spoilt:
            confidence[-1] = math.nan
        if not emitted or emitted[-1] in self.ends or len(emitted) == text.room:
            text.room = 0  # it stays where it is, and its rows are run on
        else:
            text.start += len(emitted)
            text.room -= len(emitted)
            text.ids = [emitted[-1], *self._draft(text, emitted[-1])]
        return Emitted(tuple(emitted), tuple(confidence), drafts)

    def _draft(self, text: _Place, pending: int) -> list[int]:
        """What will follow, or something else."""
        seen = [*self.tokens[self._slots(text, np.arange(text.start))].tolist(), pending]
        dice = Random(repr(seen))  # whatever the others do
        drafts: list[int] = []
        for _ in range(self.drafts):
            if len(seen) >= CONTEXT or dice.random() > self.device.right:
                drafts.append(dice.randrange(VOCABULARY))
            else:
                drafts.append(text.draw(seen))
            seen.append(drafts[-1])
        return drafts

    @staticmethod
    def _slots(text: _Place, places: np.ndarray) -> np.ndarray:
        return np.asarray(text.blocks)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE


def _logits_after(seen: list[int]) -> np.ndarray:
    assert min(seen) >= 0, "a row saw what is no token"
    return logits_of(np.array([contributions(seen, range(len(seen))).sum(dtype=np.uint64)]))[0]


class Drafting(Autoregressive):
    """A policy whose steps a device may run with drafts. The host runs them without."""

    def __init__(self, drafts: int = 4, spare_rows: int = 0) -> None:
        self.own_drafts: int | None = drafts
        self.spare_rows = spare_rows


def expected(sequence: Sequence) -> list[int]:
    """The sequence's answer, by a model without a cache: up to what ends it."""
    prompt = sequence.tokens[: sequence.prompt_length]
    written: list[int] = []
    for token in answer(prompt, sequence.params, sequence.seed, sequence.choice):
        written.append(token)
        text = " ".join(chr(ord("a") + each) for each in written)
        if token in sequence.eos_ids or any(stop in text for stop in sequence.params.stop):
            break
    return written
