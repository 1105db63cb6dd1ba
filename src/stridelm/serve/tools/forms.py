"""How models write function calls: one entry per format, recognised by a marker in the chat template."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model wrote."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls."""

    markers: tuple[str, ...]
    """A template that contains one of these, and accepts tools, writes calls in this format."""
    openings: tuple[str, ...]
    """Strings that calls may begin with. From there on, text is held back."""
    opens_anywhere: bool
    """Whether calls may follow text; otherwise they are the whole answer."""
    arguments: str
    """The JSON key of the arguments."""
    begin: str
    before: str
    after: str
    between: str
    end: str
    """The five: text before all calls, before each call, after each call, between two calls, and after all calls."""
    id_length: int = 24
    """Number of characters of a call's id after `id_prefix`. Some templates insist on a length, without a prefix."""
    id_prefix: str = "call_"

    def new_id(self) -> str:
        """An id for a call."""
        return self.id_prefix + secrets.token_hex(self.id_length)[: self.id_length]

    def write(self, calls: list[Call]) -> str:
        """The calls as the model would write them."""
        written = (
            self.before
            + json.dumps({"name": call.name, self.arguments: call.arguments}, ensure_ascii=False)
            + self.after
            for call in calls
        )
        return self.begin + self.between.join(written) + self.end

    def parse(self, value: object) -> Call | None:
        """The call that a JSON value represents, or None if it is not a call."""
        match value:
            case {"name": str(name), **rest} if rest.keys() <= {self.arguments}:
                arguments = rest.get(self.arguments, {})
                return Call(name, arguments) if isinstance(arguments, dict) else None
        return None


HERMES = ToolFormat(
    markers=("<tool_call>",),
    openings=("<tool_call>",),
    opens_anywhere=True,
    arguments="arguments",
    begin="",
    before="<tool_call>\n",
    after="\n</tool_call>",
    between="\n",
    end="",
)
"""Hermes, Qwen and most others; also used for models whose template does not accept tools."""
MISTRAL = ToolFormat(
    markers=("[TOOL_CALLS]",),
    openings=("[TOOL_CALLS]", "["),
    opens_anywhere=False,
    arguments="arguments",
    begin="[TOOL_CALLS] [",
    before="",
    after="",
    between=", ",
    end="]",
    id_length=9,
    id_prefix="",
)
"""The marker is a special token in most Mistral tokenizers, so it may be missing from the text."""
LLAMA = ToolFormat(
    markers=("<|python_tag|>", '"parameters": '),
    openings=("<|python_tag|>", "{"),
    opens_anywhere=False,
    arguments="parameters",
    begin="",
    before="",
    after="",
    between="; ",
    end="",
)
"""Llama 3's JSON. The tag is a special token, too."""
FORMATS = (HERMES, MISTRAL, LLAMA)

_PROBE: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "probe", "description": "A probe.", "parameters": {"type": "object"}}}
]


@dataclass(frozen=True, slots=True)
class ToolTalk:
    """How tools are described to one model, and how it calls them."""

    format: ToolFormat | None
    """None: its template accepts tools, but writes calls in a format that is not supported."""
    has_place: bool
    """Whether the template accepts tools; otherwise they are described in the system message."""


def tool_talk(template: str | None, render: Callable[[list[dict[str, Any]] | None], str]) -> ToolTalk:
    """Find out how a model uses tools. `render` applies the template to a user's message, with tools or without."""
    if template is None:
        return ToolTalk(HERMES, False)
    plain = render(None)
    try:
        has_place = render(_PROBE) != plain
    except Exception:  # a template is a program that comes with the model: it may raise anything
        has_place = False
    if not has_place:
        return ToolTalk(HERMES, False)
    known = (form for form in FORMATS if any(marker in template for marker in form.markers))
    return ToolTalk(next(known, None), True)


def describe(tools: list[dict[str, Any]]) -> str:
    """The description of tools for the system message."""
    lines = "\n".join(orjson.dumps(tool).decode() for tool in tools)
    example = HERMES.before + '{"name": "the function", "arguments": {"an argument": "its value"}}' + HERMES.after
    return (
        "You can call functions. Each line between <tools> and </tools> describes one:\n"
        f"<tools>\n{lines}\n</tools>\n"
        f"To call a function, answer with its name and arguments as JSON, like this:\n{example}"
    )
