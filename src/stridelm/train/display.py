"""Progress of a conversion: in a terminal a bar with figures below it, otherwise an occasional line."""

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

_QUIET_SECONDS = 15


class Display:
    """Progress on standard error."""

    def __init__(self, console: Console | None = None, *, speaks: bool = True) -> None:
        self.console = console or Console(stderr=True, highlight=False, quiet=not speaks)
        self.progress = _BarWithFigures(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._what = ""
        self._task = TaskID(0)
        self._first, self._since, self._said = 0, 0.0, 0.0

    def __enter__(self) -> "Display":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)

    def report(self, what: str, done: int, of: int) -> None:
        self._begin(what, done)
        seconds = time.monotonic() - self._since
        self._show(done, of, (done - self._first) / seconds if seconds else 0.0)

    def watch(self, steps: int, entry: dict[str, Any]) -> None:
        """Show an entry of metrics.jsonl."""
        if "loss" not in entry:
            measured = f"held out: {_measured(entry)}"
            self.progress.figures["measured"] = measured
            if not self.console.is_terminal:
                self.console.print(f"step {entry['step']}, {measured}", soft_wrap=True)
            return
        self._begin("training", entry["step"])
        self.progress.figures["loss"] = f"loss {entry['loss']:.3f}, {entry['tokens_per_second']:,.0f} tokens/s"
        self._show(entry["step"], steps, entry["steps_per_second"], self.progress.figures["loss"])

    def _begin(self, what: str, done: int) -> None:
        if self._what != what:
            self._what, self._first, self._since, self._said = what, done, time.monotonic(), 0.0
            self._task = self.progress.add_task(what, left="")

    def _show(self, done: int, of: int, per_second: float, figures: str = "") -> None:
        left = f"{timedelta(seconds=round((of - done) / per_second))} left" if per_second and done < of else ""
        self.progress.update(self._task, completed=done, total=of, left=left)
        if not self.console.is_terminal and (done == of or time.monotonic() - self._said > _QUIET_SECONDS):
            self._said = time.monotonic()
            parts = [f"{self._what} {done}/{of}", figures, left]
            self.console.print(", ".join(part for part in parts if part), soft_wrap=True)


def _measured(entry: dict[str, Any]) -> str:
    if "held_out_loss" in entry:
        return f"{entry['held_out_loss']:.3f} nats per token"
    rates = " ".join(f"{rate:.2f}" for rate in entry["acceptance"])
    return f"{entry['tokens_per_forward']:.2f} tokens per forward, acceptance by depth {rates}"


class _BarWithFigures(Progress):
    def __init__(self, *columns: TextColumn | BarColumn | TimeElapsedColumn, console: Console, disable: bool) -> None:
        self.figures = {"loss": "", "measured": ""}
        super().__init__(*columns, console=console, disable=disable)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from (Text(line) for line in self.figures.values() if line)
