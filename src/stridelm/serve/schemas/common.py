"""The fields that chat and text completions share. Unknown fields are refused, and all numbers have bounds here."""

import dataclasses
from types import UnionType
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, create_model, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from stridelm.settings import DecodeSettings, field_docs

LARGEST_COUNT = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
TokenId = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
Penalty = Annotated[float, Field(ge=-100, le=100)]
Fraction = Annotated[float, Field(ge=0, le=1)]
LARGEST_ALTERNATIVES = 20


def _booleans_only(value: Any) -> Any:
    """Pydantic takes 0 for `Literal[False]` and 1.0 for `Literal[True]`, since they are equal."""
    if not isinstance(value, bool):
        raise ValueError("should be a boolean")
    return value


AlwaysFalse = Annotated[Literal[False], BeforeValidator(_booleans_only)]
AlwaysTrue = Annotated[Literal[True], BeforeValidator(_booleans_only)]


class Strict(BaseModel):
    """Refuses unknown fields, types other than the stated ones, NaN and infinities. Null means the same as leaving a
    field out, if it may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict) or None not in body.values():
            return body
        return {name: value for name, value in body.items() if value is not None or name not in cls._optional()}

    @classmethod
    def _optional(cls) -> set[str]:
        """The fields that a body may leave out, by their names in the body."""
        return {field.alias or name for name, field in cls.model_fields.items() if not field.is_required()}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema allows null wherever `_leave_out_nulls` accepts it."""
        schema = handler(core_schema)
        described = handler.resolve_ref_schema(schema).get("properties", {})
        for name in cls._optional() & described.keys():
            about = described[name]
            if {"type": "null"} not in about.get("anyOf", ()):
                kept = {key: about.pop(key) for key in ("default", "description", "title") if key in about}
                described[name] = {"anyOf": [about, {"type": "null"}], **kept}
        return schema


def _derived(settings: type) -> dict[str, Any]:
    """The fields of a settings dataclass, with their bounds, docs and defaults, as `create_model` takes them."""
    docs = field_docs(settings)
    made: dict[str, Any] = {}
    for each in dataclasses.fields(settings):
        is_optional = isinstance(each.type, UnionType)
        kind: Any = get_args(each.type)[0] if is_optional else each.type
        bounded: Any = Annotated[kind, Field(**each.metadata.get("bounds", {}))]
        extra = {"enum": each.metadata["choices"]} if "choices" in each.metadata else None
        about = Field(default=each.default, description=docs[each.name], json_schema_extra=extra)
        made[each.name] = (bounded | None if is_optional else bounded, about)
    return made


_DecodeFields = create_model("_DecodeFields", __base__=Strict, **_derived(DecodeSettings))


class DecodeOptions(_DecodeFields):
    """How several tokens per forward pass are found; the defaults are those of `stridelm generate`."""

    def settings(self) -> DecodeSettings:
        return DecodeSettings(**{each.name: getattr(self, each.name) for each in dataclasses.fields(DecodeSettings)})


class StrideOptions(DecodeOptions):
    """StrideLM's own settings of a request for text."""

    trace: bool = False
    """Report what every forward pass ran, which drafts were accepted, and the likeliest alternatives."""


class StreamOptions(Strict):
    """What a stream reports besides the text."""

    include_usage: bool = False
    """Report the number of tokens in an additional chunk at the end."""
    continuous_usage_stats: bool = False
    """Report the number of tokens so far in every chunk, as vLLM does: benchmark tools ask for it."""
    include_obfuscation: bool | None = None
    """Ignored: chunks are not padded."""


def _without_zeros(bias: Any) -> Any:
    """Drop biases of zero: they change nothing, whichever tokens they are for."""
    return {token: by for token, by in bias.items() if by != 0 or by is False} if isinstance(bias, dict) else bias


class Unread(Strict):
    """OpenAI's fields that cannot change the text: any value is accepted, and the reply's `stride.ignored` names
    them."""

    user: str | None = None
    """Ignored."""
    metadata: dict[str, Any] | None = None
    """Ignored."""
    service_tier: str | None = None
    """Ignored: there is only one."""
    store: bool | None = None
    """Ignored: nothing is stored."""
    safety_identifier: str | None = None
    """Ignored."""
    prompt_cache_key: str | None = None
    """Ignored: cached prompts are found by their text."""
    prompt_cache_retention: str | None = None
    """Ignored: prompts stay in the cache as long as there is room."""
    prompt_cache_options: dict[str, Any] | None = None
    """Ignored, for the same reasons."""


