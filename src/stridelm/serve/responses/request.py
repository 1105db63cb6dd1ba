"""The body of /v1/responses."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from stridelm.serve.responses.items import Item
from stridelm.serve.schemas.chat import Length, ObjectFormat, TemplateFields, TextFormat
from stridelm.serve.schemas.common import LARGEST_ALTERNATIVES, AlwaysFalse, Count, GenerationFields, Strict, Unread
from stridelm.serve.schemas.messages import FunctionName

LOGPROBS = "message.output_text.logprobs"
"""What `include` calls log probabilities."""
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


def _nothing_is_stored(value: Any) -> Any:
    if value is not None:
        raise ValueError("nothing is stored here: send the whole conversation as `input`")
    return value


Unstored = Annotated[None, BeforeValidator(_nothing_is_stored)]


class FunctionTool(Strict):
    """A function that the model may call. There are no other tools."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of type object; if left out, the function takes no arguments."""
    strict: bool | None = None
    """Force the arguments to match the schema, also if the model is free to call the function or not."""
    defer_loading: AlwaysFalse | None = None
    """Every tool is shown to the model."""


class FunctionChoice(Strict):
    """Call this function."""

    type: Literal["function"]
    name: FunctionName


class JsonFormat(Strict):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    name: FunctionName | None = None
    """A label that is not shown to the model."""
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    """A label that is not shown to the model."""
    strict: bool | None = None
    """Every schema is enforced, whatever this says."""


class TextOptions(Strict):
    """What the answer's text must look like."""

    format: Annotated[TextFormat | ObjectFormat | JsonFormat, Field(discriminator="type")] | None = None
    verbosity: str | None = None
    """Ignored: ask for it in a message."""


class Reasoning(Strict):
    """How the model reasons."""

    effort: Annotated[str, Field(max_length=64)] | None = None
    """For chat templates that read it; with others it is ignored."""
    summary: str | None = None
    """Ignored: reasoning is part of the text, unless the template leaves it out."""
    generate_summary: str | None = None
    """The older name of `summary`."""


class EventOptions(Strict):
    """What a stream reports besides the text."""

    include_obfuscation: bool | None = None
    """Ignored: events are not padded."""


class ResponsesUnread(Unread):
    """Fields that cannot change the text, as in `Unread`."""

    max_tool_calls: Count | None = None
    """Ignored: it counts calls of the server's own tools, and there are none."""


class ResponsesNeutral(Strict):
    """Fields that are accepted only with values that change nothing."""

    background: AlwaysFalse | None = None
    """Replies are not kept, so they cannot be fetched later."""
    truncation: Literal["disabled"] | None = None
    """No item of a conversation is left out: one that does not fit is refused."""
    previous_response_id: Unstored = None
    conversation: Unstored = None
    """Nothing is stored: the whole conversation is sent as `input`."""
    prompt: None = None
    context_management: None = None
    moderation: None = None
    """There are neither stored prompts nor compaction nor moderation."""


class ResponsesRequest(ResponsesUnread, ResponsesNeutral, GenerationFields):
    """A conversation that the model is to continue."""

    input: str | Annotated[list[Item], Field(fail_fast=True, min_length=1)]
    """What the user says, or the whole conversation so far."""
    instructions: str | None = None
    """A system message before the conversation."""
    max_output_tokens: Length | None = None
    """Maximum number of tokens to write; if left out, as many as the context has room for."""
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    """Whether the model may call functions (auto), must (required, or a function by name) or must not (none)."""
    parallel_tool_calls: bool | None = None
    """False: at most one call."""
    include: Annotated[list[Includable], Field(max_length=16)] | None = None
    """Report log probabilities; what else OpenAI's servers may include does not exist here, and is ignored."""
    top_logprobs: Annotated[int, Field(ge=0, le=LARGEST_ALTERNATIVES)] | None = None
    """Number of likeliest tokens to report at each position; needs log probabilities in `include`."""
    reasoning: Reasoning | None = None
    chat_template_kwargs: TemplateFields | None = None
    """Further variables for the chat template, such as `{"enable_thinking": false}`."""
    stream_options: EventOptions | None = None

    @property
    def ignored(self) -> list[str]:
        """The fields that the request has and that cannot change the text."""
        named = [name for name in ResponsesUnread.model_fields if getattr(self, name) is not None]
        if self.store is False:
            named.remove("store")  # that is what happens
        if self.text is not None and self.text.verbosity is not None:
            named.append("text.verbosity")
        if self.reasoning is not None:
            summaries = ("summary", "generate_summary")
            named += [f"reasoning.{name}" for name in summaries if getattr(self.reasoning, name) is not None]
        if any(each != LOGPROBS for each in self.include or ()):
            named.append("include")
        if self.stream_options is not None and (self.stream_options.include_obfuscation is not None or not self.stream):
            named.append("stream_options")
        return named
