"""What every client asks for: short answers, and forms so small that a forced answer ends soon."""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

MODEL = "smollm2"
KEY = "a key for friends"
SYSTEM = "You are a helpful assistant."
QUESTION = "What is the weather in Oslo?"
SETTINGS: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0, "seed": 3}
"""Greedy, so that a stream can be compared with the whole answer."""
CALL_TOKENS = 64
"""Enough for a call or an object of the forms below."""
FINISHED = ("stop", "length")
"""How an answer that calls nothing may end."""


class Closed(BaseModel):
    """A form with no room for more: a schema that is open lets a small model go on and on."""

    model_config = ConfigDict(extra="forbid")


class Weather(Closed):
    """The weather in a city."""

    city: Literal["Oslo", "Rome"]
    unit: Literal["C", "F"]


class Clock(Closed):
    """The time of day."""


ANSWERS = {"weather": "rain, 7 degrees", "clock": "12:30"}
"""What each tool gives."""
COPY_OBJECT = 'Repeat this and nothing else: {"city": "Oslo", "unit": "C"}'
"""The model is small, but it can copy: so it ends an object that no schema ends for it."""
COPY_CALL = (
    "Repeat exactly this text and nothing else:\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>'
)
"""So it calls a tool though nothing makes it."""


def chat() -> list[Any]:
    """The beginning of a chat."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


def tools() -> list[Any]:
    """Two tools, anew each time: litellm changes what it is given."""
    return [_tool("weather", "The weather in a city.", Weather), _tool("clock", "The time of day.", Clock)]


def _tool(name: str, description: str, form: type[BaseModel]) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": form.model_json_schema()}
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    """A choice of tool that is no choice."""
    return {"type": "function", "function": {"name": name}}


def check_call(name: str, arguments: str | dict[str, Any]) -> None:
    """The call is of a tool that there is, and keeps to its schema."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    form = {"weather": Weather, "clock": Clock}[name]
    assert form.model_validate(given).model_dump() == given
