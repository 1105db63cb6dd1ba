"""The race: one prompt, one model, two lanes. One token at a time against the chosen decoder, live.

Each lane has its own engine and its own clock, which runs only while the lane does. The lane whose clock is behind
always runs next, so that it looks like two machines side by side, and neither lane slows the other down.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stridelm.api import Answer, LanguageModel, Prompt
from stridelm.params import InputError, SamplingParams
from stridelm.settings import PLAIN, DecodeSettings

_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7")
"""Strides take these in turn (the palette of Okabe and Ito, which colour-blind people can tell apart)."""
_WARM_UP = SamplingParams(max_tokens=4)


@dataclass(slots=True)
class RaceLane:
    """One decoder's answer and the time that it has taken so far."""

    title: str
    answer: Answer
    seconds: float = 0.0
    text: Text = field(default_factory=Text)
    done: bool = False

    def advance(self) -> None:
        before = time.perf_counter()
        stride = next(self.answer, None)
        self.seconds += time.perf_counter() - before
        if stride is None:
            self.done = True
            return
        self.text.append(stride.text, style=_COLOURS[len(self.answer.strides) % len(_COLOURS)])
        self.done = stride.finish_reason is not None

    @property
    def tokens_per_second(self) -> float:
        return self.answer.sequence.stats.tokens / self.seconds if self.seconds else 0.0

    def counters(self) -> str:
        stats = self.answer.sequence.stats
        return (
            f"{stats.tokens} tokens / {stats.forwards} forwards = {stats.tokens_per_forward:.2f}\n"
            f"{self.seconds:.1f} s, {self.tokens_per_second:.1f} tokens/s"
        )


def run_race(
    model: LanguageModel,
    prompt: Prompt,
    params: SamplingParams,
    decoder: DecodeSettings,
    *,
    raw: bool,
    as_json: bool,
    console: Console | None = None,
) -> None:
    """Race `decoder` against plain decoding of the same model, then compare their tokens."""
    if decoder.decoder == PLAIN:
        raise InputError("--race runs one token at a time against another decoder: choose one with --decoder")
    if params.temperature and params.seed is None:
        raise InputError("--race at a temperature needs a --seed, the same for both lanes")
    console = console or Console(highlight=False, stderr=as_json)
    lanes: list[RaceLane] = []
    for title, settings, own in (
        ("one token at a time", DecodeSettings(PLAIN), model),
        ("", decoder, model.twin()),
    ):
        own.stream(prompt, _WARM_UP, decoder=settings, raw=raw).result()
        own.forget()
        answer = own.stream(prompt, params, decoder=settings, raw=raw)
        lanes.append(RaceLane(title or f"several: {answer.decoder}", answer))
    if console.is_terminal:
        with Live(_picture(lanes, console), console=console, refresh_per_second=12, vertical_overflow="crop") as live:
            _run(lanes, lambda: live.update(_picture(lanes, console)))
    else:
        _run(lanes, lambda: None)
        console.print(_picture(lanes, console))
    _report(lanes, console, as_json)


def _run(lanes: list[RaceLane], show: Callable[[], None]) -> None:
    while open_lanes := [lane for lane in lanes if not lane.done]:
        min(open_lanes, key=lambda lane: lane.seconds).advance()
        show()


def _picture(lanes: list[RaceLane], console: Console) -> Columns:
    # The newest lines of each lane, so that a long answer stays in the window.
    width = max(20, console.width // 2 - 5)
    height = max(4, min(30, console.height - 12)) if console.is_terminal else 1000
    panels = []
    for lane in lanes:
        newest = Text("\n").join(lane.text.wrap(console, width)[-height:])
        # Counters go inside the panel, where a narrow window wraps them; in the border they would be cut off.
        body = Group(newest, Text(), Text(lane.counters(), style="dim"))
        panels.append(Panel(body, title=lane.title, width=console.width // 2))
    return Columns(panels, padding=0)


def _first_difference(plain: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    for place, (ours, theirs) in enumerate(zip_longest(plain, other)):
        if ours != theirs:
            return place
    return None


def _report(lanes: list[RaceLane], console: Console, as_json: bool) -> None:
    plain, other = (lane.answer.result() for lane in lanes)
    speed_up = lanes[0].seconds / lanes[1].seconds
    first = _first_difference(plain.token_ids, other.token_ids)
    table = Table("lane", "tokens", "forwards", "tokens per forward", "seconds", "tokens/s", "path", box=None,
                  pad_edge=False)  # fmt: skip
    for lane, result in zip(lanes, (plain, other), strict=True):
        stats = result.stats
        table.add_row(lane.title, str(stats.tokens), str(stats.forwards), f"{stats.tokens_per_forward:.2f}",
                      f"{lane.seconds:.2f}", f"{lane.tokens_per_second:.1f}", result.path)  # fmt: skip
    console.print(table)
    verdict = f"identical, all {len(plain.token_ids)} tokens" if first is None else f"differ from token {first} on"
    console.out(f"speed-up {speed_up:.2f}x, answers {verdict} ({plain.exact_to})", style="bold")
    if as_json:
        report = {
            "decoder": other.decoder, "exact": other.exact, "identical": first is None, "first_difference": first,
            "speed_up": round(speed_up, 4), "tokens": other.stats.tokens, "forwards": other.stats.forwards,
            "tokens_per_forward": round(other.stats.tokens_per_forward, 4),
            "path": other.path, "plain_path": plain.path,
        }  # fmt: skip
        print(json.dumps(report), file=sys.stdout)
    if first is not None and plain.exact and other.exact:
        raise SystemExit(1)  # both lanes claim to be exact, and one of them is not
