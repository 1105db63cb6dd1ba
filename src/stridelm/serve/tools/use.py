"""Tools and response format of a chat request: checked, and compiled to a grammar if they restrict the answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from stridelm.serve.context import Context, Start
from stridelm.serve.errors import ApiError, Uncompilable
from stridelm.serve.grammars.json_schema import meant
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.http.json_body import depth
from stridelm.serve.schemas.chat import ChatRequest, Function, NamedTool, ObjectFormat, ResponseFormat, SchemaFormat
from stridelm.serve.settings import ServeSettings
from stridelm.serve.tools.forms import ToolFormat, ToolTalk
from stridelm.serve.tools.grammar import call_or_json, may_call, must_call
from stridelm.serve.tools.reader import CallReader


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that may be called in one answer."""

    form: ToolFormat
    shown: list[Function]
    """The functions that are described to the model."""
    callable: list[Function]
    """The functions that it may call."""
    is_forced: bool
    many: bool
    """Whether it may call more than once."""

    def reader(self) -> CallReader:
        return CallReader(self.form, {function.name for function in self.callable}, many=self.many)


def tool_use(settings: ServeSettings, talk: ToolTalk, request: ChatRequest) -> ToolUse | None:
    """The request's functions, checked; None: nothing can be called."""
    if request.functions and request.function_call != "none":
        raise ApiError(400, "functions: they are tools by now, send them as such", param="functions")
    functions = [tool.function for tool in request.tools or ()]
    choice = request.tool_choice or "auto"
    if not functions:
        if choice not in ("auto", "none"):
            raise ApiError(400, "tool_choice: there are no tools to call", param="tool_choice")
        return None
    check_functions(settings, functions)
    if choice == "none":
        return None
    if talk.format is None:
        message = "tools: the model's chat template writes calls in a form that is not known here"
        raise ApiError(400, message, param="tools")
    named = _named(functions, choice) if isinstance(choice, NamedTool) else functions
    many = request.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
    return ToolUse(talk.format, functions, named, choice != "auto", many)


async def answer_grammar(
    context: Context, request: ChatRequest, use: ToolUse | None, vocabulary: Vocabulary
) -> Start | None:
    """The grammar that the answer must match; None: any text is allowed. If no text could match the schemas with their
    objects closed (see `meant`), they are used as they are."""
    try:
        return await _grammar(context, request, use, vocabulary, closes=True)
    except Uncompilable:
        return await _grammar(context, request, use, vocabulary, closes=False)


async def _grammar(
    context: Context, request: ChatRequest, use: ToolUse | None, vocabulary: Vocabulary, *, closes: bool
) -> Start | None:
    with _blaming("response_format"):
        schema = _answer_schema(context.settings, request.response_format, closes=closes)
        if use is None:
            return None if schema is None else await context.grammars.json_schema(schema)
    with _blaming("tools"):
        text = _call_grammar(use, vocabulary, schema, closes=closes)
        if text is None:
            return None
        try:
            return await context.grammars.lark(text)
        except Uncompilable:
            if schema is not None and not use.is_forced:  # which of the two is at fault?
                with _blaming("response_format"):
                    await context.grammars.json_schema(schema)
            raise


@contextmanager
def _blaming(param: str) -> Iterator[None]:
    """Add this field's name to errors that name no field."""
    try:
        yield
    except ApiError as error:
        error.param = error.param or param
        raise


def _answer_schema(settings: ServeSettings, form: ResponseFormat | None, *, closes: bool) -> dict[str, Any] | None:
    """The schema that a text answer must match; None: any text is allowed."""
    match form:
        case ObjectFormat():
            return {"type": "object"}
        case SchemaFormat():
            check_schemas(settings, [form.json_schema.schema_], "response_format")
            return meant(form.json_schema.schema_, closes=closes)
    return None


def _call_grammar(use: ToolUse, vocabulary: Vocabulary, schema: dict[str, Any] | None, *, closes: bool) -> str | None:
    """A grammar for calls; None: any text is allowed. `schema`: what the answer must match if it is not a call."""
    form, functions, many, special = use.form, use.callable, use.many, vocabulary.special
    if use.is_forced:
        return must_call(form, functions, many=many, special=special, closes=closes)
    if schema is not None:
        return call_or_json(form, functions, schema, many=many, special=special, closes=closes)
    if not any(function.strict for function in functions):
        return None
    if not form.opens_anywhere:
        message = 'tools: this model\'s form of calls cannot be made strict with tool_choice "auto"'
        raise ApiError(400, message)
    return may_call(form, functions, many=many, closes=closes)


def check_functions(settings: ServeSettings, functions: list[Function]) -> None:
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise ApiError(400, "tools: two functions have the same name", param="tools")
    schemas = [function.parameters for function in functions if function.parameters is not None]
    check_schemas(settings, schemas, "tools")
    for schema in schemas:
        if schema.get("type", "object") != "object":
            raise ApiError(400, "tools: the parameters of a function must be of the type object", param="tools")


def check_schemas(settings: ServeSettings, schemas: list[dict[str, Any]], param: str) -> None:
    """Check depths first: a schema that is nested too deeply cannot be serialised to measure its size."""
    if max((depth(schema) for schema in schemas), default=0) > settings.max_schema_depth:
        message = f"{param}: schemas may nest {settings.max_schema_depth} deep at most"
        raise ApiError(400, message, param=param)
    try:
        size = sum(len(orjson.dumps(schema)) for schema in schemas)
    except orjson.JSONEncodeError as error:
        raise ApiError(400, f"{param}: the schema cannot be read", param=param) from error
    if size > settings.max_schema:
        raise ApiError(400, f"{param}: schemas may have {settings.max_schema} bytes at most", param=param)


def _named(functions: list[Function], choice: NamedTool) -> list[Function]:
    found = [function for function in functions if function.name == choice.function.name]
    if not found:
        raise ApiError(400, f"tool_choice: there is no tool {choice.function.name}", param="tool_choice")
    return found
