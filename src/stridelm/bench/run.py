"""Runs a bench: asks every subject every question, in turn, round after round, never two at a time.

So disturbances of the machine affect all subjects alike. The subject that is asked first changes from question to
question, because the state of the machine at the start of a question may favour or hurt it.
"""

import copy
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stridelm.backends.common.processor import processor_name
from stridelm.bench.records import Answer, Quality, Question, Record, Report
from stridelm.bench.subjects import Absent, Subject
from stridelm.params import InputError

Judge = Callable[[Question, Answer, Answer | None], Quality]
"""The quality of an answer, given the baseline's answer to the same messages in the same round, if there is one."""


class Task(Protocol):
    """A chain of questions, each of which depends on the answers before. A fresh copy is used for every subject and
    round."""

    def next(self, previous: str | None) -> Question | None:
        """The next question, or None at the end of the chain. `previous`: the answer to the last one, None at first."""
        ...


def run(
    subjects: list[Subject],
    questions: Iterable[Question],
    tasks: Iterable[Task] = (),
    *,
    judge: Judge,
    rounds: int,
    settings: dict[str, Any],
    circumstances: dict[str, Any],
    shown: Callable[[Report], RenderableType] | None = None,
) -> Report:
    """The first subject is the baseline, our own plain decoding: the bench needs it, so its errors are raised. Any
    other subject that fails is not asked again; its earlier answers are kept. `settings`: what the report shall record
    besides suites, subjects and rounds. `shown`: what a terminal shows of the unfinished report, above a progress
    bar."""
    questions, tasks = list(questions), list(tasks)
    if not 1 <= rounds <= 1000:
        raise InputError(f"--rounds must be between 1 and 1000, not {rounds}")
    if not (questions or tasks):
        raise InputError("there is nothing to ask: name a suite")
    names = [subject.name for subject in subjects]
    if len(set(names)) < len(names):
        raise InputError(f"a subject is named twice: {', '.join(names)}")
    report = Report({"subjects": names, "rounds": rounds, **settings}, circumstances, names[0], {})
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    screen = Live(bar, console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def show() -> None:
        if screen is not None:
            screen.update(Group(shown(report), bar) if shown is not None and report.records else bar, refresh=True)

    try:
        with screen or nullcontext():
            asking = _Run(report, subjects, judge, bar, show)
            asking.start()
            asking.expect(rounds * len(questions))
            for number in range(1, rounds + 1):
                for question in questions:
                    asking.turn([(subject, question) for subject in asking.present], number)
                for task in tasks:
                    asking.follow(task, number)
    finally:
        for subject in subjects:
            subject.close()
    report.settings["suites"] = list(dict.fromkeys(record.suite for record in report.records))
    return report


class _Run:
    """The subjects that still take part, and the report so far."""

    def __init__(
        self, report: Report, subjects: list[Subject], judge: Judge, bar: Progress, show: Callable[[], None]
    ) -> None:
        self.report, self.present = report, list(subjects)
        self._judge, self._bar, self._redraw = judge, bar, show
        self._shown = bar.add_task("", total=0)
        self._expected = self._turns = 0

    def start(self) -> None:
        for subject in list(self.present):
            self._show(f"{subject.name} starts")
            try:
                subject.start()
                subject.warm_up()
            # Other libraries and servers may raise anything.
            except Exception as error:
                self._leave(subject, error)
            else:
                self.report.subjects[subject.name] = subject.about

    def expect(self, turns: int) -> None:
        """Add `turns` turns to the progress bar."""
        self._expected += turns
        self._bar.update(self._shown, total=self._expected * len(self.present), completed=0)

    def follow(self, task: Task, number: int) -> None:
        """Run a chain for every subject: one question of each chain per turn."""
        chains = {subject.name: copy.deepcopy(task) for subject in self.present}
        said: dict[str, str] = {}
        while True:
            asked = [
                (subject, question)
                for subject in self.present
                if subject.name in chains and (question := chains[subject.name].next(said.get(subject.name)))
            ]
            if not asked:
                return
            chains = {subject.name: chains[subject.name] for subject, _ in asked}
            self._expected += 1
            self._bar.update(self._shown, total=self._expected * len(self.present))
            said = {subject: answer.text for subject, answer in self.turn(asked, number).items()}

    def turn(self, asked: list[tuple[Subject, Question]], number: int) -> dict[str, Answer]:
        """Ask each of these subjects its question; returns their answers by name."""
        first = self._turns % len(asked)
        self._turns += 1
        answered: dict[str, tuple[Question, Answer]] = {}
        for subject, question in asked[first:] + asked[:first]:
            place = f"{question.suite}, {question.name}, round {number}"
            self._show(f"{place}: {subject.name}")
            try:
                answered[subject.name] = question, subject.ask(question)
            except Exception as error:
                self._leave(subject, error, f"{place}: ")
            self._bar.advance(self._shown)
        plain = answered.get(self.report.baseline)
        for subject, (question, answer) in answered.items():
            # In a chain, a question depends on the subject's own earlier answers, so messages may differ.
            beside = plain[1] if plain is not None and plain[0].messages == question.messages else None
            quality = self._judge(question, answer, beside)
            self.report.records.append(Record(question.suite, question.name, subject, number, answer, quality))
        return {subject: answer for subject, (_, answer) in answered.items()}

    def _leave(self, subject: Subject, error: Exception, place: str = "") -> None:
        is_expected = isinstance(error, InputError | Absent)
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = place + (said if is_expected else f"{type(error).__name__}: {said}")
        if subject.name == self.report.baseline:
            raise InputError(f"{subject.name}, which all others are compared with, failed: {reason}") from error
        self.report.absent[subject.name] = reason
        self.present.remove(subject)

    def _show(self, what: str) -> None:
        self._bar.update(self._shown, description=what)
        self._redraw()


def circumstances(device: str, threads: int) -> dict[str, Any]:
    """The command, versions and machine of a run on this device, for its report."""
    from stridelm.train import record  # which imports torch

    made = record.circumstances(device)
    made["machine"] |= {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
    }
    return made | {"date": datetime.now(UTC).isoformat(timespec="seconds")}
