"""The body of /v1/chat/completions: messages, tools, the answer's format and its prediction."""

from typing import Annotated, Any, Literal

from pydantic import Field

from stridelm.serve.schemas.common import (
    LARGEST_ALTERNATIVES,
    LARGEST_COUNT,
    AlwaysFalse,
    AlwaysTrue,
    Strict,
    TextRequest,
)
from stridelm.serve.schemas.messages import Content, FunctionName, Messages

Length = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
_Scalar = Annotated[str, Field(max_length=1024)] | bool | int | float | None
TemplateFields = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], _Scalar], Field(max_length=16)
]
"""Variables of a chat template by name."""


class Function(Strict):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of type object; if left out, the function takes no arguments."""
    strict: bool | None = None
    """Force the arguments to match the schema, also if the model is free to call the function or not."""


class Tool(Strict):
    """A tool. Only functions are supported."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """The function to call."""

    name: FunctionName


class NamedTool(Strict):
    """Call this function."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Strict):
    """The schema that an answer must match."""

    name: FunctionName | None = None
    """A label that is not shown to the model."""
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    """A label that is not shown to the model."""
    strict: bool | None = None
    """Every schema is enforced, whatever this says."""


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Strict):
    """A JSON object."""

    type: Literal["json_object"]


class SchemaFormat(Strict):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class Prediction(Strict):
    """Text that the answer will mostly repeat, such as a file that is to be edited."""

    type: Literal["content"]
    content: Content


class ChatUnread(Strict):
    """Fields of a chat that cannot change its text, as in `Unread`."""

    separate_reasoning: AlwaysTrue | None = None
    """Ignored: a model's reasoning is part of its text, unless its template leaves it out."""
    stream_reasoning: AlwaysTrue | None = None
    """Ignored, for the same reason."""
    verbosity: str | None = None
    """Ignored: ask for it in a message."""
    modalities: list[Literal["text"]] | None = None
    """Ignored: answers are text."""
    audio: dict[str, Any] | None = None
    """Ignored: how speech would sound, if there were any."""
    functions: list[Any] | None = None
    """Ignored, and accepted only with `function_call: "none"`: functions are now sent as `tools`."""


class ChatNeutral(Strict):
    """Fields of a chat that are accepted only with values that change nothing, as in `Neutral`."""

    function_call: Literal["none"] | None = None
    """Functions are now sent as `tools`."""
    include_reasoning: AlwaysTrue | None = None
    """A model's reasoning is part of its text, unless its template leaves it out."""
    echo: AlwaysFalse | None = None
    """The chat is not repeated."""
    web_search_options: None = None
    moderation: None = None
    """There is neither web search nor moderation."""


class ChatRequest(ChatUnread, ChatNeutral, TextRequest):
    """A chat that the model is to continue."""

    messages: Messages
    """The chat so far."""
    max_tokens: Length | None = None
    """Maximum number of tokens to write; if left out, as many as the context has room for."""
    max_completion_tokens: Length | None = None
    """The newer name of `max_tokens`."""
    logprobs: bool | None = None
    """Report the log probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=LARGEST_ALTERNATIVES)] | None = None
    """Number of likeliest tokens to report at each position; needs `logprobs`."""
    response_format: ResponseFormat | None = None
    """What the answer must look like."""
    prediction: Prediction | None = None
    """Text that the answer will mostly repeat: the more it does, the faster it comes. The answer stays the same."""
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=128)] | None = None
    """Functions that the model may call."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """Whether the model may call functions (auto), must (required, or a function by name) or must not (none)."""
    parallel_tool_calls: bool | None = None
    """False: at most one call."""
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None
    """For chat templates that read it; with others it is ignored."""
    chat_template_kwargs: TemplateFields | None = None
    """Further variables for the chat template, such as `{"enable_thinking": false}`."""
    continue_final_message: bool | None = None
    """Continue the last message, which must be the assistant's, instead of starting a new one."""
    add_generation_prompt: bool | None = None
    """Open the assistant's turn; the default is true, unless the last message is to be continued."""

    @classmethod
    def unread(cls) -> list[str]:
        return [*super().unread(), *ChatUnread.model_fields]

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call, even if the request has a response format."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def ignored(self) -> list[str]:
        named = super().ignored
        if self.response_format is not None and self.response_format.type != "text" and self.must_call:
            named.append("response_format")
        if self.parallel_tool_calls is not None and (not self.tools or self.tool_choice == "none"):
            named.append("parallel_tool_calls")
        return named

    @property
    def alternatives(self) -> int | None:
        """How many likeliest tokens are reported; None: not even the token's own probability."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def continues(self) -> bool:
        return bool(self.continue_final_message)

    @property
    def opens_turn(self) -> bool:
        return not self.continues if self.add_generation_prompt is None else self.add_generation_prompt
