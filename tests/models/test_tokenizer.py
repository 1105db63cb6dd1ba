"""The tokenizer without transformers is held against transformers' own, from the same folder."""

import copy
import random
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.auto import tokenization_auto

from stridelm.models.builtin import builtin_folder, ensure_builtin
from stridelm.models.tokenizer import Tokenizer
from stridelm.models.tokenizer_files import OVERRIDING_FAMILIES, UNNAMED_FAMILIES
from stridelm.params import InputError
from tokenizer_folders import CHAT, KINDS, WAYS, made_pair, padded, pair, write_folder

Pair = tuple[Tokenizer, Any]
"""Ours and transformers' own."""
PIECES = [
    *("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<tool>", "<think>", "<pad>", "<image>", "<mask>", "<one>"),
    *(" ", "  ", "\n", "\t", " <s> ", "12345", "²½", "the", " the dog", "lazy dog", "It's", "é", "e\u0301", "🙂", "中"),
    *("\u200d", "\x00", "\ufeff", "▁", "<0x41>", " .", " n't", "\u017f", "İ", "\r\n"),
]
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=12).map("".join)


@cache
def builtin() -> Pair:
    return pair(ensure_builtin())


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pair]:
    """A made-up tokenizer by its kind and the way that files describe it."""

    @cache
    def get(kind: str, way: str) -> Pair:
        folder = tmp_path_factory.mktemp("tokenizer")
        if way == "padded":
            return made_pair(folder, padded(KINDS[kind]()), "nothing")
        return made_pair(folder, KINDS[kind](), way)

    return get


CASES = [(kind, way) for kind in KINDS for way in (*WAYS, "padded")]


def check_same(ours: Tokenizer, other: Any) -> None:
    assert ours.get_vocab() == other.get_vocab()
    assert (len(ours), ours.vocab_size) == (len(other), other.vocab_size)
    assert {index: repr(token) for index, token in ours.added_tokens_decoder.items()} == {
        index: repr(token) for index, token in other.added_tokens_decoder.items()
    }
    assert ours.get_added_vocab() == other.get_added_vocab()
    assert (ours.bos_token, ours.eos_token) == (other.bos_token, other.eos_token)
    assert (ours.bos_token_id, ours.eos_token_id) == (other.bos_token_id, other.eos_token_id)
    assert ours.special_tokens_map == other.special_tokens_map
    assert ours.chat_template == other.chat_template


def check_decodes_alike(ours: Tokenizer, other: Any, singles: int = 60_000) -> None:
    size = len(ours) + 3  # some that there are not
    assert ours.convert_ids_to_tokens(range(size)) == other.convert_ids_to_tokens(range(size))
    assert [ours.convert_ids_to_tokens(token) for token in range(0, size, 7)] == [
        other.convert_ids_to_tokens(token) for token in range(0, size, 7)
    ]
    draw = random.Random(0)
    special = list(ours.added_tokens_decoder) or [0]
    lists = [[token] for token in range(min(size, singles))] + [
        [draw.choice(special) if draw.random() < 0.2 else draw.randrange(size) for _ in range(draw.randrange(20))]
        for _ in range(300)
    ]
    for skips in (False, True):
        assert [ours.decode(ids, skip_special_tokens=skips) for ids in lists] == [
            other.decode(ids, skip_special_tokens=skips) for ids in lists
        ]


def check_encodes_alike(ours: Tokenizer, other: Any, text: str) -> None:
    for adds in (True, False):
        ids = ours.encode(text, add_special_tokens=adds)
        assert ids == other.encode(text, add_special_tokens=adds)
        assert ours.decode(ids) == other.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == other.decode(ids, skip_special_tokens=True)
    assert ours.encode(text) == other.encode(text)


def test_builtin() -> None:
    check_same(*builtin())
    check_decodes_alike(*builtin())


@settings(max_examples=300)
@given(text=texts)
def test_builtin_encodes_alike(text: str) -> None:
    check_encodes_alike(*builtin(), text)


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_made_up(kind: str, way: str, made: Callable[[str, str], Pair]) -> None:
    ours, other = made(kind, way)
    check_same(ours, other)
    check_decodes_alike(ours, other)
    for text in ("", " ", *PIECES, "".join(PIECES), " ".join(PIECES)):
        check_encodes_alike(ours, other, text)


