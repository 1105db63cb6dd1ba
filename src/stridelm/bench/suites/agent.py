"""The suite `agent`: chains of ten tool calls, each of which needs the results of those before it (see chains/).

    task = AgentTask(chain)
    question = task.next(None)
    while question is not None:
        question = task.next(reply to question)

A small model gets many calls wrong, and the chain continues nevertheless. A reply without a call is replaced by the
expected call; a wrong call is run, and then the model is given the expected call and its result. So every chain has ten
calls, and a call is right if it is the expected one.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from stridelm.bench.records import Question
from stridelm.bench.suites.chain import Call, Chain
from stridelm.bench.suites.chains import CHAINS
from stridelm.bench.suites.checkers import find_json, same
from stridelm.bench.suites.table import SUITES

_SUITE = SUITES["agent"]


def parse_call(reply: str) -> Call | None:
    """The call in a reply, if the first JSON object in it is one."""
    match find_json(reply, dict):
        case {"tool": str(tool), "arguments": dict(arguments)}:
            return Call(tool, arguments)
    return None


def is_right(call: Call | None, needed: Call) -> bool:
    if call is None:
        return False
    arguments, expected = call.arguments, needed.arguments
    return call.tool == needed.tool and arguments.keys() == expected.keys() and same(expected, arguments)


def chain_of(question: str) -> str:
    """The chain that a question of this name is of."""
    return question.rpartition("-")[0]


@dataclass(slots=True)
class AgentTask:
    """The chain of one subject in one round."""

    chain: Chain
    _messages: list[dict[str, Any]] = field(default_factory=list)
    _asked: int = 0

    def next(self, previous: str | None) -> Question | None:
        """The next question; None when the task is done. `previous` is the reply to the last one, None at first."""
        assert (previous is None) == (self._asked == 0), "a reply is due after every question, and only then"
        steps = self.chain.steps
        if previous is None:
            self._messages = _opening(self.chain)
            found = ""
        else:
            needed = steps[self._asked - 1].needed
            call = parse_call(previous) or needed
            self._messages.append({"role": "assistant", "content": str(call)})
            found = _report(self.chain, call, needed)
        if self._asked == len(steps):
            return None
        step = steps[self._asked]
        self._asked += 1
        asking = found + _asking(self.chain, step.what, step.needed.tool)
        self._messages.append({"role": "user", "content": asking})
        return Question(
            suite=_SUITE.name,
            name=f"{self.chain.name}-{self._asked:02}",
            messages=tuple(self._messages),
            max_tokens=_SUITE.max_tokens,
            checker=lambda text: is_right(parse_call(text), step.needed),
            note=step.what,
        )


def agent_tasks(limit: int | None = None) -> list[AgentTask]:
    """All chains, or the first of them that have `limit` questions: a chain is never cut."""
    tasks: list[AgentTask] = []
    count = 0
    for chain in CHAINS:
        if limit is None or count < limit:
            tasks.append(AgentTask(chain))
            count += len(chain.steps)
    return tasks


def _opening(chain: Chain) -> list[dict[str, Any]]:
    """The tools, and one step of another task as an example."""
    tools = "\n".join(
        f"- {name}({', '.join(tool.parameters)}): {tool.description}" for name, tool in chain.tools.items()
    )
    example = chain.example
    return [
        {
            "role": "system",
            "content": f"You answer every request with one call of a tool, as JSON. The tools:\n{tools}",
        },
        {"role": "user", "content": _asking(chain, example.what, example.needed.tool)},
        {"role": "assistant", "content": str(example.needed)},
    ]


def _asking(chain: Chain, what: str, tool: str) -> str:
    # The tool is named, because small models make up tools otherwise: finding the arguments is hard enough for them.
    return f"{what} Answer with one JSON call of {tool}({', '.join(chain.tools[tool].parameters)})."


def _report(chain: Chain, call: Call, needed: Call) -> str:
    """The call's result and, if the call was wrong, the expected call with its result."""
    found = f"Result: {json.dumps(chain.execute(call))}\n"
    if is_right(call, needed):
        return found
    return f"{found}The right call was {needed}\nIts result: {json.dumps(chain.execute(needed))}\n"
