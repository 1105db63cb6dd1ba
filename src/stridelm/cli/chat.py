"""`stridelm chat`: its options; `chat/loop.py` is the conversation."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stridelm.cli.options import as_option, given, with_settings
from stridelm.params import InputError, SamplingParams
from stridelm.settings import DecodeSettings, LoadSettings, ModelChoice

if TYPE_CHECKING:
    from stridelm.chat.speaker import Speaker

_LOCAL = ("adapter", "draft_model", "heads", *(each.name for each in fields(LoadSettings)))
"""Options about loading, which do not apply to a model that a server has loaded."""


@with_settings
def chat(
    context: typer.Context,
    choice: ModelChoice = ModelChoice(),  # noqa: B008 (frozen)
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="Talk to an OpenAI-compatible server, as in http://127.0.0.1:8000/v1; load nothing. --model is then "
            "the name to ask for, default the first that the server lists.",
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
    decode: DecodeSettings = DecodeSettings(),  # noqa: B008 (frozen)
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
) -> None:
    """Talk with a model, here or on a server, and see its speed and its strides. /help lists the commands.

    \b
    stridelm chat
    stridelm chat --url http://127.0.0.1:8000/v1 --system "Answer in one sentence."
    printf '%s\\n' "Why is the sky blue?" "And at night?" | stridelm chat > answers.txt
    """
    if url is None:
        if given(context, ["api_key"]):
            raise InputError("--api-key is for a server: give its address with --url")
        run(lambda: _local(choice, sampling, decode), system)
        return
    for name in given(context, _LOCAL):
        raise InputError(
            f"{as_option(name)} is about a model that is loaded here and does not go with --url: leave one of them out"
        )
    asked_for = choice.model if given(context, ["model"]) else None
    # Only the options that were given: other servers know none of the decoding settings.
    stride = {name: getattr(decode, name) for name in given(context, [each.name for each in fields(DecodeSettings)])}
    run(lambda: _remote(url, api_key, asked_for, sampling, stride), system)


def run(connect: "Callable[[], Speaker]", system: str | None) -> None:
    """`connect`: loads the model, or finds it at a server."""
    from stridelm.chat.conversation import Conversation
    from stridelm.chat.loop import Chat
    from stridelm.chat.screen import Screen

    screen = Screen()
    conversation = Chat(connect(), screen, Conversation(system))
    if screen.is_interactive:
        screen.tell(f"Talking with {conversation.speaker.description}. /help lists the commands, Ctrl-D leaves.")
    conversation.run()


def _remote(
    url: str, api_key: str | None, model: str | None, sampling: SamplingParams, stride: Mapping[str, Any]
) -> "Speaker":
    from stridelm.chat.openai_stream import Endpoint
    from stridelm.chat.remote import RemoteSpeaker

    return RemoteSpeaker(Endpoint(url, api_key), model, sampling, stride)


def _local(choice: ModelChoice, sampling: SamplingParams, decode: DecodeSettings) -> "Speaker":
    from stridelm.api import LanguageModel
    from stridelm.chat.local import LocalSpeaker

    return LocalSpeaker(LanguageModel.load(choice), sampling, decode)
