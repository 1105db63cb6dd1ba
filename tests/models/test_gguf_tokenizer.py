"""Tokenizers from GGUF metadata against the ids that llama.cpp itself gives."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from stridelm.models.builtin import ensure_builtin
from stridelm.models.gguf_tokenizer import tokenizer_from_gguf
from stridelm.models.vocabulary.pre_tokenizers import ALIASES, pre_tokenizers_by_name
from stridelm.params import InputError

DATA = Path(__file__).parent.parent / "data"
FILE = Path("some.gguf")
SMOLLM2 = json.loads((DATA / "llama_cpp_ids.json").read_text())
SYNTHETIC = json.loads((DATA / "llama_cpp_synthetic_ids.json").read_text())
PRE_NAMES = list(SYNTHETIC["cases"])
SAME_WORDS = {"smollm", "command-r"}
"""Two names for one behaviour."""
NO_TOKEN_FOR = "\x04\x06\x1d"
"""Bytes without a token in SmolLM2's vocabulary: llama.cpp drops them after merging, so that they still keep their
neighbours apart; tokenizers drops them before. No text that people write has them."""

Fields = dict[str, Any]
Case = dict[str, Any]


def synthetic_fields(pre: str = "gpt-2", **changes: Any) -> Fields:
    """The metadata of a file with the small vocabulary that shows every boundary."""
    return {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": SYNTHETIC["tokens"],
        "tokenizer.ggml.token_type": SYNTHETIC["token_type"],
        "tokenizer.ggml.merges": SYNTHETIC["merges"],
        "tokenizer.ggml.eos_token_id": SYNTHETIC["tokens"].index("<eos>"),
        **{f"tokenizer.{name}": value for name, value in changes.items()},
    }


def with_ggml(**changes: Any) -> Fields:
    return synthetic_fields() | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


@pytest.fixture(scope="module")
def shipped() -> PreTrainedTokenizerFast:
    """The built-in model's tokenizer as a user gets it: converted from the GGUF file, saved, loaded."""
    return AutoTokenizer.from_pretrained(ensure_builtin())


