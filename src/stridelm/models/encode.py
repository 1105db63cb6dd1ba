"""From a prompt (text, chat or token ids) to the token ids that a model takes."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from reprlib import repr as shortened
from typing import TYPE_CHECKING, TypeGuard

from stridelm.models.target import Target
from stridelm.params import InputError

if TYPE_CHECKING:
    from stridelm.models.tokenizer import TextTokenizer

Messages = Items[Mapping[str, str]]
"""A chat: [{"role": "user", "content": "..."}, ...]."""
TokenIds = list[int]
Prompt = str | Messages | TokenIds
Prompts = list[str] | list[Messages] | list[TokenIds]
"""A batch."""


class PromptTooLong(InputError):
    """The prompt has more tokens than the model's context."""


def is_batch(prompt: Prompt | Prompts) -> TypeGuard[Prompts]:
    """Whether these are several prompts: texts, chats or lists of token ids. An empty list is a batch of none."""
    is_list = isinstance(prompt, Items) and not isinstance(prompt, str | bytes)
    return is_list and all(isinstance(item, Items) for item in prompt)


def encode_prompt(model: Target, prompt: Prompt, *, raw: bool = False) -> list[int]:
    """The prompt's token ids, checked against the model's limits. Text is put into the model's chat template as a
    user's turn, if it has one; `raw` leaves text as it is. Token ids are taken as they are."""
    if isinstance(prompt, str):
        _check_text(prompt)
        if raw or not model.tokenizer.chat_template:
            return _checked(model, model.tokenizer.encode(prompt))
        prompt = [{"role": "user", "content": prompt}]
    if not _is_chat(prompt):
        return _checked(model, _token_ids(model, prompt))
    if raw:
        raise InputError("raw takes text, not chat messages")
    return _checked(model, _encode_chat(model.name, model.tokenizer, prompt))


def _is_chat(prompt: Messages | TokenIds) -> TypeGuard[Messages]:
    """Whether a list is meant as messages, well-formed or not: anything else is read as token ids."""
    if not isinstance(prompt, Items) or isinstance(prompt, bytes):
        raise InputError(
            f"the prompt is {shortened(prompt)}: give text (str), a list of messages or a list of token ids"
        )
    return bool(prompt) and all(isinstance(item, Mapping | str) for item in prompt)


def _token_ids(model: Target, ids: Items[object]) -> list[int]:
    known: list[int] = []
    for place, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < model.vocabulary:
            raise InputError(
                f"prompt[{place}] is {shortened(token)}, which is not a token id of {model.name}: give whole numbers "
                f"(int) between 0 and {model.vocabulary - 1}, or text or messages"
            )
        known.append(token)
    return known


def _encode_chat(name: str, tokenizer: "TextTokenizer", messages: Messages) -> list[int]:
    if not messages or not all(
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in messages
    ):
        raise InputError("messages must be a non-empty list of objects with a role and a content, both strings")
    for message in messages:
        _check_unicode(message["content"])
    if not tokenizer.chat_template:
        raise InputError(f"{name} has no chat template: give it text instead of messages")
    try:
        return tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    # A template is a program that comes with the model: it may raise anything, for example for an unknown role.
    except Exception as error:
        raise InputError(f"{name}'s chat template does not take these messages ({error})") from error


def _checked(model: Target, ids: list[int]) -> list[int]:
    if not ids:
        raise InputError("the prompt is empty: it has no tokens")
    if len(ids) >= model.context_length:
        raise PromptTooLong(
            f"the prompt has {len(ids)} tokens, but {model.name} takes {model.context_length} with the answer: "
            "shorten it"
        )
    if max(ids) >= model.vocabulary:
        raise InputError(f"the tokenizer gives the id {max(ids)}, but {model.name} has {model.vocabulary}")
    return ids


def _check_text(prompt: str) -> None:
    if not prompt.strip():
        raise InputError("the prompt is empty: give it some text")
    _check_unicode(prompt)


def _check_unicode(text: str) -> None:
    """Bytes that are not valid text arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the prompt is not valid Unicode (at character {error.start}): give it as UTF-8") from error
