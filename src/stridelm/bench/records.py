"""The data types of `stridelm bench`, and its JSON. All results are computed from these, and nothing here imports
torch.

    Question   a prompt of a suite, with a checker for right answers if there is a rule for them
    Answer     one subject's reply to one question in one round: tokens, and when each stride of them came
    Quality    the quality of an answer's text, apart from its speed
    Record     a question, the subject's name, the round, the answer and its quality
    Report     all records with the machine, versions and settings; what bench.json, the page and --compare read
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stridelm.params import InputError

VERSION = 1
PHASES = ("draft", "forward", "head", "verify", "sampling", "steps", "rest")
"""Where the time of our own decoders goes. The head is a part of the forward that is timed separately; `steps` are
whole steps that the backend runs by itself (older reports have none); `rest` is what is left of the answer's time."""

Checker = Callable[[str], bool]
"""Whether a text is a right answer to its question."""


@dataclass(frozen=True, slots=True)
class Question:
    suite: str
    name: str
    """Unique within its suite."""
    messages: tuple[dict[str, Any], ...]
    max_tokens: int
    checker: Checker | None = None
    note: str = ""
    """What it is about, for people."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are in seconds since the question was asked."""

    tokens: tuple[int, ...]
    """Empty if the subject gives none (a server)."""
    text: str
    stride_tokens: tuple[int, ...]
    """How many tokens came with each stride, or each chunk of a server."""
    stride_seconds: tuple[float, ...]
    """When each of them came. The first is the time to first token."""
    seconds: float
    """When the answer was complete."""
    prompt_tokens: int = 0
    forwards: int | None = None
    """Number of passes that wrote tokens; None if the subject does not report it."""
    own_forwards: int | None = None
    """Those of them that the backend ran by itself."""
    backend: str | None = None
    """What ran the model, if the subject is ours: torch, native or gpu."""
    rows: int | None = None
    """Rows of these passes, without the prompt's."""
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    """By depth, from 1: drafts that were looked at (their parent was accepted), and those that were accepted."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase; empty if the subject does not report them."""
    memory_peak: int | None = None
    """Peak resident memory of the process so far, in bytes."""

    @property
    def first(self) -> float:
        return self.stride_seconds[0] if self.stride_seconds else self.seconds

    @property
    def count(self) -> int:
        return sum(self.stride_tokens)


@dataclass(frozen=True, slots=True)
class Quality:
    identical: bool | None = None
    """Whether the text equals plain decoding's, of the same model with the same settings; None if not compared."""
    departs_at: int | None = None
    """The position of the first token that differs."""
    agreement: float | None = None
    """The share of the plain answer before it."""
    log_likelihood: float | None = None
    """The base model's mean log-probability of the text's tokens."""
    repetition: float = 0.0
    """The share of 4-grams (of tokens, or of words) that occurred before."""
    loops: bool = False
    """Whether the text ends in a repetition loop. Loops are easy to draft, so they flatter speculative decoders."""
    right: bool | None = None
    """The result of the question's checker."""


@dataclass(frozen=True, slots=True)
class Record:
    suite: str
    question: str
    subject: str
    round: int
    answer: Answer
    quality: Quality


@dataclass(slots=True)
class Report:
    settings: dict[str, Any]
    """Suites, subjects, rounds, token budget, threads, as the run had them."""
    circumstances: dict[str, Any]
    """The command, machine, versions, commit and time."""
    baseline: str
    """The subject that speed-ups are relative to: our own plain decoding."""
    subjects: dict[str, dict[str, Any]]
    """Name -> what it is: decoder and settings, library and version, or server and model. `exact`: whether it promises
    the text of plain decoding."""
    records: list[Record] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Subjects that failed or could not take part, and why."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further results, each in its own format: `theory`, `agent`, `voice`."""


def read_report(file: Path) -> Report:
    """Read a report that `report.write_json` wrote. The figures in the file are ignored, since `measures` computes them
    from the records. Raises an InputError that names the file and the problem if it is no such report."""
    try:
        entry = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as a bench report ({error})") from error
    if not isinstance(entry, dict) or entry.get("version") != VERSION:
        raise InputError(f"{file}: is not a report of `stridelm bench`, version {VERSION}")
    del entry["version"]
    entry.pop("figures", None)  # reports of older versions have none
    try:
        entry["records"] = [
            Record(
                **{
                    **each,
                    "answer": Answer(**_tuples(each["answer"])),
                    "quality": Quality(**each["quality"]),
                }
            )
            for each in entry["records"]
        ]
        return Report(**entry)
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{file}: a part of the report is missing or not what it should be ({error})") from error


def _tuples(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in answer.items()}
