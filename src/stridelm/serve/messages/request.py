"""The bodies of /v1/messages and /v1/messages/count_tokens."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from stridelm.serve.messages.content import Texts, Turn
from stridelm.serve.schemas.chat import Length
from stridelm.serve.schemas.common import AlwaysFalse, Count, GenerationFields, StopString, Strict
from stridelm.serve.schemas.messages import FunctionName


class MessagesTool(Strict):
    """A function that the model may call. There are no other tools."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    """A JSON schema of type object."""
    strict: bool | None = None
    """Force the arguments to match the schema, also if the model is free to call the function or not."""
    cache_control: dict[str, Any] | None = None
    """A label."""
    eager_input_streaming: bool | None = None
    """A label: arguments are always sent as they are written."""
    defer_loading: AlwaysFalse | None = None
    """Every tool is shown to the model."""


class _Choice(Strict):
    disable_parallel_tool_use: bool | None = None
    """True: at most one call."""


class AutoChoice(_Choice):
    """The model may call functions."""

    type: Literal["auto"]


class AnyChoice(_Choice):
    """It must."""

    type: Literal["any"]


class ToolChoice(_Choice):
    """It must call this function."""

    type: Literal["tool"]
    name: FunctionName


class NoChoice(Strict):
    """It must not."""

    type: Literal["none"]


class ThinkingOptions(Strict):
    """Whether the model reasons before it answers, for chat templates that read `enable_thinking`; with others it is
    ignored."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None
    """Refused if the template reads `enable_thinking`: a budget cannot be kept."""
    display: Literal["summarized", "omitted"] | None = None
    """Refused if the template reads `enable_thinking`: reasoning is part of the text."""


class SchemaFormat(Strict):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputOptions(Strict):
    """What the answer must look like."""

    format: SchemaFormat | None = None
    effort: Annotated[str, Field(max_length=64)] | None = None
    """The variable `reasoning_effort` of chat templates that read it; with others it is ignored."""


class PromptFields(Strict):
    """What the prompt is made of."""

    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1)]
    """The chat so far."""
    system: str | Texts | None = None
    """A system message before it."""
    tools: Annotated[list[MessagesTool], Field(fail_fast=True, max_length=128)] | None = None
    """Functions that the model may call."""
    tool_choice: Annotated[AutoChoice | AnyChoice | ToolChoice | NoChoice, Field(discriminator="type")] | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions | None = None
    cache_control: dict[str, Any] | None = None
    """Ignored: prompts in the cache are found by their text."""
    speed: Literal["standard", "fast"] | None = None
    """Ignored."""


class CountRequest(PromptFields):
    """A chat whose prompt is to be counted."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    """The served model's name, which is also the default."""


class MessagesUnread(Strict):
    """Fields that cannot change the text: any value is accepted, and the reply's `stride.ignored` names them."""

    metadata: dict[str, Any] | None = None
    """Ignored."""
    service_tier: str | None = None
    """Ignored: there is only one."""
    inference_geo: str | None = None
    """Ignored: the answer is written where the server is."""


class MessagesNeutral(Strict):
    """Fields of Anthropic's API that only null is accepted for."""

    container: None = None
    context_management: None = None
    mcp_servers: None = None
    """There are neither containers nor edits of the context nor connections to other servers."""


class MessagesRequest(MessagesUnread, MessagesNeutral, PromptFields, GenerationFields):
    """A chat that the model is to continue."""

    max_tokens: Length
    """Maximum number of tokens to write. If there is less room in the context, the answer ends there."""
    stop_sequences: Annotated[list[StopString], Field(fail_fast=True)] | None = None
    """Strings that end the answer; they are not part of it."""

    @property
    def ignored(self) -> list[str]:
        """The fields that the request has and that cannot change the text."""
        names = (*MessagesUnread.model_fields, "cache_control", "speed")
        return [name for name in names if getattr(self, name) is not None]


class TokenCount(BaseModel):
    """The number of tokens of a prompt."""

    input_tokens: int


class MessagesErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessagesError(BaseModel):
    """The body of every error reply."""

    type: Literal["error"]
    error: MessagesErrorDetail
