"""A domain of prompts: support tickets that want a reply. Made up, seeded, as many as are wanted.

For domain adaptation: a company has such prompts by the thousand, and answers that look alike. The model's own answers
are what is learnt, so nobody needs to be right. Replies, and not JSON: the built-in model's JSON runs in circles, and
loops flatter every decoder that looks ahead.
"""

import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path

from bench.frontier.task import SPLITS
from stridelm.params import InputError

_TESTED_SHARE = 10
"""One ticket of so many is for tests."""
_ASK = (
    "You work for the customer support of an online shop. Write a short, polite reply to this ticket that repeats the "
    "problem and says what happens next.\n\nTicket: {ticket}"
)
_CUSTOMERS = ("Anna Weber", "Luis Ortega", "Mei Tanaka", "David Cohen", "Fatima Rahman", "Peter Novak", "Grace Okafor")
_PRODUCTS = ("coffee machine", "headphones", "desk lamp", "router", "electric kettle", "backpack", "office chair")
_PROBLEMS = (
    "it does not switch on",
    "the power cable is missing",
    "the box arrived damaged",
    "it makes a loud noise after a few minutes",
    "the wrong colour was delivered",
    "it stops working when it gets warm",
    "a screw is broken",
)
_PRIORITIES = (
    "Please treat this as urgent.",
    "There is no hurry.",
    "I need an answer this week.",
    "This is the second time I write to you!",
)
_TICKETS = (
    "Hello, my name is {customer}. I ordered a {product} (order {order}) and {problem}. {priority}",
    "Order {order}: the {product} came today, but {problem}. {priority} Regards, {customer}",
    "{priority} I am writing about the {product} of order number {order}: {problem}. {customer}",
    "Dear team, {problem}. It is the {product} that I bought with order {order}. {priority} Yours, {customer}",
)


def ticket_prompts(seed: int, count: int, split: str) -> list[str]:
    """So many prompts, all different. No prompt of one split is in the other: a digest says which it belongs to."""
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r} of the tickets: {', '.join(SPLITS)} are known")
    chance = random.Random(f"{split} {seed}")
    found: dict[str, None] = {}
    while len(found) < count:
        ticket = chance.choice(_TICKETS).format(
            customer=chance.choice(_CUSTOMERS),
            product=chance.choice(_PRODUCTS),
            problem=chance.choice(_PROBLEMS),
            priority=chance.choice(_PRIORITIES),
            order=f"{chance.choice('ABCD')}{chance.randint(10000, 99999)}",
        )
        is_tested = hashlib.sha256(ticket.encode()).digest()[0] < 256 // _TESTED_SHARE
        if is_tested == (split == "test"):
            found[_ASK.format(ticket=ticket)] = None
    return list(found)


def write_prompts(file: Path, prompts: Iterable[str]) -> None:
    """As `stridelm train --prompts` reads it."""
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
