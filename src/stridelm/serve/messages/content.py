"""Messages of /v1/messages, as clients send them and as they send back what they got. Content is blocks: texts, calls
(`tool_use`) and their results. Labels for other servers are accepted and have no effect."""

from typing import Annotated, Any, Literal

from pydantic import Field

from stridelm.serve.schemas.common import Strict
from stridelm.serve.schemas.messages import CallId, FunctionName


class _Labelled(Strict):
    cache_control: dict[str, Any] | None = None
    """Where another server's cache should begin: a label. Here, prompts are found by their text."""


class TextBlock(_Labelled):
    """A part of what was said. The model reads text only."""

    type: Literal["text"]
    text: str
    citations: list[Any] | None = None
    """From other servers' documents: a label."""


class ToolUse(_Labelled):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: CallId
    name: FunctionName
    input: dict[str, Any]
    """The arguments."""
    caller: dict[str, Any] | None = None
    """A label."""


class Thinking(Strict):
    """The model's reasoning, for chat templates that read it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None
    """A label."""


class ToolResult(_Labelled):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    """Whether the call failed: then the model reads `Error: ` before the content."""


Texts = Annotated[list[TextBlock], Field(fail_fast=True)]
UserBlock = Annotated[TextBlock | ToolResult, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ToolUse | Thinking, Field(discriminator="type")]


class UserTurn(Strict):
    """What the user said, and the results of calls."""

    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(fail_fast=True, min_length=1)]


class AssistantTurn(Strict):
    """What the model said before. As the last message, it is what the answer begins with."""

    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(fail_fast=True)]


class SystemTurn(Strict):
    """Instructions in the middle of a chat."""

    role: Literal["system"]
    content: str | Annotated[list[TextBlock], Field(fail_fast=True, min_length=1)]


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]