class Neutral(Strict):
    """Fields of other servers that routers and clients send with default values. Only these values are accepted: they
    change nothing."""

    ignore_eos: AlwaysFalse | None = None
    """An end-of-text token ends the text."""
    skip_special_tokens: AlwaysTrue | None = None
    """Special tokens are not part of the text."""
    no_stop_trim: AlwaysFalse | None = None
    """Stop strings are not part of the text."""
    return_hidden_states: AlwaysFalse | None = None
    """Hidden states are not returned."""


class GenerationFields(Strict):
    """The fields of requests for text in every API: the model, how it is sampled, and StrideLM's own settings."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    """The served model's name, which is also the default."""
    stream: bool | None = None
    """Send the text as it is written, as server-sent events."""
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """Same seed, same text; if it is left out or -1, one is drawn, and the reply names it."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """0 takes the likeliest token, and so does anything below 0.0001; the default is 1, as OpenAI has it."""
    top_p: Fraction | None = None
    """Keep the smallest set of tokens that holds this much probability (1); 0 keeps the likeliest."""
    top_k: Annotated[int, Field(ge=-1, le=LARGEST_COUNT)] | None = None
    """Number of likeliest tokens to keep (0 or -1: all)."""
    min_p: Fraction | None = None
    """Keep tokens at least this fraction as likely as the likeliest (0: all)."""
    presence_penalty: Penalty | None = None
    """Subtracted from the logits of tokens that the answer already contains (0)."""
    frequency_penalty: Penalty | None = None
    """Subtracted from a token's logit for each time that the answer already contains it (0)."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Makes tokens less likely that the prompt or the answer already contains (1: off)."""
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
            # Pydantic's schema describes the values of keys that match the pattern, but allows any others. Here these
            # may have a bias of zero only, which is dropped.
            Field(max_length=1024, json_schema_extra={"additionalProperties": {"const": 0}}),
            BeforeValidator(_without_zeros),
        ]
        | None
    ) = None
    """Token ids, as strings, and what is added to their logits."""
    stride: StrideOptions | None = None
    """StrideLM's own settings."""

    def generation_fields(self) -> dict[str, Any]:
        """These fields alone."""
        return {name: getattr(self, name) for name in GenerationFields.model_fields}


class TextRequest(Unread, Neutral, GenerationFields):
    """The fields of every request for text in OpenAI's older APIs. Null means the same as leaving a field out."""

    stream_options: StreamOptions | None = None
    """Only with `stream`."""
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of answers to each prompt (1)."""
    stop: StopString | Annotated[list[StopString], Field(fail_fast=True)] | None = None
    """Strings that end the answer; they are not part of it."""

    @property
    def count(self) -> int:
        """Number of answers to each prompt."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @classmethod
    def unread(cls) -> list[str]:
        """Fields that are never read."""
        return list(Unread.model_fields)

    @property
    def ignored(self) -> list[str]:
        """The fields that the request has and that cannot change the text."""
        named = [name for name in self.unread() if getattr(self, name) is not None]
        if self.stream_options is not None and not self.stream:
            named.append("stream_options")
        elif self.stream_options is not None and self.stream_options.include_obfuscation is not None:
            named.append("stream_options.include_obfuscation")
        return named

    @property
    def options(self) -> StrideOptions:
        return self.stride or StrideOptions()

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_on(self) -> bool:
        """Whether every chunk reports the number of tokens so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    """The field of the request at fault."""
    code: str | int | None


class ErrorReply(BaseModel):
    """The body of every error reply."""

    error: ErrorDetail


_ERRORS: dict[int | str, str] = {
    400: "The request cannot be answered: the message names the field",
    401: "The API key is missing or wrong",
    404: "There is no such model",
    413: "The request is too large",
    415: "The request does not say that it is JSON",
    429: "The queue is full: come again after `Retry-After` seconds",
    503: "The server is about to stop, or its engine has crashed",
    "default": "Anything else",
}


def error_replies(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The error replies that every route may give, as FastAPI describes them. `model`: their body."""
    return {status: {"model": model, "description": description} for status, description in _ERRORS.items()}


ERRORS = error_replies(ErrorReply)

TEXT_REPLY: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer: whole, or with `stream` as server-sent events",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
    }
}
"""The reply of routes that answer with text."""