@settings(max_examples=300)
@given(text=texts, case=st.sampled_from(CASES))
def test_made_up_encodes_alike(text: str, case: tuple[str, str], made: Callable[[str, str], Pair]) -> None:
    check_encodes_alike(*made(*case), text)


def test_text_that_is_no_unicode() -> None:
    for tokenizer in builtin():
        with pytest.raises((UnicodeEncodeError, TypeError)):
            tokenizer.encode("\ud800")


USER = {"role": "user", "content": " What is it? <|im_end|>"}
ASSISTANT = {"role": "assistant", "content": "It is  "}
TOOLS = [{"type": "function", "function": {"name": "größe", "description": "<&'>", "parameters": {"type": "object"}}}]
TEMPLATES = {
    "turns": CHAT,
    "trimmed": "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}</s>\n{% endfor %}",
    "tools": "{% if tools %}{{ tools | tojson(indent=4) }}|{{ tools | tojson }}{% endif %}" + CHAT,
    "tools are defined": "{{ tools is defined }} {{ tools is none }} {{ documents is none }} {{ x is defined }}" + CHAT,
    "refuses": "{% if messages[0].role != 'system' %}{{ raise_exception('No ' + messages[0].role) }}{% endif %}",
    "loop controls": (
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}"
    ),
    "blocks on lines": "{% for m in messages %}\n    {% if 1 %}\n  {{ m.content }}\n    {% endif %}\n{%- endfor %}\n",
    "generation": (
        "{% set n = 1 %}{% for m in messages %}{% generation %}{% set n = 2 %}<{{ m['content'] }}{{ n }}>"
        "{% endgeneration %}{{ n }}{% endfor %}"
    ),
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ pad_token }}{{ messages[-1]['content'] }}",
    "the year": "{{ strftime_now('%Y') }}{{ messages[-1]['content'] }}",
    "changes messages": "{% set _ = messages.append(1) %}",
    "hidden attributes": "{{ messages.__class__.__mro__ }}",
    "no content": "{{ messages | length }}",
    "content left out": "{% if false %}content{% endif %}{{ messages | length }}",
    "cut content": "{{ messages[-1]['content'][3:] }}",
    "unknown filter": "{{ messages | unknown }}",
    "broken": "{% for m in messages %}",
    "missing key": "{{ messages[0]['nothing'].more }}",
    "division": "{{ 1 / 0 }}",
}
FLAGS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"continue_final_message": True},
    {"continue_final_message": True, "add_generation_prompt": True},
]


def outcome(tokenizer: Any, chat: list[dict[str, Any]], **flags: Any) -> Any:
    """What comes of it: what is returned, or what is raised. The words of a ValueError are each side's own."""
    try:
        return tokenizer.apply_chat_template(copy.deepcopy(chat), **flags)
    except ValueError:
        return ValueError
    except Exception as error:
        return type(error), str(error)


def check_templates_alike(ours: Tokenizer, other: Any, chat: list[dict[str, Any]]) -> None:
    for flags, tools, rest in product(FLAGS, (None, [], TOOLS), ({"tokenize": False}, {"return_dict": False})):
        outcomes = [outcome(tokenizer, chat, tools=tools, **flags, **rest) for tokenizer in (ours, other)]
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(name: str, made: Callable[[str, str], Pair]) -> None:
    for way in ("new special tokens", "listed"):
        ours, other = made("byte level", way)
        ours.chat_template = other.chat_template = TEMPLATES[name]
        for chat in ([USER], [USER, ASSISTANT], [USER, {"role": "assistant", "content": None}], []):
            check_templates_alike(ours, other, chat)
        ours.chat_template = other.chat_template = None


@pytest.mark.parametrize("way", ["nothing", "named", "several templates", "templates in files", "no default template"])
def test_where_templates_come_from(way: str, made: Callable[[str, str], Pair]) -> None:
    ours, other = made("byte fallback", way)
    assert ours.chat_template == other.chat_template
    check_templates_alike(ours, other, [USER, ASSISTANT])


