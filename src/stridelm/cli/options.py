"""Command-line options from settings dataclasses: a field becomes an option with its docstring as help and its
default."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any

import typer

from stridelm.settings import field_docs

PROMPTS_HELP = "JSON lines with `messages`, `prompt` or `question`, or text, one prompt a line."
Model = Annotated[
    str, typer.Option("--model", help="smollm2 (built in), a Hugging Face folder or id, or a .gguf file.")
]


def given(context: typer.Context, parameters: Iterable[str]) -> list[str]:
    """Those that were given on the command line, even if with their default value."""
    sources = {name: context.get_parameter_source(name) for name in parameters}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def as_option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter that is a settings dataclass by options, one per field that a command line can hold.
    Options of settings within settings come last."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for parameter in inspect.signature(function).parameters.values():
        settings = hints[parameter.name]
        if _is_settings(settings):
            groups[parameter.name] = settings
            parameters += _options(settings)
            last += _inner_options(settings)
        else:
            parameters.append(parameter.replace(annotation=settings, kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**values: Any) -> None:
        made = {name: _made(settings, values) for name, settings in groups.items()}
        function(**values, **made)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    command.__signature__ = inspect.Signature([*parameters, *last])  # type: ignore[attr-defined]
    return command


def _is_settings(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and isinstance(kind, type)


def _made(settings: type, values: dict[str, Any]) -> Any:
    """The settings, made from the command line's `values`, which are removed from there."""
    given = {option.name: values.pop(option.name) for option in _options(settings)}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    hints = typing.get_type_hints(settings)
    inner = {
        each.name: _made(hints[each.name], values)
        for each in dataclasses.fields(settings)
        if _is_settings(hints[each.name])
    }
    return settings(**given, **inner)


def _inner_options(settings: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(settings)
    inner = [hints[each.name] for each in dataclasses.fields(settings) if _is_settings(hints[each.name])]
    return [option for each in inner for option in (*_options(each), *_inner_options(each))]


@cache
def _options(settings: type) -> list[inspect.Parameter]:
    docs, hints = field_docs(settings), typing.get_type_hints(settings)
    options: list[inspect.Parameter] = []
    for field in dataclasses.fields(settings):
        kind, default, metavar = hints[field.name], field.default, None
        if _is_settings(kind):
            continue
        help_text = field.metadata.get("help", docs[field.name])
        if typing.get_origin(kind) is tuple:
            kind, default, metavar, help_text = list[str], [], "<str>", f"{help_text} May be given several times."
        elif not (kind in (int, float, str, bool) or isinstance(kind, types.UnionType)):
            continue  # a mapping has no place on a command line
        option = typer.Option(
            as_option(field.name), help=help_text, metavar=metavar, envvar=field.metadata.get("environment")
        )
        options.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
            )
        )
    return options
