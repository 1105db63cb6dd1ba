"""The suite `agent`: one task of ten tool calls, each of which needs the results of those before it.

    task = AgentTask()
    question = task.next(None)
    while question is not None:
        question = task.next(reply to question)

The tools are made up and pure: the same calls have the same results. A small model gets many calls wrong, and the chain
continues nevertheless. A reply without a call is replaced by the expected call; a wrong call is run, and then the model
is given the expected call and its result. So every chain has ten calls, and a call is right if it is the expected one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stridelm.bench.records import Question
from stridelm.bench.suites.checkers import find_json, numbers, same
from stridelm.bench.suites.table import SUITES

_SUITE = SUITES["agent"]

_CUSTOMERS = {"Mara Lind": {"customer_id": "C-482"}, "Ivo Brandt": {"customer_id": "C-517"}}
_ORDERS = {"C-482": {"order_ids": ["O-9137", "O-9052"]}, "C-517": {"order_ids": ["O-9140"]}}
_LINES = {
    "O-9137": {"item_id": "I-55", "quantity": 3, "warehouse_id": "W-7"},
    "O-9052": {"item_id": "I-12", "quantity": 1, "warehouse_id": "W-7"},
    "O-9140": {"item_id": "I-12", "quantity": 2, "warehouse_id": "W-9"},
}
_ITEMS = {"I-55": {"name": "desk lamp", "price": 24}, "I-12": {"name": "coat hook", "price": 6}}
_STOCK = {
    "I-55, W-7": {"in_stock": 0, "other_warehouse_id": "W-9"},
    "I-55, W-9": {"in_stock": 40},
    "I-12, W-7": {"in_stock": 15},
    "I-12, W-9": {"in_stock": 2},
}
_VOUCHERS = {"O-9137": {"voucher": "V-310"}, "O-9052": {"voucher": "V-311"}, "O-9140": {"voucher": "V-312"}}
_COURIERS = {"W-7": {"courier_id": "D-18"}, "W-9": {"courier_id": "D-21"}}
_BOOKINGS = {
    f"{courier}, {order}": {"booking_id": f"B-{order[2:]}{courier[2:]}", "day": "Thursday"}
    for courier in ("D-18", "D-21")
    for order in _LINES
}

Result = dict[str, Any]
Arguments = dict[str, Any]


class _NotFound(Exception):
    """What a tool was asked for is not there."""


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    arguments: Arguments

    def __str__(self) -> str:
        return json.dumps({"tool": self.tool, "arguments": self.arguments})


@dataclass(frozen=True, slots=True)
class _Tool:
    description: str
    parameters: tuple[str, ...]
    run: Callable[..., Result]


@dataclass(frozen=True, slots=True)
class _Step:
    what: str
    needed: Call


def _look_up(table: dict[str, Result], *keys: object) -> Result:
    """Ignores case, as `same` does: a right call must have a result."""
    wanted = ", ".join(str(key).strip() for key in keys)
    for key, result in table.items():
        if key.casefold() == wanted.casefold():
            return result
    raise _NotFound(f"not found: {wanted}")


def _total_price(price: object, quantity: object) -> Result:
    factors = [numbers(str(each)) for each in (price, quantity)]
    if not all(len(each) == 1 for each in factors):
        raise _NotFound("price and quantity must be numbers")
    total = round(factors[0][0] * factors[1][0], 2)
    return {"total": int(total) if total.is_integer() else total}


_TOOLS: dict[str, _Tool] = {
    "find_customer": _Tool(
        "the id of a customer",
        ("name",),
        lambda name: _look_up(_CUSTOMERS, name),
    ),
    "list_orders": _Tool(
        "the ids of a customer's orders, newest first",
        ("customer_id",),
        lambda customer_id: _look_up(_ORDERS, customer_id),
    ),
    "get_order": _Tool(
        "what was ordered, how many of it, and from which warehouse",
        ("order_id",),
        lambda order_id: _look_up(_LINES, order_id),
    ),
    "get_item": _Tool("the name and the price of an item", ("item_id",), lambda item_id: _look_up(_ITEMS, item_id)),
    "check_stock": _Tool(
        "how many of an item a warehouse has, and who else has some",
        ("item_id", "warehouse_id"),
        lambda item_id, warehouse_id: _look_up(_STOCK, item_id, warehouse_id),
    ),
    "total_price": _Tool("price times quantity", ("price", "quantity"), _total_price),
    "find_courier": _Tool(
        "the courier of a warehouse", ("warehouse_id",), lambda warehouse_id: _look_up(_COURIERS, warehouse_id)
    ),
    "book_courier": _Tool(
        "let a courier deliver an order",
        ("courier_id", "order_id"),
        lambda courier_id, order_id: _look_up(_BOOKINGS, courier_id, order_id),
    ),
    "make_voucher": _Tool(
        "a voucher for an order of this total",
        ("order_id", "total"),
        lambda order_id, total: _look_up(_VOUCHERS, order_id),
    ),
    "send_message": _Tool(
        "tell a customer of a booking and a voucher",
        ("customer_id", "booking_id", "voucher"),
        lambda customer_id, booking_id, voucher: {"sent": True},
    ),
}

STEPS: tuple[_Step, ...] = (
    _Step("Find the id of the customer Mara Lind.", Call("find_customer", {"name": "Mara Lind"})),
    _Step("List the orders of this customer.", Call("list_orders", {"customer_id": "C-482"})),
    _Step("Get the newest of these orders.", Call("get_order", {"order_id": "O-9137"})),
    _Step("Get the item that was ordered.", Call("get_item", {"item_id": "I-55"})),
    _Step(
        "Check the stock of this item in the warehouse of the order.",
        Call("check_stock", {"item_id": "I-55", "warehouse_id": "W-7"}),
    ),
    _Step("Find the courier of the other warehouse.", Call("find_courier", {"warehouse_id": "W-9"})),
    _Step("Book this courier for the order.", Call("book_courier", {"courier_id": "D-21", "order_id": "O-9137"})),
    _Step(
        "Compute the total price from the price of the item and the quantity of the order.",
        Call("total_price", {"price": 24, "quantity": 3}),
    ),
    _Step("Make a voucher for the order with this total.", Call("make_voucher", {"order_id": "O-9137", "total": 72})),
    _Step(
        "Send the customer a message with the booking and the voucher.",
        Call("send_message", {"customer_id": "C-482", "booking_id": "B-913721", "voucher": "V-310"}),
    ),
)


def parse_call(reply: str) -> Call | None:
    """The call in a reply, if the first JSON object in it is one."""
    match find_json(reply, dict):
        case {"tool": str(tool), "arguments": dict(arguments)}:
            return Call(tool, arguments)
    return None


def execute(call: Call) -> Result:
    """The call's result, or {"error": reason}."""
    tool = _TOOLS.get(call.tool)
    if tool is None:
        return {"error": f"no tool is called {call.tool}"}
    if set(call.arguments) != set(tool.parameters):
        return {"error": f"{call.tool} takes {', '.join(tool.parameters)}"}
    try:
        return tool.run(**call.arguments)
    except _NotFound as error:
        return {"error": str(error)}


