"""Messages of a chat, as clients send them. Clients also send back earlier replies, with all the fields they received
and with labels for other servers. Fields that a chat template may read are kept (`name`, `reasoning_content`); labels
cannot change the text."""

from typing import Annotated, Any, Literal

from pydantic import Field

from stridelm.serve.schemas.common import Strict

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
CallId = Annotated[str, Field(min_length=1, max_length=256)]


class Labelled(Strict):
    """Labels that clients add to messages, parts and calls."""

    cache_control: dict[str, Any] | None = None
    """Where another server's cache should begin: a label."""
    provider_specific_fields: dict[str, Any] | None = None
    """Added by clients that support many servers: a label."""


class TextPart(Labelled):
    """A part of a message's content. Refusals are the only other kind: the model reads text."""

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
    """The function that was called, and its arguments."""

    name: FunctionName
    arguments: str = ""
    """A JSON object, as text; an empty string means an empty object."""
    parsed_arguments: Any = None
    """The arguments as OpenAI's client parsed them: a label."""


class ToolCall(Labelled):
    """A call that the assistant made."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Its position among the calls, as in streams: a label."""


class Message(Labelled):
    """The fields that all messages may have."""

    name: Annotated[str, Field(max_length=256)] | None = None
    """The speaker's name, for templates that read it."""


class SystemMessage(Message):
    """Instructions for the whole chat."""

    role: Literal["system"]
    content: Content


class DeveloperMessage(Message):
    """The same under OpenAI's newer name. A class of its own: generators of clients read one role per schema."""

    role: Literal["developer"]
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
    """What it said instead of an answer, if there is no content."""
    reasoning_content: str | None = None
    """Its reasoning, for templates that read it."""
    reasoning: str | None = None
    """The newer name of `reasoning_content`."""
    annotations: list[Any] | None = None
    """From other servers' web searches: a label."""
    parsed: Any = None
    """The content as OpenAI's client parsed it: a label."""
    # Of these, only null is accepted.
    audio: None = None
    function_call: None = None


class ToolMessage(Message):
    """The result of a call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: CallId
    """The function is looked up by this id, unless `name` is given."""


AnyMessage = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]
Messages = Annotated[list[AnyMessage], Field(fail_fast=True, min_length=1)]
