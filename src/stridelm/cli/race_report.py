"""What came out of races: the figures of one, and what is printed of one or several."""

import json
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stridelm.prompts import PromptLine
from stridelm.types import Result

_LABEL = 24
"""Maximum number of characters of a prompt that stands for itself, because it has no category."""


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """One of the two answers."""

    name: str
    tokens: int
    forwards: int
    tokens_per_forward: float
    seconds: float
    path: str

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """One race: the two lanes, and whether their answers are the same."""

    label: str
    """What the prompt is called in few words."""
    decoder: str
    plain: LaneFigures
    other: LaneFigures
    exact: bool
    """Whether the decoder claims to write what one token at a time does."""
    breaks_promise: bool
    """Whether the answers differ although both claim to be exact."""
    exact_to: str
    first_difference: int | None
    """The position of the first token that differs; None if none does."""

    @property
    def identical(self) -> bool:
        return self.first_difference is None

    @property
    def speed_up(self) -> float:
        """Of the whole answer, reading the prompt included. Answers that differ may have different lengths, so this is
        in time, as the user waits for it."""
        return self.plain.seconds / self.other.seconds

    @property
    def verdict(self) -> str:
        if self.identical:
            return f"identical, all {self.plain.tokens} tokens"
        return f"differ from token {self.first_difference} on"


def shortened(text: str, most: int) -> str:
    """By whole words, if the first one fits."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    if text[most - 1] != " " and " " in cut:
        cut = cut.rsplit(" ", 1)[0]
    return f"{cut.rstrip()}\u2026"


def outcome_of(line: PromptLine, plain: Result, plain_seconds: float, other: Result, seconds: float) -> Outcome:
    first = first_difference(plain.token_ids, other.token_ids)
    return Outcome(
        label=line.category or shortened(line.shown, _LABEL),
        decoder=other.decoder,
        plain=_figures("one token at a time", plain, plain_seconds),
        other=_figures(f"several: {other.decoder}", other, seconds),
        exact=other.exact,
        breaks_promise=first is not None and plain.exact and other.exact,
        exact_to=plain.exact_to,
        first_difference=first,
    )


def _figures(name: str, result: Result, seconds: float) -> LaneFigures:
    stats = result.stats
    return LaneFigures(name, stats.tokens, stats.forwards, stats.tokens_per_forward, seconds, result.path)


def first_difference(plain: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    for place, (ours, theirs) in enumerate(zip_longest(plain, other)):
        if ours != theirs:
            return place
    return None


def print_lanes(outcome: Outcome, console: Console) -> None:
    """The figures of one race, by lane."""
    table = Table("lane", "tokens", "forwards", "tokens per forward", "seconds", "tokens/s", "path", box=None,
                  pad_edge=False)  # fmt: skip
    for lane in (outcome.plain, outcome.other):
        table.add_row(lane.name, str(lane.tokens), str(lane.forwards), f"{lane.tokens_per_forward:.2f}",
                      f"{lane.seconds:.2f}", f"{lane.tokens_per_second:.1f}", lane.path)  # fmt: skip
    console.print(table)
    line = f"speed-up {outcome.speed_up:.2f}x, answers {outcome.verdict} ({outcome.exact_to})"
    console.out(line, style="bold")


def print_summary(outcomes: list[Outcome], console: Console) -> None:
    """A line for each race, and a last line that says what was gained on each."""
    table = Table(box=None, pad_edge=False)
    for title in ("prompt", "one at a time", outcomes[0].other.name, "speed-up", "tokens/forward", "answers"):
        table.add_column(title, no_wrap=title != "prompt")
    for each in outcomes:
        speeds = (f"{lane.tokens_per_second:.0f} tokens/s" for lane in (each.plain, each.other))
        verdict = "identical" if each.identical else f"differ at {each.first_difference}"
        table.add_row(Text(each.label), *speeds, f"{each.speed_up:.2f}x",
                      f"{each.other.tokens_per_forward:.2f}", verdict)  # fmt: skip
    console.print(table)
    paths = dict.fromkeys(lane.path for each in outcomes for lane in (each.plain, each.other))
    console.print(f"{outcomes[0].exact_to}; {' and '.join(paths)}", style="dim", markup=False)
    gains = ", ".join(f"{each.label} {each.speed_up:.2f}x" for each in outcomes)
    same = sum(each.identical for each in outcomes)
    verdict = "all answers identical" if same == len(outcomes) else f"{same} of {len(outcomes)} answers identical"
    console.print(f"speed-up: {gains}; {verdict}", style="bold", markup=False, soft_wrap=True)


def print_json(outcome: Outcome) -> None:
    plain, other = outcome.plain, outcome.other
    report = {
        "label": outcome.label, "decoder": outcome.decoder, "exact": outcome.exact, "identical": outcome.identical,
        "first_difference": outcome.first_difference, "speed_up": round(outcome.speed_up, 4), "tokens": other.tokens,
        "forwards": other.forwards, "tokens_per_forward": round(other.tokens_per_forward, 4),
        "tokens_per_s": round(other.tokens_per_second, 2), "plain_tokens_per_s": round(plain.tokens_per_second, 2),
        "path": other.path, "plain_path": plain.path,
    }  # fmt: skip
    print(json.dumps(report), flush=True)
