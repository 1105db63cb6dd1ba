"""The body of /v1/chat/completions: messages, tools, the form of the answer."""

from typing import Annotated, Any, Literal

from pydantic import Field

from stridelm.serve.schema import LARGEST_ALTERNATIVES, Count, Strict, TextRequest

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class TextPart(Strict):
    """A part of a message's content. There are no other kinds: the model reads text."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1)]


class CalledFunction(Strict):
    """What was called, and with what."""

    name: FunctionName
    arguments: str
    """A JSON object, as text."""


class ToolCall(Strict):
    """A call that the assistant made."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"]
    function: CalledFunction


class SystemMessage(Strict):
    """What holds for the whole chat."""

    role: Literal["system"]
    content: Content


class UserMessage(Strict):
    """What the user said."""

    role: Literal["user"]
    content: Content


class AssistantMessage(Strict):
    """What the model said before: text, calls or both."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: list[ToolCall] | None = None
    # Clients give back what they were given; of these only "there is none" can be taken.
    refusal: None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Strict):
    """What a call gave."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)]
    name: FunctionName | None = None
    """The function's; left out, it is looked up by the call's id."""


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Function(Strict):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of type object; left out, the function takes none."""
    strict: bool | None = None
    """Let only arguments be written that keep to the schema, also where the model is free to call or not."""


class Tool(Strict):
    """A tool: only functions are known."""

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
    """The schema that an answer must keep to."""

    name: FunctionName
    """A label; the model is not shown it."""
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    """A label; the model is not shown it."""
    strict: bool | None = None
    """Every schema is kept to, whatever this says."""


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Strict):
    """A JSON object."""

    type: Literal["json_object"]


class SchemaFormat(Strict):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class ChatRequest(TextRequest):
    """A chat that the model is to continue."""

    messages: Annotated[list[Message], Field(min_length=1)]
    """The chat so far."""
    max_tokens: Count | None = None
    """The most tokens to write; left out, what the context has left."""
    max_completion_tokens: Count | None = None
    """The same by its newer name."""
    logprobs: bool | None = None
    """Say how likely each token was."""
    top_logprobs: Annotated[int, Field(ge=0, le=LARGEST_ALTERNATIVES)] | None = None
    """How many of the likeliest tokens to name at each place; needs `logprobs`."""
    response_format: ResponseFormat | None = None
    """What the answer must look like."""
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    """Functions that the model may call."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """Whether it may (auto), must (required, or a function by name) or must not (none)."""
    parallel_tool_calls: bool | None = None
    """False: one call at most."""
    continue_final_message: bool | None = None
    """Go on with the last message, which must be the assistant's, instead of starting a new one."""
    add_generation_prompt: bool | None = None
    """Open the assistant's turn; left out: unless its last message is to be continued."""

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
