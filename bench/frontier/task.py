"""A task with worked steps: word problems about a number that changes from sentence to sentence.

A model of a hundred million parameters learns it in minutes (`--objective sft`), and then fails now and then, so that a
decoder that loses quality shows it. Every figure of an answer hangs on the one before; the words between them are easy.

    Mia has 134 stamps. Mia buys 157 more. Then the number grows to 3 times what it was. How many stamps are there now?

    Start: 134.
    134 + 157: 134 + 100 = 234, 234 + 57 = 291.
    291 x 3: 200 x 3 = 600, 91 x 3 = 273, 600 + 273 = 873.
    Answer: 873

What is trained on and what is tested cannot overlap: a digest of a problem's sums, whatever the words around them,
says which of the two it belongs to.
"""

import hashlib
import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stridelm.params import InputError

SPLITS = ("train", "test")
MAX_TOKENS = 320
"""The longest right answer has 200 tokens or so, a digit being one."""
_TESTED_SHARE = 10
"""One problem of so many is for tests."""
_LEAST_STEPS, _MOST_STEPS = 2, 5
_LEAST, _MOST = 11, 1999
"""Of the number, at every moment."""
_LARGEST_AMOUNT = 299
_ANSWER = re.compile(r"Answer: (\d+)\b")
_RESULT = re.compile(r"(?<= =) (\d+)")

_PEOPLE = ("Mia", "Omar", "Ida", "Tom", "Lena", "Raj", "Sofia", "Ben", "Yuki", "Carlos", "Nora", "Paul")
_THINGS = ("stamps", "marbles", "apples", "books", "coins", "shells", "tickets", "pencils", "bricks", "cards")
_OPENINGS = (
    "{who} has {number} {things}.",
    "There are {number} {things} in {who}'s box.",
    "{who} counts {number} {things}.",
    "At first {who} owns {number} {things}.",
)
_EVENTS = {
    "+": (
        "{who} buys {number} more.",
        "Then a friend brings {number} {things}.",
        "{number} {things} are added.",
        "The next day {who} finds {number}.",
    ),
    "-": (
        "{who} gives {number} away.",
        "Then {number} of them get lost.",
        "{number} {things} are sold.",
        "A neighbour takes {number}.",
    ),
    "x": (
        "Then the number grows to {number} times what it was.",
        "A week later there are {number} times as many.",
        "{who} goes on until there are {number} times as many {things}.",
    ),
}
_QUESTIONS = (
    "How many {things} are there now?",
    "How many {things} does {who} have in the end?",
    "What is the number of {things} now?",
    "Work out, step by step, how many {things} are left.",
)

Step = tuple[str, int]
"""An operation and its number."""


@dataclass(frozen=True, slots=True)
class Problem:
    prompt: str
    answer: str
    """Worked out, as a model learns it."""
    result: int
    steps: int

    def is_right(self, text: str) -> bool:
        """Whether a text gives the result: its last `Answer: 42` counts."""
        given = _ANSWER.findall(text)
        return bool(given) and int(given[-1]) == self.result

    def sums(self) -> list[tuple[str, int]]:
        """Of each sum in the answer: the text up to its equals sign, and its result."""
        return [(self.answer[: found.start()], int(found[1])) for found in _RESULT.finditer(self.answer)]


def problems(seed: int, count: int, split: str) -> list[Problem]:
    """So many problems, no two of them with the same sums."""
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r} of the task: {', '.join(SPLITS)} are known")
    chance = random.Random(f"{split} {seed}")
    found: dict[tuple[int, tuple[Step, ...]], Problem] = {}
    while len(found) < count:
        start, steps = _sums(chance)
        if (start, steps) not in found and _split_of(start, steps) == split:
            found[start, steps] = _told(chance, start, steps)
    return list(found.values())


def write_jsonl(file: Path, told: Iterable[Problem]) -> None:
    """As `stridelm train --prompts` reads it; the answers are for `--objective sft` and `ground-truth`."""
    lines = (json.dumps({"prompt": each.prompt, "answer": each.answer}) for each in told)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _split_of(start: int, steps: tuple[Step, ...]) -> str:
    digest = hashlib.sha256(repr((start, steps)).encode()).digest()
    return "train" if digest[0] * 256 + digest[1] >= 2**16 // _TESTED_SHARE else "test"


def _sums(chance: random.Random) -> tuple[int, tuple[Step, ...]]:
    start = number = chance.randint(_LEAST, _LARGEST_AMOUNT)
    steps: list[Step] = []
    for _ in range(chance.randint(_LEAST_STEPS, _MOST_STEPS)):
        steps.append(_step(chance, number))
        number = _outcome(number, *steps[-1])
    return start, tuple(steps)


def _step(chance: random.Random, number: int) -> Step:
    """One that keeps the number within its bounds."""
    while True:
        operation = chance.choice("++--x")
        step = operation, chance.randint(2, 6) if operation == "x" else chance.randint(_LEAST, _LARGEST_AMOUNT)
        if _LEAST <= _outcome(number, *step) <= _MOST:
            return step


def _outcome(number: int, operation: str, amount: int) -> int:
    return {"+": number + amount, "-": number - amount, "x": number * amount}[operation]


def _told(chance: random.Random, start: int, steps: tuple[Step, ...]) -> Problem:
    about = {"who": chance.choice(_PEOPLE), "things": chance.choice(_THINGS)}
    sentences = [chance.choice(_OPENINGS).format(number=start, **about)]
    lines, number = [f"Start: {start}."], start
    for operation, amount in steps:
        sentences.append(chance.choice(_EVENTS[operation]).format(number=amount, **about))
        lines.append(_worked(number, operation, amount))
        number = _outcome(number, operation, amount)
    sentences.append(chance.choice(_QUESTIONS).format(**about))
    return Problem(" ".join(sentences), "\n".join([*lines, f"Answer: {number}"]), number, len(steps))


def _worked(number: int, operation: str, amount: int) -> str:
    """A line of the answer. What has hundreds is taken apart: first the hundreds, then the rest."""
    taken_apart = number if operation == "x" else amount
    hundreds, rest = taken_apart - taken_apart % 100, taken_apart % 100
    if not hundreds or not rest:
        return f"{_equation(number, operation, amount)}."
    if operation == "x":
        parts = [_equation(part, "x", amount) for part in (hundreds, rest)]
        parts.append(_equation(hundreds * amount, "+", rest * amount))
    else:
        between = _outcome(number, operation, hundreds)
        parts = [_equation(number, operation, hundreds), _equation(between, operation, rest)]
    return f"{number} {operation} {amount}: {', '.join(parts)}."


def _equation(number: int, operation: str, amount: int) -> str:
    return f"{number} {operation} {amount} = {_outcome(number, operation, amount)}"