@pytest.fixture(scope="module")
def smollm2_fields() -> Fields:
    """The vocabulary of the built-in model as its GGUF file has it."""
    stored = json.loads((ensure_builtin() / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = stored["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    control = {added["content"] for added in stored["added_tokens"]}
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in control else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in stored["model"]["merges"]],
    }


def mismatches(tokenizer: Tokenizer, cases: list[Case]) -> list[tuple[Case, list[int]]]:
    """The cases that come out with other ids than llama.cpp's, with what came out."""
    literal = copy.deepcopy(tokenizer)
    literal.encode_special_tokens = True  # llama.cpp's parse_special=False: control tokens are read as text
    found = []
    for case in cases:
        ids = (tokenizer if case["parse_special"] else literal).encode(case["text"], add_special_tokens=False).ids
        if ids != case["ids"]:
            found.append((case, ids))
    return found


def comparable(cases: list[Case]) -> list[Case]:
    return [case for case in cases if not set(NO_TOKEN_FOR) <= set(case["text"])]


def test_shipped_tokenizer_gives_the_ids_of_llama_cpp(shipped: PreTrainedTokenizerFast) -> None:
    cases = comparable(SMOLLM2["cases"]["smollm"])
    assert len(cases) == len(SMOLLM2["cases"]["smollm"]) - 1 > 80
    assert mismatches(shipped.backend_tokenizer, cases) == []


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe"])
def test_smollm2_vocabulary_gives_the_ids_of_llama_cpp(pre: str, smollm2_fields: Fields) -> None:
    tokenizer = tokenizer_from_gguf(FILE, smollm2_fields | {"tokenizer.ggml.pre": pre})
    assert mismatches(tokenizer.backend_tokenizer, comparable(SMOLLM2["cases"][pre])) == []


@pytest.mark.parametrize("pre", PRE_NAMES)
def test_synthetic_vocabulary_gives_the_ids_of_llama_cpp(pre: str) -> None:
    tokenizer = tokenizer_from_gguf(FILE, synthetic_fields(pre))
    assert mismatches(tokenizer.backend_tokenizer, SYNTHETIC["cases"][pre]) == []


def test_every_pre_tokenizer_was_compared() -> None:
    assert set(PRE_NAMES) == set(pre_tokenizers_by_name())
    assert sum(map(len, SYNTHETIC["cases"].values())) == 10 * 101


@pytest.mark.parametrize("alias", ALIASES)
def test_other_names_mean_the_same(alias: str) -> None:
    """The recorder compares them in llama.cpp."""
    tokenizer = tokenizer_from_gguf(FILE, synthetic_fields(alias))
    assert mismatches(tokenizer.backend_tokenizer, SYNTHETIC["cases"][ALIASES[alias]]) == []


@pytest.mark.parametrize("pre", PRE_NAMES)
@pytest.mark.parametrize("other", PRE_NAMES)
def test_synthetic_vocabulary_tells_pre_tokenizers_apart(pre: str, other: str) -> None:
    tokenizer = tokenizer_from_gguf(FILE, synthetic_fields(other))
    same = pre == other or {pre, other} == SAME_WORDS
    assert (mismatches(tokenizer.backend_tokenizer, SYNTHETIC["cases"][pre]) == []) == same


@pytest.mark.parametrize("pre", PRE_NAMES)
def test_synthetic_vocabulary_shows_ignored_merges(pre: str) -> None:
    tokenizer = tokenizer_from_gguf(FILE, synthetic_fields(pre)).backend_tokenizer
    tokenizer.model.ignore_merges = not tokenizer.model.ignore_merges
    assert mismatches(tokenizer, SYNTHETIC["cases"][pre])


def test_digits_after_line_breaks_in_the_shipped_tokenizer(shipped: PreTrainedTokenizerFast) -> None:
    """transformers' own conversion of the file takes the two line breaks apart."""
    (recorded,) = (case["ids"] for case in SMOLLM2["cases"]["smollm"] if case["text"] == "\n\n1.")
    assert shipped.encode("\n\n1.") == recorded == [1116, 33, 30]
    assert [shipped.decode([token]) for token in recorded] == ["\n\n", "1", "."]


@pytest.mark.parametrize("pre", ["default", "jais-2", ""])
def test_unknown_pre_tokenizer_is_refused(pre: str) -> None:
    with pytest.raises(InputError) as refusal:
        tokenizer_from_gguf(FILE, synthetic_fields(pre))
    message = str(refusal.value)
    assert message.startswith("some.gguf: ")
    assert repr(pre) in message
    assert all(known in message for known in PRE_NAMES)
    assert "Hugging Face folder" in message


def test_file_without_a_pre_tokenizer_is_refused() -> None:
    fields = synthetic_fields()
    del fields["tokenizer.ggml.pre"]
    with pytest.raises(InputError, match=r"some\.gguf: the pre-tokenizer '' is not known"):
        tokenizer_from_gguf(FILE, fields)


@pytest.mark.parametrize("kind", ["gemma4", "bert", "t5"])
def test_other_kinds_of_tokenizer_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match=rf"some\.gguf: tokenizers of kind '{kind}' .*gpt2 and llama.*Hugging Face"):
        tokenizer_from_gguf(FILE, with_ggml(model=kind))


@pytest.mark.parametrize("merge", ["nosuch token", "a nosuchtoken", "a"])
def test_merges_that_do_not_fit_the_vocabulary_are_refused(merge: str) -> None:
    with pytest.raises(InputError, match=r"some\.gguf: .*fetch"):
        tokenizer_from_gguf(FILE, with_ggml(merges=[*SYNTHETIC["merges"], merge]))


def test_repeated_token_is_refused() -> None:
    tokens = [*SYNTHETIC["tokens"][:-1], SYNTHETIC["tokens"][0]]
    with pytest.raises(InputError, match=r"some\.gguf: .*'<eos>'.*fetch"):
        tokenizer_from_gguf(FILE, with_ggml(tokens=tokens))


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"bos_token_id": 1, "add_bos_token": True}, [1]),
        ({"bos_token_id": 1, "add_bos_token": False}, []),
        ({"bos_token_id": 1}, []),
        ({"add_bos_token": True}, []),
    ],
)
def test_beginning_of_text_is_added_where_the_file_says_so(changes: Fields, first: list[int]) -> None:
    tokenizer = tokenizer_from_gguf(FILE, with_ggml(**changes))
    plain = tokenizer.encode("it's 12345", add_special_tokens=False)
    assert tokenizer.encode("it's 12345") == first + plain
    assert tokenizer.decode(first + plain) == "".join(SYNTHETIC["tokens"][token] for token in first) + "it's 12345"


