"""The nouns of `stridelm bench`, and its JSON. Everything that is reported is made from these; nothing here imports
torch.

    Question   a prompt of a suite, with what a right answer is where somebody can say so
    Answer     one subject's reply to one question in one round: tokens, and when each stride of them came
    Quality    what can be said of an answer's text, beside its speed
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
"""Where the time of our own decoders goes. The head is a part of the forward that is timed by itself; `steps` are
those that the backend runs by itself, whole (reports of before have none); `rest` is what is left of the answer's
time."""

Checker = Callable[[str], bool]
"""Whether a text answers its question rightly."""


@dataclass(frozen=True, slots=True)
class Question:
    suite: str
    name: str
    """Unique within its suite."""
    messages: tuple[dict[str, Any], ...]
    max_tokens: int
    checker: Checker | None = None
    note: str = ""
    """What it is about, for a person."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds count from the moment the question was put."""

    tokens: tuple[int, ...]
    """Empty where a subject gives none (a server)."""
    text: str
    stride_tokens: tuple[int, ...]
    """How many tokens came with each stride, or each chunk of a server."""
    stride_seconds: tuple[float, ...]
    """When each of them came. The first is the time to first token."""
    seconds: float
    """Until the answer was whole."""
    prompt_tokens: int = 0
    forwards: int | None = None
    """Passes that wrote something; None where a subject does not tell."""
    own_forwards: int | None = None
    """Those of them that the backend ran by itself."""
    backend: str | None = None
    """What ran the model: torch, native or gpu, of a subject of ours."""
    rows: int | None = None
    """Rows of these passes, the prompt's left out."""
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    """By depth, from 1: drafts that were looked at (their parent stood), and those that stood."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase; empty where a subject does not tell."""
    memory_peak: int | None = None
    """Bytes resident at most, of the process, so far."""

    @property
    def first(self) -> float:
        return self.stride_seconds[0] if self.stride_seconds else self.seconds

    @property
    def count(self) -> int:
        return sum(self.stride_tokens)


@dataclass(frozen=True, slots=True)
class Quality:
    identical: bool | None = None
    """To plain decoding of the same model with the same settings; None where nothing can be compared."""
    departs_at: int | None = None
    """The first token that differs."""
    agreement: float | None = None
    """The share of the plain answer before it."""
    log_likelihood: float | None = None
    """The base model's mean log-probability of the text's tokens."""
    repetition: float = 0.0
    """The share of 4-grams (of tokens, or of words) that occurred before."""
    loops: bool = False
    """Whether the text ends by saying one thing again and again. Loops flatter every speculative decoder."""
    right: bool | None = None
    """By the question's checker."""


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
    """The subject that speed-ups are over: plain decoding of ours."""
    subjects: dict[str, dict[str, Any]]
    """Name -> what it is: decoder and settings, library and version, or server and model. `exact` says what it
    promises."""
    records: list[Record] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Subjects that took no part, and why."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What records do not tell, each with a shape of its own: `theory`, `agent`, `voice`."""


def read_report(file: Path) -> Report:
    """A report as `report.write_json` left it; the figures in it are left alone, since `measures` makes them from the
    records. Raises InputError, naming the file and the place, where it is something else."""
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