def is_right(call: Call | None, needed: Call) -> bool:
    if call is None:
        return False
    arguments, expected = call.arguments, needed.arguments
    return call.tool == needed.tool and arguments.keys() == expected.keys() and same(expected, arguments)


@dataclass(slots=True)
class AgentTask:
    """The chain of one subject in one round."""

    _messages: list[dict[str, Any]] = field(default_factory=list)
    _asked: int = 0

    def next(self, previous: str | None) -> Question | None:
        """The next question; None when the task is done. `previous` is the reply to the last one, None at first."""
        assert (previous is None) == (self._asked == 0), "a reply is due after every question, and only then"
        if previous is None:
            self._messages = _opening()
            found = ""
        else:
            needed = STEPS[self._asked - 1].needed
            call = parse_call(previous) or needed
            self._messages.append({"role": "assistant", "content": str(call)})
            found = _report(call, needed)
        if self._asked == len(STEPS):
            return None
        step = STEPS[self._asked]
        self._asked += 1
        self._messages.append({"role": "user", "content": found + _asking(step.what, step.needed.tool)})
        return Question(
            suite=_SUITE.name,
            name=f"call-{self._asked:02}",
            messages=tuple(self._messages),
            max_tokens=_SUITE.max_tokens,
            checker=lambda text: is_right(parse_call(text), step.needed),
            note=step.what,
        )


def _opening() -> list[dict[str, Any]]:
    """The tools, and one step of another task as an example."""
    tools = "\n".join(f"- {name}({', '.join(tool.parameters)}): {tool.description}" for name, tool in _TOOLS.items())
    example = Call("find_courier", {"warehouse_id": "W-7"})
    return [
        {
            "role": "system",
            "content": f"You answer every request with one call of a tool, as JSON. The tools:\n{tools}",
        },
        {"role": "user", "content": _asking("Find the courier of the warehouse W-7.", example.tool)},
        {"role": "assistant", "content": str(example)},
    ]


def _asking(what: str, tool: str) -> str:
    # The tool is named, because small models make up tools otherwise: finding the arguments is hard enough for them.
    return f"{what} Answer with one JSON call of {tool}({', '.join(_TOOLS[tool].parameters)})."


def _report(call: Call, needed: Call) -> str:
    """The call's result and, if the call was wrong, the expected call with its result."""
    found = f"Result: {json.dumps(execute(call))}\n"
    if is_right(call, needed):
        return found
    return f"{found}The right call was {needed}\nIts result: {json.dumps(execute(needed))}\n"
