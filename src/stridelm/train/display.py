"""What a person sees while a conversion runs: a bar in a terminal, a line now and then elsewhere."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_QUIET_SECONDS = 15


class Display:
    """Progress on standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[what]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task: tuple[str, Any] | None = None
        self._said = 0.0
        self._measured = ""

    def __enter__(self) -> "Display":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def report(self, what: str, done: int, of: int, details: str = "") -> None:
        if self._task is None or self._task[0] != what:
            self._task = what, self.progress.add_task(what, total=of, what="")
            self._said = 0.0
        self.progress.update(self._task[1], completed=done, total=of, what=details)
        if not self.console.is_terminal and (done == of or time.monotonic() - self._said > _QUIET_SECONDS):
            self._said = time.monotonic()
            self.console.print(f"{what}: {done}/{of} {details}".rstrip(), soft_wrap=True)

    def watch(self, steps: int, entry: dict[str, Any]) -> None:
        """A line of metrics.jsonl."""
        if "acceptance" in entry:
            rates = " ".join(f"{rate:.2f}" for rate in entry["acceptance"])
            self._measured = f"{entry['tokens_per_forward']:.2f} tokens/forward ({rates})"
            if not self.console.is_terminal:
                self.console.print(f"step {entry['step']}: held out: {self._measured}", soft_wrap=True)
            return
        details = f"loss {entry['loss']:.3f}, {entry['tokens_per_second']:,.0f} tokens/s"
        self.report("training", entry["step"], steps, f"{details}, {self._measured}")
