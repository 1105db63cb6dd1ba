"""The suite `long`: the log of a fictitious shop, of any length, and a question about one line of it."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from random import Random

from stridelm.bench.records import Question
from stridelm.bench.suites.checkers import contains_all
from stridelm.bench.suites.table import SUITES
from stridelm.params import InputError

LONG_SIZES = (2000, 4000, 7600)
"""Tokens of a prompt. The last is for a context of 8192, which must hold the chat template and the answer, too."""
_SUITE = SUITES["long"]
_SEED = 8
_MIN_LINE_TOKENS = 8
"""Minimum number of tokens of a line, in any vocabulary."""
_NAMES = (
    "Mara Lind",
    "Ivo Brandt",
    "Petra Novak",
    "Tom Asare",
    "Ines Moreau",
    "Farid Haddad",
    "Lena Okafor",
    "Jo Sato",
)
_CITIES = ("Bergen", "Brno", "Ghent", "Lisbon", "Tartu", "Turin", "Split", "Uppsala", "Valencia", "Zadar")
_ITEMS = ("desk lamp", "coat hook", "tea kettle", "wool blanket", "garden chair", "wall clock", "bread knife")
_STATES = ("packed", "shipped", "delivered", "returned", "delayed")


def long_questions(encode: Callable[[str], Items[int]], sizes: Iterable[int] = LONG_SIZES) -> list[Question]:
    """One question per size, whose text has at most `size` tokens: as many lines as fit. `encode` is the tokenizer's:
    the chat template is not counted."""
    return [_question(encode, size) for size in sizes]


def _question(encode: Callable[[str], Items[int]], size: int) -> Question:
    records = _records(size // _MIN_LINE_TOKENS)
    fitting = bisect_right(range(1, len(records) + 1), size, key=lambda count: len(encode(_prompt(records[:count]))))
    if not fitting:
        raise InputError(
            f"a prompt of the suite {_SUITE.name} cannot have as few as {size} tokens: ask for 500 or more"
        )
    chosen = records[:fitting]
    asked = chosen[len(chosen) // 2]
    return Question(
        suite=_SUITE.name,
        name=f"{size}-tokens",
        messages=({"role": "user", "content": _prompt(chosen)},),
        max_tokens=_SUITE.max_tokens,
        checker=contains_all([asked["customer"], asked["city"]]),
        note=f"a question about one of {len(chosen)} lines",
    )


def _prompt(records: list[dict[str, str]]) -> str:
    # The line in question is in the middle, where it is hardest to find.
    asked = records[len(records) // 2]
    return (
        "This is the log of a shop, one order a line.\n\n"
        + "".join(_line(record) for record in records)
        + f"\nWho ordered in order {asked['order']}, to which city does it go, and what was in it? Then describe in a "
        "few sentences what this shop sells and where its customers live."
    )


def _line(record: dict[str, str]) -> str:
    return (
        f"{record['time']} order {record['order']}: {record['customer']}, {record['city']}, "
        f"{record['quantity']} x {record['item']}, {record['state']}\n"
    )


def _records(count: int) -> list[dict[str, str]]:
    """The same records every time; a shorter list is the beginning of a longer one."""
    random = Random(_SEED)

    def one_of(items: Items[str]) -> str:
        # Of Random's methods only `random` gives the same draws in every version of Python.
        return items[int(random.random() * len(items))]

    records: list[dict[str, str]] = []
    for number in range(count):
        minute = number * 7
        records.append(
            {
                "time": f"day {minute // 1440 + 1}, {minute // 60 % 24:02}:{minute % 60:02}",
                "order": str(40_000 + 37 * number),
                "customer": one_of(_NAMES),
                "city": one_of(_CITIES),
                "quantity": str(1 + int(random.random() * 9)),
                "item": one_of(_ITEMS),
                "state": one_of(_STATES),
            }
        )
    return records
