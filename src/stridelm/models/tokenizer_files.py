"""A model folder's tokenizer settings besides tokenizer.json: special tokens, added tokens, chat templates.

transformers' rules for these files have grown over years. Here are those that matter if there is a tokenizer.json that
describes the whole tokenizer; other folders are refused, so that no model gets other ids than from transformers.
tests/models/test_tokenizer.py compares the two.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from stridelm.params import InputError

Token = str | AddedToken
Settings = dict[str, Any]
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_GENERIC = {"TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer"}
"""The classes of transformers that use tokenizer.json as it is. Others replace parts of it by their own."""
OVERRIDING_FAMILIES = {"qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "hyperclovax_vision_v2"}
"""Models that transformers reads with a class of their own even if the folder names a generic one."""
UNNAMED_FAMILIES = {"llama", "mistral", "mixtral", "granite", "olmo2", "olmo3", "phi3", "smollm3", "stablelm"}
"""Models that transformers reads with the generic class if the folder names none."""
_BEYOND = (
    "auto_map",
    "fast_tokenizer_files",
    "fix_mistral_regex",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
)
"""Settings that change the tokenizer beyond what tokenizer.json says."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the files say."""

    special_tokens: dict[str, str]
    """By their names in chat templates."""
    added: list[AddedToken]
    """Tokens to add to those of tokenizer.json; may repeat some of them."""
    chat_template: str | dict[str, str] | None
    cleans_up: bool
    """Whether spaces before punctuation are removed from decoded text."""
    splits_special: bool
    """Whether special tokens that occur in a text are encoded like any other text."""


def describe(folder: Path, backend: Backend) -> Description:
    """Raises an InputError for a folder whose tokenizer is more than its tokenizer.json."""
    file = folder / "tokenizer_config.json"
    settings = read_object(file) or {}
    _check_class(folder, settings)
    try:
        return _describe(folder, settings, backend)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: its special or added tokens cannot be read ({error})") from error


def read_object(file: Path) -> Settings | None:
    """A file's JSON object; None if there is no such file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read ({error}): fetch the model again") from error
    if not isinstance(found, dict):
        raise InputError(f"{file}: is not a JSON object: fetch the model again")
    return found


def _check_class(folder: Path, settings: Settings) -> None:
    config = read_object(folder / "config.json")
    family = None if config is None else config.get("model_type")
    named = settings.get("tokenizer_class") or (config or {}).get("tokenizer_class")
    if named not in _GENERIC and not (named is None and (config is None or family in UNNAMED_FAMILIES)):
        raise InputError(f"{folder}: its tokenizer is of the class {named}: transformers is needed to read it")
    if family in OVERRIDING_FAMILIES:
        raise InputError(f"{folder}: transformers is needed to read a tokenizer of the model family {family}")
    unknown = next((name for name in _BEYOND if settings.get(name)), None)
    if unknown or (folder / "tekken.json").exists():
        raise InputError(f"{folder}: transformers is needed to read its tokenizer ({unknown or 'tekken.json'})")


def _describe(folder: Path, settings: Settings, backend: Backend) -> Description:
    settings = {name: _tokens_in(value) for name, value in settings.items()}
    extra: Any = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    # The model's own names, such as image_token; those in tokenizer_config.json come first, unless written as objects.
    own = {name: token for name, token in settings.items() if _is_own(name) and isinstance(token, str)}
    settings = {name: value for name, value in settings.items() if name not in own}
    if isinstance(extra, dict):
        own, extra = own | extra, []
    listed: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in settings:
        listed = {int(index): _added(token) for index, token in settings["added_tokens_decoder"].items()}
    else:
        told = read_object(folder / "special_tokens_map.json") or {}
        settings, extra = _with_map(settings, extra, told)
        if isinstance(extra, dict):
            own, extra = own | extra, []
        special = {str(settings[name]) for name in _NAMES if settings.get(name)} | {str(token) for token in extra}
        for content, index in (read_object(folder / "added_tokens.json") or {}).items():
            is_special = content in special
            listed[index] = AddedToken(content, normalized=not is_special, special=is_special)
        listed |= backend.get_added_tokens_decoder()
    named = _named(settings, listed, backend) | {
        name: token for name, token in settings.items() if _is_own(name) and isinstance(token, Token)
    }
    named |= own
    if not all(isinstance(token, Token) for token in (*named.values(), *extra)):
        raise TypeError("a special token is neither text nor an added token")
    return Description(
        special_tokens={name: str(token) for name, token in named.items()},
        added=_to_add(backend, listed, named, extra),
        chat_template=_chat_template(folder, settings.get("chat_template")),
        cleans_up=bool(settings.get("clean_up_tokenization_spaces")),
        splits_special=bool(settings.get("split_special_tokens")),
    )


def _is_own(name: str) -> bool:
    return name.endswith("_token") and name not in _NAMES


def _tokens_in(value: Any) -> Any:
    """A setting's value, with tokens that are written as objects converted to AddedToken."""
    if isinstance(value, dict):
        if value.get("__type") == "AddedToken":
            return AddedToken(**{name: part for name, part in value.items() if name != "__type"})
        return {name: _tokens_in(part) for name, part in value.items()}
    return [_tokens_in(part) for part in value] if isinstance(value, list) else value


