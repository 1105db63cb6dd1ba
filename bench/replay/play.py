"""Plays a controller over a trace, in virtual time: what each step would have emitted, and how long it would take.

A controller is what decides before a step: `choose` sees what is known then (`View`) and answers with a `Choice`; after
the step it is told what happened (`Happened`). The time of the pass that reads the prompt is nobody's: it emits the
first token, without masks, and then the clock starts. Drafting is paid per depth, when a score is asked for.

The text is a chain of real rows; masks hang off the last of its tokens (place 0) or off drafts (place 1 is the first):

    newest token - draft - draft        drafts 2, anchors (0, 2), masks 3
         \\m-m-m              \\m-m-m
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.times import StepTimes
from bench.replay.trace import LONGEST, Trace
from stridelm.draft.match import SHORTEST_MATCH
from stridelm.draft.ngram import longest_match

LOOK_UP_K = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """The rows of a step beyond its pending one."""

    drafts: int = 0
    """First choices of the chain, or tokens that look-up found."""
    anchors: tuple[int, ...] = ()
    masks: int = 0
    """Per anchor."""
    seconds: tuple[int, ...] = ()
    """Places (0 for the first) at which the second choice is verified, too: a row each, and a leaf."""
    is_found: bool = False
    """Whether the drafts are those of look-up instead of the chain's."""


PLAIN = Choice()


@dataclass(frozen=True, slots=True)
class Happened:
    """A step, as a controller sees it afterwards."""

    choice: Choice
    emitted: int
    sure: list[float]
    """The model's own probability of each token that it emitted."""
    milliseconds: float
    scores: list[float]
    """Of the chain's drafts that were looked at before the step; judged by what was emitted, whether run or not."""
    stood: int
    """How many of all the chain's drafts the text goes through; of those beyond `emitted` it is not known yet."""


class Controller(Protocol):
    def choose(self, view: "View") -> Choice: ...

    def observe(self, happened: Happened) -> None: ...


class View:
    """What is known before a step. Asking for a score drafts up to there, and the step pays for it."""

    __slots__ = ("_row", "_second", "_trace", "asked", "chain_left", "length", "levels", "used")

    def __init__(self, trace: Trace, length: int, used: int, chain_left: int) -> None:
        self._trace, self.length, self.used, self.chain_left = trace, length, used, chain_left
        self.levels = 0
        """Depths that were drafted."""
        self.asked = False
        """Whether look-up was."""
        anchor = length - 2 - used - trace.first_anchor
        self._row = trace.scores[anchor, used] if chain_left else None
        self._second = trace.second_scores[anchor, used] if chain_left else None

    @property
    def written(self) -> int:
        """Tokens of the answer so far."""
        return self.length - self._trace.prompt_length

    def score(self, depth: int) -> float:
        """Of the first choice at this depth (0 for the first draft); 0 if there is none."""
        if depth >= self.chain_left or self._row is None:
            return 0.0
        self.levels = max(self.levels, depth + 1)
        return float(self._row[self.used + depth])

    def second(self, depth: int) -> float:
        if depth >= self.chain_left or self._second is None:
            return 0.0
        self.levels = max(self.levels, depth + 1)
        return float(self._second[self.used + depth])

    def match(self) -> tuple[int, int]:
        """The length of the match that look-up finds, and how many tokens it proposes."""
        self.asked = True
        _, matched, count = looked_up(self._trace, self.length)
        return matched, count

    def agreeing(self) -> int:
        """How many of look-up's tokens, in a row, are the chain's drafts as well, as far as those were made."""
        if self._row is None:
            return 0
        _, _, count = looked_up(self._trace, self.length)
        anchor = self.length - 2 - self.used - self._trace.first_anchor
        drafted = self._trace.first_tokens[anchor, self.used, self.used :][: min(count, self.levels)]
        place, _ = longest_match(self._trace.tokens[: self.length], LOOK_UP_K)
        return int(np.cumprod(self._trace.tokens[place : place + len(drafted)] == drafted).sum())


