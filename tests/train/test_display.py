"""What a person sees while a conversion runs."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from stridelm.train import display
from stridelm.train.display import Display

LOSS: dict[str, Any] = {"step": 1250, "loss": 0.8123, "steps_per_second": 10.0, "tokens_per_second": 145_678.2}
RATES = [0.75, 0.62, 0.55, 0.5, 0.45, 0.4, 0.36, 0.33]
MEASURED: dict[str, Any] = {"step": 1000, "tokens_per_forward": 2.834, "acceptance": RATES}


def shown(*entries: dict[str, Any], is_terminal: bool, steps: int = 2000) -> list[str]:
    """The lines at the end, at the usual width of a terminal's window."""
    screen = io.StringIO()
    with Display(Console(file=screen, force_terminal=is_terminal, width=100, color_system=None)) as progress:
        progress.report("writing answers", 40, 40)
        for entry in entries:
            progress.watch(steps, entry)
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_in_a_terminal_nothing_is_cut_off() -> None:
    answers, bar, loss, measured = [line.rstrip() for line in shown(MEASURED, LOSS, is_terminal=True) if line][-4:]
    assert re.fullmatch(r"writing answers ━+ +40/40 +0:00:00", answers)
    assert re.fullmatch(r"training +[━╸╺]+ +1250/2000 +0:00:00 +0:01:15 left", bar)
    assert measured == (
        "held out: 2.83 tokens per forward, acceptance by depth 0.75 0.62 0.55 0.50 0.45 0.40 0.36 0.33"
    )
    assert loss == "loss 0.812, 145,678 tokens/s"


def test_many_depths_take_more_lines() -> None:
    lines = shown({**MEASURED, "acceptance": [rate / 100 for rate in range(63)]}, LOSS, is_terminal=True)
    last = " ".join(" ".join(lines[-8:]).split())
    assert " ".join(f"{rate / 100:.2f}" for rate in range(63)) in last


def test_elsewhere_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    later = [{**LOSS, "step": step} for step in (1260, 1270, 2000)]
    lines = shown(MEASURED, LOSS, *later, is_terminal=False)
    assert lines == [
        "writing answers 40/40",
        "step 1000, held out: 2.83 tokens per forward, acceptance by depth 0.75 0.62 0.55 0.50 0.45 0.40 0.36 0.33",
        "training 1250/2000, loss 0.812, 145,678 tokens/s, 0:01:15 left",
        "training 2000/2000, loss 0.812, 145,678 tokens/s",
    ]
    monkeypatch.setattr(display, "_QUIET_SECONDS", 0)
    assert len(shown(MEASURED, LOSS, *later, is_terminal=False)) == len(lines) + 2


def test_time_left_of_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(display.time, "monotonic", lambda: now)
    screen = io.StringIO()
    with Display(Console(file=screen, width=100)) as progress:
        progress.report("writing answers", 100, 500)
        now += 30
        progress.report("writing answers", 200, 500)
    assert screen.getvalue().splitlines()[-1] == "writing answers 200/500, 0:01:30 left"
