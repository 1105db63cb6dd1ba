"""The items of a request to /v1/responses: messages, calls and their results, as clients send them and as they send
back what they got."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from stridelm.serve.schemas.common import Strict
from stridelm.serve.schemas.messages import CallId, FunctionName

Status = Literal["in_progress", "completed", "incomplete"]
_NO_REFERENCES = (
    "nothing is stored here, so an item cannot be referred to: send the item itself"
    " (the AI SDK does with `store: false` among its options for openai)"
)


class _Item(Strict):
    """What all items may have from the reply that they come from: labels."""

    id: Annotated[str, Field(max_length=256)] | None = None
    status: Status | None = None


class InputText(Strict):
    """A part of what a message or a result says. The model reads text only."""

    type: Literal["input_text"]
    text: str


class OutputText(Strict):
    """A part of what the model said."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    """From other servers' searches: a label."""
    logprobs: list[Any] | None = None
    """A label."""
    parsed: Any = None
    """The text as OpenAI's client parsed it: a label."""


class OutputRefusal(Strict):
    """What the model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


InputTexts = Annotated[list[InputText], Field(fail_fast=True, min_length=1)]
OutputPart = Annotated[OutputText | OutputRefusal, Field(discriminator="type")]


class InputMessage(_Item):
    """What the user said, or instructions."""

    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer"]
    content: str | InputTexts


class OutputMessage(_Item):
    """What the model said before."""

    type: Literal["message"] = "message"
    role: Literal["assistant"]
    content: str | Annotated[list[OutputPart], Field(fail_fast=True)]
    phase: Literal["commentary", "final_answer"] | None = None
    """A label."""


class FunctionCall(_Item):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: str
    """A JSON object, as text; an empty string means an empty object."""
    parsed_arguments: Any = None
    """The arguments as OpenAI's client parsed them: a label."""


class FunctionCallOutput(_Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: str | InputTexts
    name: Annotated[str, Field(max_length=256)] | None = None
    """The function; if it is left out, it is looked up by the call's id."""


def _which(item: Any) -> str | None:
    """The kind of an item. Messages may leave their type out."""
    if isinstance(item, BaseModel):
        item = item.__dict__
    if not isinstance(item, dict):
        return None
    kind = item.get("type") or "message"
    return "output_message" if kind == "message" and item.get("role") == "assistant" else kind


def _no_reference(item: Any) -> Any:
    if isinstance(item, dict) and item.get("type") == "item_reference":
        raise ValueError(_NO_REFERENCES)
    return item


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[OutputMessage, Tag("output_message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")],
    Discriminator(
        _which,
        custom_error_type="item",
        custom_error_message="items are messages, function_call and function_call_output here",
    ),
    BeforeValidator(_no_reference),
]
