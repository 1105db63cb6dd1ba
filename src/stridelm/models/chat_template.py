"""Chat templates: programs in Jinja that write a conversation as the text that a model was trained on.

They are written for transformers' environment, so ours must be the same. Importing Jinja takes a while: import this
module only when a template is rendered.
"""

import copy
import json
from collections.abc import Mapping
from collections.abc import Sequence as Items
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]
_MARK = "CONTINUES_FROM_HERE "
"""Appended to a message to find its end in the rendered text. The space shows whether the template trims messages."""


class _Generation(Extension):
    """`{% generation %}` marks the model's own text, for training. Here it is replaced by its contents."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # Names defined in the block are local to it, as in transformers' environment.
        return nodes.Scope(body).set_lineno(line)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces Jinja's own filter, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
    return environment.from_string(template)


def render(
    template: str,
    conversation: Items[Message],
    *,
    tools: Items[dict[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    variables: Mapping[str, Any],
) -> str:
    """The conversation as text. `variables` are passed to the template by name. Raises what the template raises, and a
    ValueError if the last message cannot be continued."""
    if not conversation:
        raise ValueError("the conversation has no messages")
    if continue_final_message and add_generation_prompt:
        raise ValueError("continue_final_message goes on with a turn, add_generation_prompt opens one: choose")
    compiled = _compiled(template)
    ending = _ending(template, conversation) if continue_final_message else None
    messages = conversation if ending is None else _marked(conversation)
    text = compiled.render(
        messages=messages,
        tools=tools,
        documents=None,
        add_generation_prompt=add_generation_prompt,
        **variables,
    )
    return text if ending is None else _cut(text, ending)


def _ending(template: str, conversation: Items[Message]) -> str:
    content = conversation[-1].get("content")
    if not isinstance(content, str):
        raise ValueError("the last message has no text that could be continued")
    if "content" not in template:
        raise ValueError("the chat template does not read the content of messages")
    return content


def _marked(conversation: Items[Message]) -> list[Message]:
    *before, last = copy.deepcopy(list(conversation))
    return [*before, {**last, "content": last["content"] + _MARK}]


def _cut(text: str, ending: str) -> str:
    """The text before the mark."""
    at = text.rfind(_MARK.strip())
    if at < 0 or ending.strip() not in text:
        raise ValueError(f"the chat template leaves out the last message, or a part of it: {ending.strip()!r}")
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()
