"""Folders with made-up tokenizers: of several kinds, and described by their files in several ways."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from stridelm.models.tokenizer import Tokenizer as OwnTokenizer

Files = dict[str, Any]
TEXT = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?",
    "Größe, naïve, 中文, 日本語 🙂",
    "def f(x):\n    return x != 'don't'\n\n" * 3,
    "the the the then there these , . ! ? 's n't 've",
]
SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=SPECIAL)  # type: ignore[call-arg]
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As SentencePiece's are, with a token that begins texts."""
    letters = sorted({letter for text in TEXT[:1] for letter in text.replace(" ", "▁")})
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁t", "he", "▁the", "s.", "▁▁"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("s", "."), ("▁", "▁")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>"),  # type: ignore[call-arg]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL))  # type: ignore[call-arg]
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "unigram": unigram,
    "word piece": word_piece,
}


def _entry(content: str, **flags: bool) -> dict[str, Any]:
    off = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word", "special"), False)
    return {"content": content, **off, **flags}


def _typed(content: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", **_entry(content, **flags)}


_NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "clean_up_tokenization_spaces": True}
# What stands in the files beside tokenizer.json, for a tokenizer of any kind.
WAYS: dict[str, Files] = {
    "nothing": {},
    "named": {"tokenizer_config.json": _NAMED, "chat_template.jinja": CHAT},
    "no class, template inside": {"tokenizer_config.json": {**_NAMED, "tokenizer_class": None, "chat_template": CHAT}},
    "listed": {
        "tokenizer_config.json": {
            **_NAMED,
            "pad_token": "<|im_end|>",
            "added_tokens_decoder": {
                "0": _entry("<s>", special=True, rstrip=True),
                "1": _entry("</s>"),
                "2": _entry("<unk>", special=True),
                "900": _entry("<tool>", lstrip=True),
                "899": _entry("<think>", normalized=True, single_word=True),
            },
        },
        "special_tokens_map.json": {"bos_token": "ignored"},
    },
    "new special tokens": {
        "tokenizer_config.json": {
            **_NAMED,
            "pad_token": "<pad>",
            "mask_token": _typed("<mask>", lstrip=True),
            "image_token": "<image>",
            "audio_token": _typed("<audio>"),
            "additional_special_tokens": ["<one>", "<pad>", "<one>", "dog"],
        },
    },
    "a map of objects": {
        "tokenizer_config.json": {**_NAMED, "eos_token": "overruled", "image_token": "<image>"},
        "special_tokens_map.json": {
            "eos_token": _entry("<|im_end|>", rstrip=True),
            "pad_token": "<pad>",
            "image_token": "overruled",
            "video_token": "<video>",
            "additional_special_tokens": ["<two>", "<|im_start|>"],
        },
        "added_tokens.json": {"<late>": 700, "<pad>": 701},
    },
    "extra tokens with names": {
        "tokenizer_config.json": {**_NAMED, "extra_special_tokens": {"image_token": "<image>", "brush": "<brush>"}},
        "special_tokens_map.json": {"extra_special_tokens": ["<three>", {"content": "<four>", "lstrip": True}]},
    },
    "extra tokens twice": {
        "tokenizer_config.json": {**_NAMED, "extra_special_tokens": ["<three>"], "additional_special_tokens": ["<x>"]},
        "special_tokens_map.json": {
            "extra_special_tokens": ["<three>", "<four>"],
            "additional_special_tokens": ["<y>"],
        },
    },
    "special tokens are text": {"tokenizer_config.json": {**_NAMED, "split_special_tokens": True}},
    "old settings": {
        "tokenizer_config.json": {**_NAMED, "add_bos_token": True, "add_eos_token": True, "legacy": True, "max_len": 9}
    },
    "several templates": {
        "tokenizer_config.json": {
            **_NAMED,
            "chat_template": [
                {"name": "default", "template": CHAT},
                {"name": "tool_use", "template": "{{ tools | tojson }}" + CHAT},
            ],
        }
    },
    "templates in files": {
        "tokenizer_config.json": {**_NAMED, "chat_template": "overruled"},
        "chat_template.jinja": CHAT,
        "additional_chat_templates/tool_use.jinja": "{{ tools | tojson(indent=2) }}" + CHAT,
    },
    "no default template": {
        "tokenizer_config.json": _NAMED,
        "additional_chat_templates/rag.jinja": CHAT,
    },
}


def write_folder(folder: Path, tokenizer: Tokenizer, files: Files) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {"config.json": {"model_type": "llama"}, **files}
    if "tokenizer_config.json" in files:
        told = {"tokenizer_class": "PreTrainedTokenizerFast", **files["tokenizer_config.json"]}
        files["tokenizer_config.json"] = {name: value for name, value in told.items() if value is not None}
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def padded(tokenizer: Tokenizer) -> Tokenizer:
    """With settings that a training has left in the file, and a token that is only in tokenizer.json."""
    tokenizer.enable_padding(pad_id=4, pad_token="<|im_end|>", length=20)
    tokenizer.enable_truncation(3)
    tokenizer.add_tokens([AddedToken("lazy dog", special=False), AddedToken("<only>", special=True)])
    return tokenizer


def pair(folder: Path) -> tuple[OwnTokenizer, Any]:
    """Ours and transformers' own."""
    return OwnTokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)


def made_pair(folder: Path, tokenizer: Tokenizer, way: str) -> tuple[OwnTokenizer, Any]:
    return pair(write_folder(folder, tokenizer, WAYS[way]))
