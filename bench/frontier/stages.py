"""Stages of a long measurement: processes of their own, some side by side, until all is done or the time is up.

What is finished is not made again, and whoever can go on where it stopped is asked to: call once more.
"""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stridelm.files import write_json

_TICK, _SPEAK = 1.0, 20.0
_LEAST_LEFT = 45.0
"""Seconds that must be left for a stage to begin."""
_THREADS = "4"


@dataclass(slots=True)
class Stage:
    name: str
    command: Callable[[], list[str]]
    """What to run now: a stage that was cut off may be asked to go on."""
    is_done: Callable[[], bool]
    needs: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failed: bool = False


@dataclass(slots=True)
class Stages:
    """In the order in which they are begun, as far as what they need is done."""

    folder: Path
    """Logs lie here, by stage, and notes of what was run and how long it took."""
    stages: list[Stage]
    save: Callable[[], None]
    """Called when something has come to an end, and every twenty seconds."""
    finished: set[str] = field(default_factory=set)

    def run(self, minutes: float, jobs: int) -> bool:
        """At most `jobs` at once. Whether everything is done."""
        deadline = time.monotonic() + 60 * minutes
        self.finished = {stage.name for stage in self.stages if stage.is_done()}
        said = time.monotonic()
        try:
            while time.monotonic() < deadline and (self._end_some() or self._waiting):
                running = self._running
                if deadline - time.monotonic() > _LEAST_LEFT:
                    for stage in self._waiting[: jobs - len(running)]:
                        self._begin(stage)
                if time.monotonic() - said > _SPEAK:
                    said = time.monotonic()
                    for stage in running:
                        say(f"{stage.name}: {self._log(stage)[-1][:240]}")
                    self.save()
                if not self._running:
                    break  # too little time is left for what waits
                time.sleep(_TICK)
        finally:
            for stage in self._running:
                self._cut_off(stage)
            self.save()
        return len(self.finished) == len(self.stages)

    @property
    def _running(self) -> list[Stage]:
        return [stage for stage in self.stages if stage.process is not None]

    @property
    def _waiting(self) -> list[Stage]:
        new = [stage for stage in self.stages if stage.process is None and not stage.failed]
        return [stage for stage in new if stage.name not in self.finished and set(stage.needs) <= self.finished]

    def _begin(self, stage: Stage) -> None:
        command = stage.command()
        threads = os.environ.get("OMP_NUM_THREADS", _THREADS)
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": threads}
        with (self.folder / f"{stage.name}.log").open("ab") as log:
            stage.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        stage.started = time.monotonic()
        line = shlex.join(command[1:])
        self._note("commands", stage.name, line)
        say(f"{stage.name}: begins: {line}")

    def _end_some(self) -> bool:
        """See who has ended; whether anybody still runs."""
        for stage in self._running:
            assert stage.process is not None
            if (status := stage.process.poll()) is not None:
                self._end(stage, status)
        return bool(self._running)

    def _end(self, stage: Stage, status: int) -> None:
        stage.process = None
        seconds = self._spent(stage)
        if status == 0 and stage.is_done():
            self.finished.add(stage.name)
            say(f"{stage.name}: done in {seconds:.0f} s: {self._log(stage)[-1][:240]}")
        else:
            stage.failed = True  # others may still be of use
            last = "\n".join(self._log(stage)[-40:])
            say(f"{stage.name}: FAILED with status {status} after {seconds:.0f} s:\n{last}")
        self.save()

    def _cut_off(self, stage: Stage) -> None:
        assert stage.process is not None
        stage.process.terminate()
        stage.process.wait()
        stage.process = None
        say(f"{stage.name}: cut off after {self._spent(stage):.0f} s; call again to go on")

    def _spent(self, stage: Stage) -> float:
        """Seconds of this time, which are added to those of earlier ones."""
        seconds = time.monotonic() - stage.started
        self._note(
            "seconds", stage.name, round(read_json(self.folder / "seconds.json").get(stage.name, 0) + seconds, 1)
        )
        return seconds

    def _note(self, what: str, name: str, value: object) -> None:
        file = self.folder / f"{what}.json"
        write_json(file, read_json(file) | {name: value})

    def _log(self, stage: Stage) -> list[str]:
        text = (self.folder / f"{stage.name}.log").read_text(errors="replace")
        return text.strip().splitlines() or [""]


def say(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


def read_json(file: Path) -> dict[str, Any]:
    """Empty where there is none."""
    return json.loads(file.read_text()) if file.is_file() else {}
