"""A tokenizer from a GGUF file's own vocabulary: BPE over bytes, or SentencePiece.

The ids are llama.cpp's (docs/models.md says what was compared). transformers' conversion ignores `tokenizer.ggml.pre`,
so digits and line breaks get other ids than the model was trained with.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from stridelm.models.tokenizer import Tokenizer
from stridelm.models.vocabulary.fields import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    VocabularyFields,
    chat_template,
    read_fields,
)
from stridelm.models.vocabulary.pre_tokenizers import ALIASES, WHOLE_WORDS, pre_tokenizers_by_name
from stridelm.models.vocabulary.score_merges import NoOrder, merges_by_score
from stridelm.params import InputError

_ADDED = (CONTROL, USER_DEFINED, UNKNOWN)
"""Types of tokens that are found in a text before anything else is."""
_KEEP_SPACES = ("<unk>", "<s>", "<|endoftext|>")
"""Phi-3's special tokens that do not take the spaces behind them."""


def tokenizer_from_gguf(path: Path, fields: dict[str, Any]) -> Tokenizer:
    """`fields` are the file's metadata by name."""
    found = read_fields(path, fields)
    match found.model:
        case "gpt2":
            pre = _known_pre(found)
            backend, adds_bos = _byte_level(found, pre), pre in WHOLE_WORDS
        case "llama":
            backend, adds_bos = _sentence_piece(found), True
        case other:
            raise InputError(
                f"{path}: tokenizers of kind {other!r} are not supported from GGUF (gpt2 and llama are): use the "
                "model's Hugging Face folder instead"
            )
    _add_tokens(backend, found)
    named = {name: found.tokens[index] for name, index in found.special.items()}
    backend.post_processor = _ends(
        named.get("bos") if found.flag("add_bos_token", default=adds_bos) else None,
        named.get("eos") if found.flag("add_eos_token", default=False) else None,
        backend,
    )
    eos = named.get("eos")
    names = {"bos": named.get("bos"), "eos": eos, "pad": named.get("padding", eos), "unk": named.get("unknown")}
    special_tokens = {f"{name}_token": token for name, token in names.items() if token is not None}
    _add(backend, special_tokens.values())
    return Tokenizer(backend, special_tokens=special_tokens, chat_template=chat_template(path, fields))


def _known_pre(found: VocabularyFields) -> str:
    pre, table = ALIASES.get(found.pre, found.pre), pre_tokenizers_by_name()
    if pre not in table:
        raise InputError(
            f"{found.path}: the pre-tokenizer {found.pre!r} is not known ({', '.join((*table, *ALIASES))} are), and "
            "guessing it would give wrong token ids: use the model's Hugging Face folder instead"
        )
    return pre


def _byte_level(found: VocabularyFields, pre: str) -> Backend:
    vocabulary = {token: index for index, token in enumerate(found.tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in found.strings("merges"))]
    try:
        model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in WHOLE_WORDS)
    except Exception as error:  # tokenizers has no type of its own for it
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{found.path}: its merges do not fit its vocabulary ({reason}): fetch the file again"
        ) from error
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers_by_name()[pre]
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(found: VocabularyFields) -> Backend:
    """Letters are merged to tokens by score; a letter that is no token becomes its bytes."""
    vocabulary = {token: index for index, token in enumerate(found.tokens)}
    missing = [name for byte in range(256) if (name := f"<0x{byte:02X}>") not in vocabulary]
    if missing:
        raise InputError(
            f"{found.path}: its vocabulary has no token {missing[0]}, and without tokens for all bytes it cannot write "
            "every text: use the model's Hugging Face folder instead"
        )
    # Tokens that are cut out of a text beforehand cannot come from merges, unless they are spelt with merges' spaces.
    # Tokens with plain spaces cannot either.
    typed_scores = zip(found.tokens, found.kinds, found.scores(), strict=True)
    scores = {
        token: score for token, kind, score in typed_scores if " " not in token and (kind not in _ADDED or "▁" in token)
    }
    try:
        merges = merges_by_score(scores)
    except NoOrder as error:
        raise InputError(f"{found.path}: {error}: use the model's Hugging Face folder instead") from error
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    decoding = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if found.flag("add_space_prefix", default=True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(decoding)
    return backend


def _add_tokens(backend: Backend, found: VocabularyFields) -> None:
    # As llama.cpp, which knows these models by their name only.
    is_phi3 = any(name in str(found.raw.get("general.name", "")).lower() for name in ("phi-3", "phi3"))
    backend.add_tokens(
        [
            AddedToken(
                token,
                special=kind != USER_DEFINED,
                normalized=False,
                rstrip=is_phi3 and token not in _KEEP_SPACES,
            )
            for token, kind in zip(found.tokens, found.kinds, strict=True)
            if kind in _ADDED
        ]
    )


def _add(backend: Backend, special: Iterable[str]) -> None:
    """Add what is not added yet, as transformers' tokenizers do."""
    known = {added.content for added in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([AddedToken(token, special=True) for token in dict.fromkeys(special) if token not in known])


def _ends(bos: str | None, eos: str | None, backend: Backend) -> processors.TemplateProcessing | None:
    """What is put around a text."""
    ends = [token for token in (bos, eos) if token is not None]
    if not ends:
        return None
    ids = {token: backend.token_to_id(token) for token in ends}
    template = " ".join(part for part in (bos, "$A", eos) if part is not None)
    return processors.TemplateProcessing(single=template, special_tokens=list(ids.items()))