def test_builtin_template() -> None:
    for chat in ([USER], [{"role": "system", "content": "Be brief."}, USER, ASSISTANT]):
        check_templates_alike(*builtin(), chat)


@given(content=texts)
def test_a_continued_message(content: str) -> None:
    check_templates_alike(*builtin(), [USER, {"role": "assistant", "content": content}])


def test_what_a_template_raises_is_its_own() -> None:
    ours, _ = builtin()
    tokenizer = Tokenizer(
        ours.backend_tokenizer, special_tokens={}, chat_template="{{ raise_exception('only users may speak') }}"
    )
    with pytest.raises(jinja2.TemplateError, match="only users may speak"):
        tokenizer.apply_chat_template([USER])


def test_folder_without_a_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"SentencePiece")
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": {}}'),
        ("tokenizer.json", "\0"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"tokenizer_class": "TokenizersBackend", "bos_token": 5}'),
        ("tokenizer_config.json", '{"tokenizer_class": "TokenizersBackend", "bos_token": {"content": "<s>"}}'),
        ("tokenizer_config.json", '{"tokenizer_class": "TokenizersBackend", "added_tokens_decoder": {"x": {}}}'),
        ("tokenizer_config.json", '{"tokenizer_class": "TokenizersBackend", "added_tokens_decoder": [1]}'),
        ("tokenizer_config.json", '{"tokenizer_class": "TokenizersBackend", "extra_special_tokens": [{"a": 1}]}'),
        ("special_tokens_map.json", "nothing"),
        ("added_tokens.json", "[" * 100_000),
        ("config.json", "{,}"),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_damaged_files(name: str, content: str | bytes, tmp_path: Path) -> None:
    write_folder(tmp_path, KINDS["byte level"](), {})
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as refusal:
        Tokenizer.from_folder(tmp_path)
    assert str(tmp_path) in str(refusal.value)
    if name != "chat_template.jinja":
        assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {"tokenizer_class": "LlamaTokenizer"}),
        ("llama", {"tokenizer_class": "GPT2TokenizerFast"}),
        ("qwen3", {"tokenizer_class": "Qwen2Tokenizer"}),
        ("qwen2", {}),
        ("gemma3_text", {"tokenizer_class": None}),
        ("llama", {"auto_map": {"AutoTokenizer": [None, "code.Tokenizer"]}}),
        ("mistral", {"fix_mistral_regex": True}),
    ],
)
def test_tokenizers_that_only_transformers_reads(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    files = {"config.json": {"model_type": family}, "tokenizer_config.json": config}
    folder = write_folder(tmp_path, KINDS["byte level"](), files)
    with pytest.raises(InputError, match="transformers is needed"):
        Tokenizer.from_folder(folder)


def test_families_are_those_of_transformers() -> None:
    """A later version may read others with classes of their own."""
    classes = tokenization_auto.TOKENIZER_MAPPING_NAMES
    generic = {None, "TokenizersBackend"}
    overruled = tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert {family for family in overruled if classes.get(family) not in generic} == OVERRIDING_FAMILIES
    assert {classes.get(family) for family in UNNAMED_FAMILIES} <= generic


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = f"""
import sys
from pathlib import Path
import stridelm.engine.detokenize, stridelm.models.encode
from stridelm.models.tokenizer import Tokenizer
tokenizer = Tokenizer.from_folder(Path({str(builtin_folder())!r}))
assert "jinja2" not in sys.modules
ids = tokenizer.apply_chat_template([{{"role": "user", "content": "Hi"}}], add_generation_prompt=True)
assert tokenizer.decode(ids, skip_special_tokens=True)
print(sorted({{"torch", "transformers", "numpy"}} & sys.modules.keys()))
"""
    ensure_builtin()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_long_text_is_cut_like_a_short_one() -> None:
    ours, theirs = builtin()
    text = "Zwölf Boxkämpfer <|im_end|>, jagen Viktor. " * 300
    assert ours.encode(text) == theirs.encode(text)