def _added(token: Any) -> AddedToken:
    return token if isinstance(token, AddedToken) else AddedToken(**token)


def _with_map(settings: Settings, extra: list[Token], told: Settings) -> tuple[Settings, Any]:
    """The settings with those of special_tokens_map.json, which override tokenizer_config.json."""
    settings = dict(settings)
    has_extra = "extra_special_tokens" in settings or "additional_special_tokens" in settings
    found: Any = extra
    for name, value in told.items():
        if name == "extra_special_tokens" and isinstance(value, list):
            tokens = [AddedToken(**token, special=True) if isinstance(token, dict) else token for token in value]
            found = [*extra, *(token for token in tokens if token not in extra)]
        elif name == "extra_special_tokens":
            found = value or []
        elif isinstance(value, dict):
            settings[name] = AddedToken(**{**value, "special": True})
        else:
            settings[name] = value
    if not has_extra and "extra_special_tokens" not in told:
        found = told.get("additional_special_tokens") or []
    return settings, found


def _named(settings: Settings, listed: Mapping[int, AddedToken], backend: Backend) -> dict[str, Token]:
    by_content = {token.content: token for token in listed.values()}
    settings = ({"pad_token": backend.padding["pad_token"]} if backend.padding else {}) | settings
    named: dict[str, Token] = {name: settings[name] for name in _NAMES if settings.get(name) is not None}
    return {name: by_content.get(str(token), token) for name, token in named.items()}


def _to_add(
    backend: Backend, listed: Mapping[int, AddedToken], named: Mapping[str, Token], extra: Iterable[Token]
) -> list[AddedToken]:
    """The tokens that tokenizer_config.json lists, by id, then special tokens that neither file has added."""
    tokens = [token for _, token in sorted(listed.items())]
    known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *tokens)}
    for token in (*named.values(), *extra):
        if str(token) not in known:
            known.add(str(token))
            tokens.append(AddedToken(token, special=True) if isinstance(token, str) else token)
    names = {str(token) for token in named.values()}
    for token in tokens:
        token.special = token.special or token.content in names
    return tokens


def _chat_template(folder: Path, told: Any) -> str | dict[str, str] | None:
    """Template files override the entry of tokenizer_config.json."""
    files = {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    try:
        templates = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: a chat template cannot be read ({error})") from error
    if templates:
        return templates["default"] if list(templates) == ["default"] else templates
    return {entry["name"]: entry["template"] for entry in told} if isinstance(told, list) else told