@dataclass(slots=True)
class Run:
    tokens: int = 0
    """Emitted by the steps: all but the first."""
    milliseconds: float = 0.0
    steps: int = 0
    drafts: int = 0
    masks: int = 0
    plain_steps: int = 0

    @property
    def pace(self) -> float:
        """Tokens per second."""
        return 1e3 * self.tokens / self.milliseconds

    def add(self, other: "Run") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def looked_up(trace: Trace, length: int) -> tuple[int, int, int]:
    """How many of the tokens that look-up finds after the first `length` tokens stand; the match's length; how many it
    finds."""
    kept = trace.__dict__.setdefault("looked_up", {})
    if length not in kept:
        text = trace.tokens[:length]
        place, matched = longest_match(text, LOOK_UP_K)
        if matched < SHORTEST_MATCH:
            kept[length] = (0, 0, 0)
        else:
            draft = text[place : place + min(LOOK_UP_K, matched)]
            coming = trace.tokens[length : length + len(draft)]
            same = np.cumprod(draft[: len(coming)] == coming).sum()
            kept[length] = (int(same), matched, len(draft))
    return kept[length]


def play(
    trace: Trace, controller: Controller, times: StepTimes, watch: Callable[[View, Happened], None] | None = None
) -> Run:
    """One answer, from its second token to its last."""
    run, end = Run(), len(trace.tokens)
    length, used, chain = trace.prompt_length + 1, 0, 0  # chain: its masks; 0 if there is none
    while length < end:
        view = View(trace, length, used, chain - used if chain else 0)
        choice = controller.choose(view)
        happened, length, used, chain = _step(trace, view, choice, times, chain)
        run.tokens += happened.emitted
        run.milliseconds += happened.milliseconds
        run.steps += 1
        run.drafts += choice.drafts
        run.masks += choice.masks * len(choice.anchors)
        run.plain_steps += not (choice.drafts or choice.anchors)
        controller.observe(happened)
        if watch is not None:
            watch(view, happened)
    return run


def _step(trace: Trace, view: View, choice: Choice, times: StepTimes, chain: int) -> tuple[Happened, int, int, int]:
    """What the choice leads to; then the text's length, and the places used of the chain of how many masks."""
    length, used = view.length, view.used
    anchor = length - 2 - used - trace.first_anchor
    whole = 0 if not chain else min(int(trace.stood[anchor, used]), chain - used)
    if choice.is_found:
        stood = min(looked_up(trace, length)[0], choice.drafts)
    else:
        assert choice.drafts <= view.chain_left, "drafts that no mask proposes"
        stood = min(whole, choice.drafts)
    accepted = stood  # with the second choice that may end the path
    if stood in choice.seconds and stood < view.chain_left and trace.second_stood[anchor, used, used + stood]:
        accepted += 1
    emitted = min(accepted + 1, len(trace.tokens) - length)
    levels = max(view.levels, 0 if choice.is_found else choice.drafts)
    milliseconds = times(1 + choice.drafts + len(choice.seconds), choice.masks * len(choice.anchors), levels)
    milliseconds += times.plan + times.look_up * (view.asked or choice.is_found)
    scores = [] if not view.levels else trace.scores[anchor, used, used : used + view.levels].tolist()
    first = length - trace.prompt_length
    sure = trace.sure_of[first : first + emitted].tolist()
    happened = Happened(choice, emitted, sure, milliseconds, scores, whole)
    # Masks off a second choice are not among the choices: the nearest anchor is one of the first choices.
    nearest = max((place for place in choice.anchors if place <= stood), default=None)
    if nearest is not None:
        used, chain = accepted - nearest, choice.masks
    else:
        used += emitted
    if used >= chain:
        used = chain = 0
    return happened, length + emitted, used, chain


class Fixed:
    """Always as many drafts as the chain has, up to a number, and masks at the same places."""

    def __init__(self, drafts: int, masks: int, where: str) -> None:
        self.drafts, self.masks, self.where = drafts, masks, where

    def choose(self, view: View) -> Choice:
        drafts = min(self.drafts, view.chain_left)
        if self.where == "spare":  # only if the chain that there is will be used up
            anchors = () if view.chain_left > drafts + 1 else (0,)
        else:
            anchors = {"root": (0,), "last": (drafts,), "all": tuple(range(drafts + 1))}[self.where]
        return Choice(drafts, anchors, self.masks) if self.masks else PLAIN

    def observe(self, happened: Happened) -> None:
        """Nothing to learn."""


WHERE = ("root", "last", "all", "spare")
"""Where masks hang in each step: off the newest token, off the last draft, off every row, or off the newest token once
the chain is nearly used up."""


def fixed_choices() -> dict[str, Fixed]:
    return {"plain": Fixed(0, 0, "root")} | {
        f"{drafts} drafts, {masks} masks, {where}": Fixed(drafts, masks, where)
        for where in WHERE
        for masks in range(1, LONGEST + 1)
        for drafts in range(1, masks + 1)
    }
