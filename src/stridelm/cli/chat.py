"""The options of `stridelm chat`."""

from dataclasses import fields
from typing import Annotated

import typer

from stridelm.cli.options import Adapter, HeadsFolder, as_option, given
from stridelm.params import InputError, SamplingParams
from stridelm.settings import DecodeSettings, LoadSettings

_LOCAL = ("adapter", "draft_model", "heads", *(each.name for each in fields(LoadSettings)))
"""What a server has decided already."""


def chat(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="smollm2 (built in, the default), a Hugging Face folder or id, or a .gguf file; with --url the name "
            "to ask for, default the first that the server lists.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help="Talk to an OpenAI-compatible server, as in http://127.0.0.1:8000/v1; load nothing."
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar=["STRIDELM_API_KEY", "OPENAI_API_KEY"],
            help="With --url: the server's key. Better given in the environment: a command line can be read by others.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="The system message: how to answer.")] = None,
    draft_model: Annotated[
        str | None, typer.Option("--draft-model", help="The model that --decoder draft asks; smollm2 has its own.")
    ] = None,
    adapter: Adapter = None,
    heads: HeadsFolder = None,
    decode: DecodeSettings = DecodeSettings(),  # noqa: B008 (frozen)
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    load: LoadSettings = LoadSettings(),  # noqa: B008 (frozen)
) -> None:
    """Talk with a model, here or on a server, and see its speed and its strides. /help lists the commands.

    \b
    stridelm chat
    stridelm chat --url http://127.0.0.1:8000/v1 --system "Answer in one sentence."
    printf '%s\\n' "Why is the sky blue?" "And at night?" | stridelm chat > answers.txt
    """
    from stridelm.chat import loop as chat_command

    if url is not None:
        for name in given(context, _LOCAL):
            raise InputError(
                f"{as_option(name)} is about a model that is loaded here and does not go with --url: leave one of them "
                "out"
            )
    elif given(context, ["api_key"]):
        raise InputError("--api-key is for a server: give its address with --url")
    told = {name: getattr(decode, name) for name in given(context, [each.name for each in fields(DecodeSettings)])}
    chat_command.run(
        chat_command.Request(model, adapter, draft_model, heads, url, api_key, system, decode, told, sampling, load)
    )
