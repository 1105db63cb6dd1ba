"""Rules that tell whether a text is right. A checker accepts any text and never raises."""

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from typing import Any, TypeVar

from stridelm.bench.records import Checker

_NUMBER = re.compile(r"(?<![^\W_])(?<!\d\.)[-\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?<!\.)(?=\.\d))(?:\.\d+)?")
"""A number with sign, thousands separators and decimal point; not within a word, and 10-4 contains a 10 and a 4."""
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'\u201d\u2019)\]*_]*(?=\s|$)|\n")
_LIST_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+", re.MULTILINE)
_CODE_BLOCK = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)

Json = TypeVar("Json", dict, list)


def numbers(text: str) -> list[float]:
    """All numbers of a text, in order."""
    return [float(found.replace(",", "").replace("\u2212", "-")) for found in _NUMBER.findall(text)]


def words(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return _WORD.findall(text.casefold())


def find_json(text: str, kind: type[Json]) -> Json | None:
    """The first object (`dict`) or array (`list`) in a text, with any text around it."""
    decoder = json.JSONDecoder()
    for start in (place.start() for place in re.finditer(r"[{\[]", text)):
        try:
            found, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, kind):
            return found
    return None


def same(expected: Any, found: Any) -> bool:
    """Whether JSON is as expected: an object may have more keys, 7 may be "7", and case does not matter."""
    match expected, found:
        case dict(), dict():
            return all(key in found and same(value, found[key]) for key, value in expected.items())
        case list(), list():
            return len(expected) == len(found) and all(map(same, expected, found))
        case (dict() | list(), _) | (_, dict() | list()):
            return False
    if (value := _as_number(str(expected))) is not None:
        return value == _as_number(str(found))
    return str(expected).strip().casefold() == str(found).strip().casefold()


def ends_with_number(expected: float) -> Checker:
    """The text's last number is this one: worked answers end with their result."""
    return lambda text: numbers(text)[-1:] == [float(expected)]


def contains(expected: str | float) -> Checker:
    """The text contains these words in a row, or a number of this value."""
    wanted, value = words(str(expected)), _as_number(str(expected))
    if value is not None:
        return lambda text: value in numbers(text)
    if not wanted:  # nothing but punctuation
        return lambda text: str(expected).strip() in text
    return lambda text: f" {' '.join(wanted)} " in f" {' '.join(words(text))} "


def contains_all(expected: Items[str | float]) -> Checker:
    return all_of([contains(each) for each in expected])


def sentences_of(rule: Mapping[str, int]) -> Checker:
    """The text has `count` sentences of `words` words each. A sentence ends with a punctuation mark or a line break; a
    text that is cut off within a sentence does not pass."""

    def check(text: str) -> bool:
        parts = _SENTENCE_END.split(_LIST_MARK.sub("", text))
        lengths = [sum(any(map(str.isalnum, word)) for word in part.split()) for part in parts]
        return [length for length in lengths if length] == [rule["words"]] * rule["count"]

    return check


def holds_json(expected: dict[str, Any] | list[Any]) -> Checker:
    """The first JSON of this kind in the text is as expected."""
    if isinstance(expected, dict):
        return lambda text: same(expected, find_json(text, dict))
    return lambda text: same(expected, find_json(text, list))


def defines(names: Items[str]) -> Checker:
    """The text's code (its first block, or all of it) is Python and defines functions or classes of these names."""

    def check(text: str) -> bool:
        block = _CODE_BLOCK.search(text)
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(block[1] if block else text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        nodes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return set(names) <= {node.name for node in ast.walk(tree) if isinstance(node, nodes)}

    return check


def repeats(rule: Mapping[str, Any]) -> Checker:
    """`times` lines consist of the phrase (`phrase`) and nothing else."""
    phrase = words(rule["phrase"])
    return lambda text: sum(words(line) == phrase for line in _LIST_MARK.sub("", text).splitlines()) == rule["times"]


def counts(rule: Mapping[str, int]) -> Checker:
    """The text counts through all whole numbers from `from` to `to`, and not beyond."""
    step = 1 if rule["from"] <= rule["to"] else -1
    run = [float(number) for number in range(rule["from"], rule["to"] + step, step)]

    def check(text: str) -> bool:
        found = numbers(text)
        ends = [start + len(run) for start in range(len(found)) if found[start : start + len(run)] == run]
        return bool(ends) and found[ends[-1] : ends[-1] + 1] != [run[-1] + step]

    return check


def all_of(checkers: Items[Checker]) -> Checker:
    return lambda text: all(checker(text) for checker in checkers)


CHECKERS: dict[str, Callable[[Any], Checker]] = {
    "number": ends_with_number,
    "contains": contains_all,
    "sentences": sentences_of,
    "json": holds_json,
    "python": defines,
    "repeats": repeats,
    "counts": counts,
}
"""Checkers by their names in the suites' files."""


def _as_number(text: str) -> float | None:
    """The value of a text that is a number and nothing else."""
    match = _NUMBER.fullmatch(text.strip())
    return numbers(match[0])[0] if match else None
