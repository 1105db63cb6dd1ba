"""A tokenizer as the metadata of a GGUF file, so that llama.cpp tokenizes a text into the same ids as we do.

llama.cpp has its pre-tokenizers built in and selects one by name. So a tokenizer is written only if its pre-tokenizer
is one of those that `models/vocabulary/pre_tokenizers.py` knows; all others are refused, because a wrong name would
silently give other ids.
"""

import json
from typing import Any

from gguf import TokenType
from transformers import PreTrainedTokenizerBase

from stridelm.models.vocabulary.pre_tokenizers import CONTRACTIONS, WHOLE_WORDS, pre_tokenizers_by_name
from stridelm.params import InputError

_ANY_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
"""How most folders spell the contractions."""
_WITHOUT_EFFECT = ("trim_offsets", "prepend_scheme")
"""Settings of a pre-tokenizer that change no ids."""
_ENDS = ("eos", "eot", "eom")
Fields = dict[str, Any]


def vocabulary_fields(tokenizer: PreTrainedTokenizerBase, size: int, eos_ids: frozenset[int]) -> Fields:
    """All `tokenizer.*` fields. `size`: the model's number of tokens, which may be more than the tokenizer has."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _refusal("it is none of the tokenizers library")
    stored = json.loads(backend.to_str())
    _check(stored)
    pre = _name_of(stored)
    tokens, kinds = _tokens(stored, size)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in stored["model"]["merges"]]
    if not merges:
        raise _refusal("it has no merges, and llama.cpp takes none without")
    fields: Fields = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "add_bos_token": _adds_bos(tokenizer),
        "add_space_prefix": False,
        **_special_ids(tokenizer, eos_ids),
    }
    template: Any = tokenizer.chat_template
    chat = template.get("default") if isinstance(template, dict) else template
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()} | (
        {"tokenizer.chat_template": chat} if chat else {}
    )


def _refusal(why: str) -> InputError:
    return InputError(
        f"this model's tokenizer cannot be written as GGUF here: {why}. Write a Hugging Face folder and convert it "
        "with llama.cpp's own convert_hf_to_gguf.py"
    )


def _check(stored: Fields) -> None:
    model, normalizer = stored["model"], stored.get("normalizer")
    if model["type"] != "BPE" or (stored.get("decoder") or {}).get("type") != "ByteLevel":
        raise _refusal(f"it is of the kind {model['type']}, not a BPE over bytes")
    # llama.cpp does not normalize. NFC is accepted, because GGUF files of Qwen models, which use it, lack it as well.
    if normalizer and normalizer["type"] != "NFC":
        raise _refusal(f"it has a normalizer ({normalizer['type']})")
    for token in stored["added_tokens"]:
        if token["single_word"] or token["lstrip"] or token["rstrip"]:
            raise _refusal(f"its token {token['content']!r} takes spaces beside it, or stands alone only")


def _name_of(stored: Fields) -> str:
    """llama.cpp's name for the pre-tokenizer, which cuts a text into words."""
    found = _plain(stored["pre_tokenizer"])
    for name, known in pre_tokenizers_by_name().items():
        if found == _plain(json.loads(known.__getstate__())):
            if bool(stored["model"].get("ignore_merges")) != (name in WHOLE_WORDS):
                raise _refusal(f"it cuts words as {name!r}, but takes whole words otherwise than llama.cpp does there")
            return name
    raise _refusal(f"it cuts a text into words in a way that is none of {', '.join(pre_tokenizers_by_name())}")


def _plain(part: Any) -> Any:
    """A pre-tokenizer's settings without those that change no ids, and with one spelling of the contractions."""
    if isinstance(part, dict):
        return {name: _plain(value) for name, value in part.items() if name not in _WITHOUT_EFFECT}
    if isinstance(part, list):
        return [_plain(each) for each in part]
    return part.replace(_ANY_CASE, CONTRACTIONS) if isinstance(part, str) else part


def _tokens(stored: Fields, size: int) -> tuple[list[str], list[int]]:
    """All tokens by id, and their types. Ids of the model that the tokenizer does not use get unused names."""
    by_id = {number: (token, TokenType.NORMAL) for token, number in stored["model"]["vocab"].items()}
    for token in stored["added_tokens"]:
        by_id[token["id"]] = token["content"], TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    if max(by_id) >= size:
        raise _refusal(f"it has a token {max(by_id)}, but the model has {size} tokens only")
    known = {token for token, _ in by_id.values()}
    filled = [by_id.get(number) or (_unused(number, known), TokenType.UNUSED) for number in range(size)]
    return [token for token, _ in filled], [int(kind) for _, kind in filled]


def _unused(number: int, known: set[str]) -> str:
    name = f"[PAD{number}]"
    while name in known:
        name = f"[{name}]"
    return name


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    plain, whole = (tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
    if whole not in (plain, [tokenizer.bos_token_id, *plain]):
        raise _refusal("it puts more around a text than a beginning")
    return whole != plain


def _special_ids(tokenizer: PreTrainedTokenizerBase, eos_ids: frozenset[int]) -> dict[str, int]:
    """The special tokens under llama.cpp's names. Of the tokens that end an answer, the tokenizer's own comes first."""
    own: Any = tokenizer.eos_token_id
    ends = sorted(eos_ids, key=lambda token: (token != own, token))
    if len(ends) > len(_ENDS):
        raise _refusal(f"{len(ends)} tokens end an answer, and a file can name {len(_ENDS)}")
    ids: dict[str, Any] = dict(zip(_ENDS, ends, strict=False))
    ids |= {"bos": tokenizer.bos_token_id, "unknown": tokenizer.unk_token_id, "padding": tokenizer.pad_token_id}
    return {f"{name}_token_id": token for name, token in ids.items() if token is not None}