@pytest.mark.parametrize("pre", PRE_NAMES)
def test_files_that_do_not_say_begin_texts_as_in_llama_cpp(pre: str) -> None:
    tokenizer = tokenizer_from_gguf(FILE, synthetic_fields(pre) | {"tokenizer.ggml.bos_token_id": 1})
    assert (tokenizer.encode("a")[0] == 1) == (pre in ("llama-bpe", "tekken"))


def test_end_of_text_is_added_where_the_file_says_so() -> None:
    tokenizer = tokenizer_from_gguf(FILE, with_ggml(bos_token_id=1, add_bos_token=True, add_eos_token=True))
    plain = tokenizer.encode("12", add_special_tokens=False)
    assert tokenizer.encode("12") == [1, *plain, 0]


DAMAGE = [
    ({"tokens": None}, "tokens is missing"),
    ({"tokens": ["a", 1]}, "tokens is not a list of text"),
    ({"token_type": None}, "token_type is missing"),
    ({"token_type": [1, 1]}, "token_type has 2 items for"),
    ({"token_type": [*SYNTHETIC["token_type"][:-1], 9]}, "has the type 9, which does not exist"),
    ({"token_type": [*SYNTHETIC["token_type"][:-1], 0]}, "has the type 0, which does not exist"),
    ({"token_type": [*SYNTHETIC["token_type"][:-1], "x"]}, "token_type is not a list of whole numbers"),
    ({"merges": None}, "merges is missing"),
    ({"merges": [1]}, "merges is not a list of text"),
    ({"bos_token_id": 10**6}, "bos_token_id is 1000000, but there are"),
    ({"eos_token_id": -1}, "eos_token_id is -1"),
    ({"eot_token_id": 10**6}, "eot_token_id is 1000000"),
    ({"unknown_token_id": "x"}, "unknown_token_id is x"),
    ({"add_bos_token": 3}, "add_bos_token is 3, not true or false"),
    ({"pre": 7}, "pre is not text"),
    ({"model": None}, "model is missing"),
]


@pytest.mark.parametrize(("changes", "said"), DAMAGE)
def test_damaged_vocabulary_is_refused_in_one_line(changes: Fields, said: str) -> None:
    fields = {name: value for name, value in with_ggml(**changes).items() if value is not None}
    with pytest.raises(InputError) as refusal:
        tokenizer_from_gguf(FILE, fields)
    message = str(refusal.value)
    assert message.startswith("some.gguf: ")
    assert said in message
    assert "fetch the file again" in message
    assert "\n" not in message


def test_chat_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"tokenizer\.chat_template is not text"):
        tokenizer_from_gguf(FILE, synthetic_fields(chat_template=3))


def test_special_tokens_come_from_the_file() -> None:
    tokenizer = tokenizer_from_gguf(FILE, with_ggml(bos_token_id=1, padding_token_id=2))
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<eos>", 0)
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<tool>", 1)
    assert tokenizer.special_tokens_map["pad_token"] == SYNTHETIC["tokens"][2]
    # For want of one, the end of text.
    assert tokenizer_from_gguf(FILE, synthetic_fields()).special_tokens_map["pad_token"] == "<eos>"


def test_chat_template_is_carried_over() -> None:
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    tokenizer = tokenizer_from_gguf(FILE, synthetic_fields(chat_template=template))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "12"}], tokenize=False) == "<user>12"
    assert tokenizer_from_gguf(FILE, synthetic_fields()).chat_template is None


def test_shipped_chat_template_marks_turns(shipped: PreTrainedTokenizerFast) -> None:
    text = shipped.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


ROUND_TRIPS = [
    "",
    "Hello , world ! It 's 12345 .",
    "  two  spaces \n\n\tand a tab\r\n",
    "Größe, naïve, 中文, 日本語, مرحبا",
    "🙂👋🏽 x² ½ é",
    "def f(x):\n    return x != 'don't'\n",
]


@pytest.mark.parametrize("text", ROUND_TRIPS)
def test_decoding_gives_the_text_back(text: str, shipped: PreTrainedTokenizerFast) -> None:
    assert shipped.decode(shipped.encode(text)) == text
    for pre in PRE_NAMES:
        tokenizer = tokenizer_from_gguf(FILE, synthetic_fields(pre))
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
