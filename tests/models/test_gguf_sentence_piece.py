"""SentencePiece vocabularies from GGUF files against the ids that llama.cpp itself gives."""

import hashlib
import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import PreTrainedTokenizerFast

from odd_texts import odd_texts
from stridelm.engine.detokenize import Detokenizer, TextStream
from stridelm.models.gguf_tokenizer import tokenizer_from_gguf
from stridelm.models.tokenizer import Tokenizer
from stridelm.params import InputError

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "llama_cpp_spm_ids.json").read_text())
FILE = Path("some.gguf")
NAMES = ["llama", "gemma"]
FILES = Path(os.environ.get("STRIDELM_TEST_FILES", "models"))
"""A folder with the files that ids were recorded of."""

Fields = dict[str, Any]


def fields_of(name: str, **changes: Any) -> Fields:
    recorded = RECORDED["synthetic"][name]
    lists = {field: recorded[field] for field in ("tokens", "scores", "token_type")}
    fields = {"model": "llama", "pre": "default", **lists, **recorded["settings"], **changes}
    return {f"tokenizer.ggml.{field}": value for field, value in fields.items() if value is not None}


def read(name: str, **changes: Any) -> Tokenizer:
    return tokenizer_from_gguf(FILE, fields_of(name, **changes))


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """As `models/gguf.py` makes it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        **tokenizer.special_tokens_map,
        clean_up_tokenization_spaces=False,
    )


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def digest(lists: Iterable[list[int]]) -> str:
    return hashlib.sha256(json.dumps(list(lists), separators=(",", ":")).encode()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_texts_have_the_ids_of_llama_cpp(name: str) -> None:
    recorded, tokenizer = RECORDED["synthetic"][name], read(name)
    wrong = [(text, ids) for text, ids in recorded["cases"] if plain_ids(tokenizer, text) != ids]
    assert wrong == []
    assert len(recorded["cases"]) == 88
    assert tokenizer.encode("banana") == recorded["whole"]


@pytest.mark.parametrize("name", NAMES)
def test_made_up_texts_have_the_ids_of_llama_cpp(name: str) -> None:
    tokenizer = read(name)
    assert RECORDED["made_up"] == 2000
    ids = (plain_ids(tokenizer, text) for text in odd_texts(RECORDED["made_up"]))
    assert digest(ids) == RECORDED["synthetic"][name]["made_up"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED["files"])
def test_real_vocabulary_has_the_ids_of_llama_cpp(name: str) -> None:
    file, recorded = FILES / name, RECORDED["files"][name]
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != recorded["sha256"]:
        pytest.skip(f"{name} is not in STRIDELM_TEST_FILES")
    fields = {field: entry.contents() for field, entry in gguf.GGUFReader(file).fields.items()}
    tokenizer = tokenizer_from_gguf(file, fields)
    texts = [text for text, _ in RECORDED["synthetic"]["llama"]["cases"]]
    assert digest(plain_ids(tokenizer, text) for text in texts) == recorded["texts"]
    assert digest(plain_ids(tokenizer, text) for text in odd_texts(RECORDED["made_up"])) == recorded["made_up"]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"add_space_prefix": False}, "llama"),
        ({"add_space_prefix": True}, "gemma"),
        ({"scores": [-score for score in RECORDED["synthetic"]["gemma"]["scores"]]}, "gemma"),
        ({"token_type": [1 if kind == 4 else kind for kind in RECORDED["synthetic"]["gemma"]["token_type"]]}, "gemma"),
    ],
)
def test_recorded_ids_tell_other_settings_apart(changes: Fields, name: str) -> None:
    tokenizer = read(name, **changes)
    assert any(plain_ids(tokenizer, text) != ids for text, ids in RECORDED["synthetic"][name]["cases"])


@pytest.mark.parametrize("name", NAMES)
def test_same_through_a_folder_and_transformers(name: str, tmp_path: Path) -> None:
    tokenizer = read(name)
    tokenizer.save(tmp_path)
    for other in (Tokenizer.from_folder(tmp_path), wrapped(tokenizer)):
        for text in (text for text, _ in RECORDED["synthetic"][name]["cases"]):
            ids = tokenizer.encode(text)
            assert other.encode(text) == ids
            for skip in (True, False):
                assert other.decode(ids, skip_special_tokens=skip) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", NAMES)
def test_text_comes_back_from_its_ids_at_once_and_streamed(name: str) -> None:
    tokenizer = read(name)
    for text in odd_texts(200, seed=2):
        if "▁" in text or "<" in text:  # read as a space; special tokens
            continue
        ids = plain_ids(tokenizer, text)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        for each in (tokenizer, wrapped(tokenizer)) if len(text) < 20 else (tokenizer,):
            assert streamed(each, ids) == text


def streamed(tokenizer: Any, ids: list[int]) -> str:
    stream = TextStream(Detokenizer(tokenizer))
    return "".join([*map(stream.push, ids), stream.flush()])


@pytest.mark.parametrize("name", NAMES)
def test_any_tokens_stream_the_text_that_they_have_together(name: str) -> None:
    tokenizer = read(name)
    draw = random.Random(3)
    for _ in range(300):
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randint(1, 20))]
        assert streamed(tokenizer, ids) == Detokenizer(tokenizer)(tuple(ids))


def test_incomplete_letter_leaves_the_text_before_it_alone() -> None:
    tokenizer = read("llama")
    ids = plain_ids(tokenizer, "日\n日")[:-1]  # cut off within a letter
    assert streamed(tokenizer, ids) == "日\n\N{REPLACEMENT CHARACTER}"
    stream = TextStream(Detokenizer(tokenizer))
    assert "".join(map(stream.push, ids)) == "日\n"


def test_special_tokens_have_the_formats_defaults() -> None:
    tokenizer = read("llama")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.special_tokens_map["unk_token"] == "<unk>"
    assert tokenizer.encode("a") == [1, *plain_ids(tokenizer, "a")]
    assert read("llama", add_bos_token=False).encode("a") == plain_ids(tokenizer, "a")
    assert read("llama", bos_token_id=2).bos_token == "</s>"


def test_special_tokens_of_phi_3_take_the_spaces_behind_them() -> None:
    """As in llama.cpp, which knows these models by their name."""
    plain, phi = (tokenizer_from_gguf(FILE, fields_of("llama") | more) for more in ({}, {"general.name": "Phi-3 Mini"}))
    assert plain_ids(phi, "<|end|> \n a") == plain_ids(phi, "<|end|>a") != plain_ids(plain, "<|end|> \n a")
    assert plain_ids(phi, "<s> a") == plain_ids(plain, "<s> a")


def test_tokens_of_the_unknown_type_are_special() -> None:
    """Also those that the file does not name."""
    tokens = RECORDED["synthetic"]["llama"]["tokens"]
    kinds = [
        2 if token == "qzj" else kind
        for token, kind in zip(tokens, RECORDED["synthetic"]["llama"]["token_type"], strict=True)
    ]
    ids = plain_ids(read("llama", token_type=kinds), "a qzj b")
    assert tokens.index("qzj") in ids
    assert tokens.index("qzj") not in plain_ids(read("llama"), "a qzj b")
    assert read("llama", token_type=kinds).decode(ids, skip_special_tokens=True) == "a   b"


TOKENS, SCORES = (RECORDED["synthetic"]["llama"][field] for field in ("tokens", "scores"))
DAMAGE = [
    ({"scores": None}, "scores is missing"),
    ({"scores": SCORES[:-1]}, "scores has"),
    ({"scores": [*SCORES[:-1], float("nan")]}, "scores holds a value that is not a number"),
    ({"scores": [*SCORES[:-1], "x"]}, "scores is not a list of numbers"),
    ({"tokens": [*TOKENS[:-1], "<s>"]}, "'<s>' is in the vocabulary twice"),
    ({"bos_token_id": len(TOKENS)}, "bos_token_id is"),
    ({"add_space_prefix": "no"}, "add_space_prefix is 'no'"),
    ({"tokens": [token.replace("<0x41>", "<0xzz>") for token in TOKENS]}, "no token <0x41>"),
    ({"scores": [-1000.0] * len(TOKENS)}, "have the same score"),
]


@pytest.mark.parametrize(("changes", "said"), DAMAGE)
def test_damaged_vocabulary_is_refused_in_one_line(changes: Fields, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        read("llama", **changes)
    message = str(refusal.value)
    assert message.startswith("some.gguf: ")
    assert said in message
    assert "fetch" in message or "use the model's Hugging Face folder" in message
    assert "\n" not in message
