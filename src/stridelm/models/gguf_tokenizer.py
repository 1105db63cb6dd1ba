"""A tokenizer from a GGUF file's own vocabulary, merges and pre-tokenizer.

transformers' conversion ignores `tokenizer.ggml.pre`, so digits and line breaks get other ids than the model was
trained with. Each entry here was compared with llama.cpp's ids (tests/data/llama_cpp_ids.json).
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from stridelm.models.tokenizer import Tokenizer
from stridelm.params import InputError

_CONTROL, _USER_DEFINED = 3, 4
# Contractions are spelt out: `(?i:...)` would also match letters that llama.cpp does not fold, such as the long s.
CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def pre_tokenizers_by_name() -> dict[str, pre_tokenizers.PreTokenizer]:
    """llama.cpp's pre-tokenizers that are supported here."""
    return {
        "smollm": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "qwen2": _split(_WORDS.replace("NUMBER", r"\p{N}")),
        "llama-bpe": _split(_WORDS.replace("NUMBER", r"\p{N}{1,3}")),
    }


def _pre_tokenizer(path: Path, name: str) -> pre_tokenizers.PreTokenizer:
    table = pre_tokenizers_by_name()
    if name not in table:
        raise InputError(
            f"{path}: the pre-tokenizer {name!r} is not known ({', '.join(table)} are), and guessing it would give "
            "wrong token ids: use the model's Hugging Face folder instead"
        )
    return table[name]


def _bpe(path: Path, tokens: list[str], merges: list[str], *, ignore_merges: bool) -> models.BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise InputError(f"{path}: the token {twice!r} is in the vocabulary twice: fetch the file again")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        return models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=ignore_merges)
    except Exception as error:  # tokenizers has no type of its own for it
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: its merges do not fit its vocabulary ({reason}): fetch the file again") from error


def tokenizer_from_gguf(path: Path, fields: dict[str, Any]) -> Tokenizer:
    """`fields` are the file's metadata by name."""
    kind = fields["tokenizer.ggml.model"]
    if kind != "gpt2":
        raise InputError(
            f"{path}: tokenizers of kind {kind!r} are not supported from GGUF (gpt2 is): use the model's Hugging Face "
            "folder instead"
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    pre = fields.get("tokenizer.ggml.pre", "")
    backend = Backend(_bpe(path, tokens, fields["tokenizer.ggml.merges"], ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = _pre_tokenizer(path, pre)
    backend.decoder = decoders.ByteLevel()
    for token, token_kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True):
        if token_kind in (_CONTROL, _USER_DEFINED):
            backend.add_tokens([AddedToken(token, special=token_kind == _CONTROL, normalized=False)])

    def special(name: str) -> str | None:
        index = fields.get(f"tokenizer.ggml.{name}_token_id")
        return None if index is None else tokens[index]

    eos = special("eos")
    bos = special("bos")
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, fields["tokenizer.ggml.bos_token_id"])]
        )
    named = {"bos": bos, "eos": eos, "pad": special("padding") or eos, "unk": special("unknown")}
    special_tokens = {f"{name}_token": token for name, token in named.items() if token is not None}
    for token in dict.fromkeys(special_tokens.values()):
        if token not in {added.content for added in backend.get_added_tokens_decoder().values()}:
            backend.add_tokens([AddedToken(token, special=True)])  # as transformers' tokenizers do
    return Tokenizer(backend, special_tokens=special_tokens, chat_template=fields.get("tokenizer.chat_template"))
