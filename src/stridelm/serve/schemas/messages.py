"""Messages of a chat, as clients send them, and as they send them back: with whatever they were given, and labels of
other servers. What a chat template may read is kept (`name`, `reasoning_content`); labels cannot change the text."""

from typing import Annotated, Any, Literal

from pydantic import Field

from stridelm.serve.schemas.common import Strict

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
CallId = Annotated[str, Field(min_length=1, max_length=256)]


class Labelled(Strict):
    """What clients hang on messages, parts and calls."""

    cache_control: dict[str, Any] | None = None
    """Where another server's cache should begin: a label."""
    provider_specific_fields: dict[str, Any] | None = None
    """Of clients that speak to many servers: a label."""


class TextPart(Labelled):
    """A part of a message's content. There are no others but refusals: the model reads text."""

    type: Literal["text"]
    text: str


class RefusalPart(Labelled):
    """What the assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


Texts = Annotated[list[TextPart], Field(fail_fast=True, min_length=1)]
Content = str | Texts
SaidPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Said = str | Annotated[list[SaidPart], Field(fail_fast=True)]


class CalledFunction(Labelled):
    """What was called, and with what."""

    name: FunctionName
    arguments: str = ""
    """A JSON object, as text; nothing stands for an empty one."""
    parsed_arguments: Any = None
    """The same as openai's client read it: a label."""


class ToolCall(Labelled):
    """A call that the assistant made."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Its place among the calls, as streams tell it: a label."""


class Message(Labelled):
    """What all of them may have."""

    name: Annotated[str, Field(max_length=256)] | None = None
    """Whose words they are; for templates that read it."""


class SystemMessage(Message):
    """What holds for the whole chat. `developer` is OpenAI's newer word for it."""

    role: Literal["system", "developer"]
    content: Content


class UserMessage(Message):
    """What the user said."""

    role: Literal["user"]
    content: Content


class AssistantMessage(Message):
    """What the model said before: text, calls or both."""

    role: Literal["assistant"]
    content: Said | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    refusal: str | None = None
    """What it said instead of an answer, where there is no content."""
    reasoning_content: str | None = None
    """What it thought; for templates that read it."""
    reasoning: str | None = None
    """The same by its newer name."""
    annotations: list[Any] | None = None
    """Of other servers' searches: a label."""
    parsed: Any = None
    """The content as openai's client read it: a label."""
    # Of these only "there is none" can be taken.
    audio: None = None
    function_call: None = None


class ToolMessage(Message):
    """What a call gave."""

    role: Literal["tool"]
    content: Content
    tool_call_id: CallId
    """The function is looked up by it, unless `name` tells."""


AnyMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = Annotated[list[AnyMessage], Field(fail_fast=True, min_length=1)]
