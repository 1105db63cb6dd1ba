"""The suites of `stridelm bench` and their questions.

Most questions are in `prompts/NAME.jsonl`, one per line: its name, the prompt and, if there is a rule for right
answers, the checkers (`checkers.CHECKERS`), all of which must pass. The questions of `agent` depend on the answers (see
agent.py), and those of `long` on the tokenizer (see long_prompts.py).
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stridelm.bench.records import Checker, Question
from stridelm.bench.suites.checkers import CHECKERS, all_of, contains
from stridelm.params import InputError
from stridelm.prompts import PromptLine, read_prompts

OWN = "own"
"""The suite of a user's own prompts."""
_FOLDER = Path(__file__).parent / "prompts"


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    description: str
    max_tokens: int
    """Maximum number of tokens of every answer."""
    system: str = ""
    """The system message of every question."""
    is_fixed: bool = True
    """Whether `questions` returns its questions; those of other suites are made while the bench runs."""


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "gemma",
            "The five kinds of prompt of the published test of Gemma's multi-token prediction: protocols, average "
            "speeds, a counterexample, formal Tamil, and sentences of ten words.",
            192,
        ),
        Suite("structured", "Text that is easy to foresee: JSON, boilerplate code, repetition and counting.", 192),
        Suite("maths", "Word problems whose answers are checked.", 160),
        Suite("open", "Open writing, which is hard to foresee: stories, descriptions and advice.", 192),
        Suite(
            "voice",
            "Short spoken requests, for the time until the first words can be said.",
            48,
            system="You are a voice assistant. Answer in one or two short sentences that can be read aloud.",
        ),
        Suite(
            "agent",
            "Three tasks of ten tool calls, each of which needs the results of those before it.",
            64,
            is_fixed=False,
        ),
        Suite("long", "A question about a log that fills the context: 2k, 4k and 8k tokens.", 96, is_fixed=False),
    )
}


def questions(name: str, limit: int | None = None) -> list[Question]:
    """The questions of a suite that `is_fixed`, the first `limit` of them."""
    if name not in SUITES:
        raise InputError(f"there is no suite {name!r}: choose one of {', '.join(SUITES)}")
    suite = SUITES[name]
    assert suite.is_fixed, f"the questions of {name} are made while the bench runs"
    lines = (_FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [_question(suite, json.loads(line)) for line in lines[:limit]]


def own_questions(file: Path, max_tokens: int) -> list[Question]:
    """A user's prompts. They are named by their category and their number in it. If a line has an answer, the checker
    requires the text to contain it."""
    seen: Counter[str] = Counter()
    found: list[Question] = []
    for line in read_prompts(file):
        category = line.category or "prompt"
        seen[category] += 1
        messages = ({"role": "user", "content": line.prompt},) if isinstance(line.prompt, str) else tuple(line.prompt)
        name = f"{category}-{seen[category]}"
        found.append(Question(OWN, name, messages, max_tokens, _own_checker(line), line.place))
    return found


def _question(suite: Suite, entry: dict[str, Any]) -> Question:
    system = [{"role": "system", "content": suite.system}] if suite.system else []
    checkers = [CHECKERS[rule](expected) for rule, expected in entry.get("check", {}).items()]
    return Question(
        suite=suite.name,
        name=entry["name"],
        messages=(*system, {"role": "user", "content": entry["prompt"]}),
        max_tokens=suite.max_tokens,
        checker=all_of(checkers) if checkers else None,
        note=entry.get("note", ""),
    )


def _own_checker(line: PromptLine) -> Checker | None:
    match line.answer:
        case None:
            return None
        case bool():
            pass
        case int() | float():
            return contains(line.answer)
        case str() if line.answer.strip():
            return contains(line.answer)
    raise InputError(f"{line.place}: the answer must be text that is not empty, or a number")
