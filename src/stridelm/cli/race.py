"""The race: one prompt, one model, two lanes. One token at a time against the chosen decoder, live; several prompts one
after the other.

Each lane has its own engine and its own clock, which runs only while the lane does. The lane whose clock is behind
always runs next, for about as long as the eye sees one picture, so that it looks like two machines side by side, and
neither lane slows the other down. Turns are no shorter, because a backend may run a step ahead: what it still runs when
a turn ends must be little beside the turn. The screen is drawn between turns, when no clock runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from stridelm.api import Answer, LanguageModel
from stridelm.cli.race_report import Outcome, outcome_of, print_json, print_lanes, print_summary, shortened
from stridelm.params import InputError, SamplingParams
from stridelm.prompts import PromptLine
from stridelm.settings import PLAIN, DecodeSettings

_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7")
"""Strides take these in turn (the palette of Okabe and Ito, which colour-blind people can tell apart)."""
_WARM_UP = SamplingParams(max_tokens=4)
_TURN = 1 / 12
"""Seconds that a lane runs before the other may."""
_WRAPPED = 16
"""Characters that the end of a line may lose to a word that does not fit."""


@dataclass(slots=True)
class RaceLane:
    """One decoder's answer and the time that it has taken so far."""

    title: str
    answer: Answer
    seconds: float = 0.0
    text: Text = field(default_factory=Text)
    done: bool = False

    def take_turn(self) -> None:
        end = self.seconds + _TURN
        while not self.done and self.seconds < end:
            self.advance()

    def advance(self) -> None:
        before = time.perf_counter()
        stride = next(self.answer, None)
        self.seconds += time.perf_counter() - before
        if stride is None:
            self.done = True
            return
        self.text.append(stride.text, style=_COLOURS[len(self.answer.strides) % len(_COLOURS)])
        self.done = stride.finish_reason is not None

    def counters(self, width: int) -> str:
        stats = self.answer.sequence.stats
        speed = stats.tokens / self.seconds if self.seconds else 0.0
        parts = (
            f"{stats.tokens} tokens / {stats.forwards} forwards = {stats.tokens_per_forward:.2f}",
            f"{self.seconds:.2f} s, {speed:.0f} tokens/s",
        )
        line = ", ".join(parts)
        return line if len(line) <= width else "\n".join(parts)


def run_races(
    model: LanguageModel,
    lines: list[PromptLine],
    params: SamplingParams,
    decoder: DecodeSettings,
    *,
    raw: bool,
    as_json: bool,
    console: Console | None = None,
) -> None:
    """Race `decoder` against plain decoding of the same model on each prompt, then compare their tokens. Ends with exit
    status 1 if two answers differ that both claim to be exact."""
    if decoder.decoder == PLAIN:
        raise InputError("--race runs one token at a time against another decoder: choose one with --decoder")
    if params.temperature and params.seed is None:
        raise InputError("--race at a temperature needs a --seed, the same for both lanes")
    console = console or Console(highlight=False, stderr=as_json)
    outcomes: list[Outcome] = []
    for number, line in enumerate(lines):
        if len(lines) > 1:
            _print_prompt(line, console)
        lanes = _lanes(model, line, params, decoder, raw=raw)
        # Neither lane is the one that always begins.
        _race(lanes, lanes if number % 2 == 0 else lanes[::-1], console)
        plain, other = (lane.answer.result() for lane in lanes)
        outcomes.append(outcome_of(line, plain, lanes[0].seconds, other, lanes[1].seconds))
        if len(lines) == 1:
            print_lanes(outcomes[0], console)
        if as_json:
            print_json(outcomes[-1])
    if len(lines) > 1:
        print_summary(outcomes, console)
    if any(outcome.breaks_promise for outcome in outcomes):
        raise SystemExit(1)


def _lanes(
    model: LanguageModel, line: PromptLine, params: SamplingParams, decoder: DecodeSettings, *, raw: bool
) -> list[RaceLane]:
    """Both warmed up in the same way. The decoder's engine is new, so it has learnt nothing from races before."""
    lanes: list[RaceLane] = []
    for title, settings, own in (
        ("one token at a time", DecodeSettings(PLAIN), model),
        ("", decoder, model.twin()),
    ):
        own.stream(line.prompt, _WARM_UP, decoder=settings, raw=raw).result()
        own.forget()
        answer = own.stream(line.prompt, params, decoder=settings, raw=raw)
        lanes.append(RaceLane(title or f"several: {answer.decoder}", answer))
    return lanes


def _race(lanes: list[RaceLane], order: list[RaceLane], console: Console) -> None:
    """`order`: the first of these runs first."""
    if console.is_terminal:
        picture = _picture(lanes, console)
        with Live(picture, console=console, auto_refresh=False, vertical_overflow="crop") as live:
            _run(order, lambda: live.update(_picture(lanes, console), refresh=True))
    else:
        _run(order, lambda: None)
        console.print(_picture(lanes, console))


def _run(lanes: list[RaceLane], show: Callable[[], None]) -> None:
    while open_lanes := [lane for lane in lanes if not lane.done]:
        min(open_lanes, key=lambda lane: lane.seconds).take_turn()
        show()


def _print_prompt(line: PromptLine, console: Console) -> None:
    """What the race is about, in two lines at most."""
    label = f"{shortened(line.category, console.width)}: " if line.category else ""
    text = shortened(line.shown, max(_WRAPPED, 2 * console.width - len(label) - _WRAPPED))
    console.print(Text(label, style="bold").append(text, style="not bold"))


def _picture(lanes: list[RaceLane], console: Console) -> Columns:
    # The newest lines of each lane, so that a long answer stays in the window.
    width = max(20, console.width // 2 - 5)
    height = max(4, min(30, console.height - 12)) if console.is_terminal else 1000
    panels = []
    for lane in lanes:
        newest = Text("\n").join(lane.text.wrap(console, width)[-height:])
        # Counters go inside the panel, where a narrow window wraps them; in the border they would be cut off.
        body = Group(newest, Text(), Text(lane.counters(width), style="dim"))
        panels.append(Panel(body, title=lane.title, width=console.width // 2))
    return Columns(panels, padding=0)
