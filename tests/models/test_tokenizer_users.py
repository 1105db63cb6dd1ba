"""Who asks a tokenizer gets the same of ours as of transformers' own: streams of text, single tokens, grammars."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer

from stridelm.engine.detokenize import Detokenizer, TextStream
from stridelm.models.encode import encode_prompt
from stridelm.models.tokenizer import Tokenizer
from stridelm.params import InputError
from stridelm.serve.grammars.matcher import Vocabulary as GrammarVocabulary
from stridelm.serve.grammars.vocabulary import Vocabulary
from tokenizer_folders import CHAT, KINDS, made_pair, padded

Made = Callable[[str], tuple[Tokenizer, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    pairs: dict[str, tuple[Tokenizer, Any]] = {}

    def get(kind: str) -> tuple[Tokenizer, Any]:
        if kind not in pairs:
            pairs[kind] = made_pair(tmp_path_factory.mktemp("users"), padded(KINDS[kind]()), "listed")
        return pairs[kind]

    return get


def target(tokenizer: Any) -> Any:
    """As much of a checkpoint as is asked for here."""
    vocabulary = len(tokenizer) + 5
    eos_ids = frozenset([tokenizer.eos_token_id, vocabulary - 1])
    return SimpleNamespace(
        name="made-up", tokenizer=tokenizer, eos_ids=eos_ids, vocabulary=vocabulary, context_length=99
    )


@pytest.mark.parametrize("kind", KINDS)
def test_streams(kind: str, made: Made) -> None:
    draw = random.Random(1)
    for _ in range(50):
        ids = [draw.randrange(len(made(kind)[0])) for _ in range(30)]
        written: list[list[str]] = []
        for tokenizer in made(kind):
            stream = TextStream(Detokenizer(tokenizer), ("the",))
            written.append([*(stream.push(token) for token in ids), stream.flush()])
        assert written[0] == written[1]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_by_themselves(kind: str, made: Made) -> None:
    ours, other = (Vocabulary(tokenizer) for tokenizer in made(kind))
    assert ours.special == other.special
    for token in range(len(made(kind)[0]) + 2):
        assert (ours.text(token), ours.bytes(token)) == (other.text(token), other.bytes(token))


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_grammars(kind: str, made: Made) -> None:
    ours, other = (GrammarVocabulary.of(target(tokenizer)) for tokenizer in made(kind))
    assert (ours.text_M.tolist(), ours.eos_M.tolist()) == (other.text_M.tolist(), other.eos_M.tolist())
    size = target(made(kind)[0]).vocabulary
    own = from_tokenizer(made(kind)[1], n_vocab=size, eos_token=sorted(ours.eos_ids)[:1])
    for vocabulary in (ours, other):
        tokenizer = vocabulary.tokenizer
        assert (tokenizer.vocab_size, tokenizer.eos_tokens) == (own.vocab_size, own.eos_tokens)
        assert [tokenizer.decode_bytes([token]) for token in range(size)] == [
            own.decode_bytes([token]) for token in range(size)
        ]
        for pattern in (r"[a-z ]+\.?", r"[0-9]{3} (the|dog)"):
            grammar = LLMatcher.grammar_from_regex(pattern)
            masks = [LLMatcher(each, grammar).compute_bitmask() for each in (tokenizer, own)]
            assert masks[0] == masks[1]


def test_grammars_need_a_tokenizer_that_can_be_described() -> None:
    class Slow:
        added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012
        eos_token_id = 0

        def __len__(self) -> int:
            return 3

    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        GrammarVocabulary.of(target(Slow()))


@pytest.mark.parametrize("kind", KINDS)
def test_prompts(kind: str, made: Made) -> None:
    ours, other = made(kind)
    for template in (None, CHAT):
        ours.chat_template = other.chat_template = template
        for prompt, raw in (("The dog", True), ("The dog", False)):
            assert encode_prompt(target(ours), prompt, raw=raw) == encode_prompt(target(other), prompt, raw=raw)
    chat = [{"role": "user", "content": "the the"}]
    assert encode_prompt(target(ours), chat) == encode_prompt(target(other), chat)
    ours.chat_template = other.chat_template = None
    for tokenizer in (ours, other):
        with pytest.raises(InputError, match="made-up has no chat template"):
            encode_prompt(target(tokenizer), chat)
