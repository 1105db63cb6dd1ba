"""A chain of tool calls, each of which needs the results of those before it: the nouns of the suite `agent`.

The tools are made up and pure: the same calls have the same results.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stridelm.bench.suites.checkers import numbers

Result = dict[str, Any]
Arguments = dict[str, Any]


class NotFound(Exception):
    """What a tool was asked for is not there."""


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    arguments: Arguments

    def __str__(self) -> str:
        return json.dumps({"tool": self.tool, "arguments": self.arguments})


@dataclass(frozen=True, slots=True)
class Tool:
    description: str
    parameters: tuple[str, ...]
    run: Callable[..., Result]


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    needed: Call


@dataclass(frozen=True, slots=True)
class Chain:
    name: str
    tools: Mapping[str, Tool]
    example: Step
    """One step of another task, which shows how to answer."""
    steps: tuple[Step, ...]

    def execute(self, call: Call) -> Result:
        """The call's result, or {"error": reason}."""
        tool = self.tools.get(call.tool)
        if tool is None:
            return {"error": f"no tool is called {call.tool}"}
        if set(call.arguments) != set(tool.parameters):
            return {"error": f"{call.tool} takes {', '.join(tool.parameters)}"}
        try:
            return tool.run(**call.arguments)
        except NotFound as error:
            return {"error": str(error)}


def look_up(table: Mapping[str, Result], *keys: object) -> Result:
    """Ignores case, as `checkers.same` does: a right call must have a result."""
    wanted = ", ".join(str(key).strip() for key in keys)
    for key, result in table.items():
        if key.casefold() == wanted.casefold():
            return result
    raise NotFound(f"not found: {wanted}")


def calculate(what: str, rule: Callable[[float, float], float], first: object, second: object) -> Result:
    """The result of a calculation with two numbers, which may be given as text."""
    found = [numbers(str(each)) for each in (first, second)]
    if not all(len(each) == 1 for each in found):
        raise NotFound("both arguments must be numbers")
    value = round(rule(found[0][0], found[1][0]), 2)
    return {what: int(value) if value.is_integer() else value}
