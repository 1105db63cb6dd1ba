"""Answers under a grammar: every decoder against the naive reference, token for token; JSON always parses."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assembly import assembled, with_random_heads
from exactness import (
    DECODERS,
    EXACT,
    PREDICTIONS,
    READERS,
    SETTINGS,
    answers,
    assert_same,
    policy_for,
    with_length,
)
from grammars import BYTES, EOS_ID, GRAMMARS, PERSON, bytes_of, compiled, is_person, naive
from reference import reference
from stepping import step_of
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.gated import TorchGate
from stridelm.contracts import Grammar
from stridelm.decode.speculative import Speculative
from stridelm.params import InputError, SamplingParams
from stridelm.settings import DECODERS as ALL_DECODERS
from stridelm.settings import DecodeSettings, LoadSettings
from stridelm.types import Sequence
from tiny import plain_network

PROMPTS = ("abcabcabcabd abcabc", 'Like {"a": "bc", "b": true} or {"a": "x"}: yes, yes, no, abracadabra, 12-12-', "x")
QUICK = {(name, "all") for name in GRAMMARS} | {("schema", setting) for setting in ("greedy", "hot", "top_p")}
SEEDS = (8, pytest.param(100, marks=pytest.mark.slow))


@pytest.fixture
def language_model(language_model: LanguageModel) -> LanguageModel:
    """With random heads, too."""
    model = language_model
    return with_random_heads(model)


def run(model: LanguageModel, sequences: list[Sequence]) -> None:
    for sequence in sequences:
        model.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        step_of(model.engine)


def make(model: LanguageModel, decoder: str, params: SamplingParams, grammar: Grammar | None, text: str) -> Sequence:
    sequence = model.sequence(model.encode(text, raw=True), params, model.check(decoder))
    sequence.grammar = grammar
    return sequence


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param(name, setting, marks=() if (name, setting) in QUICK else pytest.mark.slow)
        for name in GRAMMARS
        for setting in SETTINGS
        if setting != "bias"
    ],
)
def test_decoders_write_what_the_reference_does(
    name: str, setting: str, language_model: LanguageModel, tiny_folder: Callable[..., Path]
) -> None:
    model, params = language_model, with_length(SETTINGS[setting], 24)
    oracle, allowed = plain_network(str(tiny_folder("llama"))), naive(GRAMMARS[name].pattern)
    start = compiled(model, GRAMMARS[name].source)
    prompts = [model.encode(text, raw=True) for text in PROMPTS]
    expected = [reference(oracle, ids, params, model.target.eos_ids, allowed=allowed) for ids in prompts]
    for decoder in DECODERS:
        policy = policy_for(decoder, model, prompts, expected)
        batched = answers(model, policy, prompts, params, start=start)
        (alone,) = answers(model, policy, prompts[1:2], params, start=start)
        for index, tokens in enumerate(batched):
            assert_same(f"{name} {setting} {decoder} prompt {index} batched", expected[index], tokens)
        assert_same(f"{name} {setting} {decoder}", expected[1], alone)


@pytest.mark.parametrize("decoder", READERS)
@pytest.mark.parametrize("setting", ["greedy", "hot"])
def test_predictions_keep_to_the_grammar(
    decoder: str, setting: str, language_model: LanguageModel, tiny_folder: Callable[..., Path]
) -> None:
    """Also where what is predicted would be forbidden."""
    model, params, schema = language_model, with_length(SETTINGS[setting], 40), GRAMMARS["schema"]
    ids = model.encode(PROMPTS[1], raw=True)
    oracle, allowed = plain_network(str(tiny_folder("llama"))), naive(schema.pattern)
    expected = reference(oracle, ids, params, model.target.eos_ids, allowed=allowed)
    made = [make([decision.token for decision in expected]) for make in PREDICTIONS.values()]
    policy, start = policy_for(decoder, model, [ids], [expected]), compiled(model, schema.source)
    found = answers(model, policy, [ids] * len(made), params, start=start, predictions=made)
    for name, tokens in zip(PREDICTIONS, found, strict=True):
        assert_same(f"{setting} {decoder}, a prediction that is {name}", expected, tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_reaches_what_the_grammar_leaves(
    temperature: float, language_model: LanguageModel, tiny_folder: Callable[..., Path]
) -> None:
    """The bias first, then the grammar: it cannot bring back what is forbidden, and what it bans stays out."""
    a, b, space, digit = (BYTES.index(ord(letter)) for letter in "ab 1")
    bias = {a: 3.0, b: -math.inf, space: -5.0, digit: 1000.0}
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=11, logit_bias=bias)
    model, words = language_model, GRAMMARS["words"]
    start, prompts = compiled(model, words.source), [model.encode(text, raw=True) for text in PROMPTS]
    oracle = plain_network(str(tiny_folder("llama")))
    expected = [reference(oracle, ids, params, model.target.eos_ids, allowed=naive(words.pattern)) for ids in prompts]
    written = {decision.token for decisions in expected for decision in decisions}
    assert a in written and not written & {b, digit}
    for decoder in DECODERS:
        policy = policy_for(decoder, model, prompts, expected)
        for index, tokens in enumerate(answers(model, policy, prompts, params, start=start)):
            assert_same(f"bias {decoder} prompt {index}", expected[index], tokens)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("decoder", ALL_DECODERS)
def test_json_always_parses(decoder: str, seeds: int, language_model: LanguageModel) -> None:
    """Verified or not: what a hot random model writes keeps to the schema."""
    model, start = language_model, compiled(language_model, PERSON)
    params = SamplingParams(max_tokens=200, temperature=1.5)
    sequences = [make(model, decoder, replace(params, seed=seed), start(), PROMPTS[1]) for seed in range(seeds)]
    run(model, sequences)
    finished = [sequence for sequence in sequences if sequence.finish_reason == "stop"]
    assert len(finished) > seeds / 2
    for sequence in finished:
        assert sequence.output[-1] == EOS_ID and is_person(bytes_of(sequence.output))


@pytest.mark.parametrize("decoder", ["adaptive", "static", "self", "heads"])
def test_allowed_tokens_are_candidates_however_unlikely(
    decoder: str, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stridelm.draft.block.UNVERIFIED_CANDIDATES", 2)
    for name in ("DRAFT_CANDIDATES", "GREEDY_CANDIDATES"):
        monkeypatch.setattr(f"stridelm.draft.grow.{name}", 2)
    start = compiled(language_model, GRAMMARS["forced"].source)
    sequence = make(language_model, decoder, SamplingParams(max_tokens=30), start(), PROMPTS[0])
    run(language_model, [sequence])
    assert bytes_of(sequence.output) == b"abracadabra!"
    if decoder != "adaptive":  # which has no confidence in them
        assert sequence.stats.forwards < len(sequence.output)


@pytest.mark.parametrize("decoder", ALL_DECODERS)
def test_an_answer_may_be_nothing(decoder: str, language_model: LanguageModel) -> None:
    start = compiled(language_model, 'start: ""')
    sequence = make(language_model, decoder, SamplingParams(max_tokens=9), start(), PROMPTS[0])
    run(language_model, [sequence])
    assert sequence.output == [EOS_ID] and sequence.finish_reason == "stop"


@pytest.mark.parametrize("decoder", ALL_DECODERS)
def test_a_grammar_with_one_text_gives_it(decoder: str, language_model: LanguageModel) -> None:
    start = compiled(language_model, GRAMMARS["forced"].source)
    sequence = make(language_model, decoder, SamplingParams(max_tokens=30, temperature=1.5), start(), PROMPTS[0])
    run(language_model, [sequence])
    assert bytes_of(sequence.output) == b"abracadabra!" and sequence.finish_reason == "stop"
    if decoder in ("self", "heads", "draft", "auto", "ensemble"):
        # A token that is the only one is certain, whatever the drafter thinks of it.
        assert sequence.stats.forwards < len(sequence.output)


@pytest.mark.parametrize("decoder", ALL_DECODERS)
def test_length_may_cut_an_answer(decoder: str, language_model: LanguageModel) -> None:
    start = compiled(language_model, GRAMMARS["forced"].source)
    sequence = make(language_model, decoder, SamplingParams(max_tokens=7), start(), PROMPTS[0])
    run(language_model, [sequence])
    assert bytes_of(sequence.output) == b"abracad" and sequence.finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("decoder", ALL_DECODERS)
def test_a_grammar_and_a_bias_that_leave_no_token_are_refused(
    decoder: str, temperature: float, language_model: LanguageModel
) -> None:
    """Where it happens, and not before: drafters come there first."""
    start = compiled(language_model, GRAMMARS["forced"].source)
    bias = {BYTES.index(ord("c")): -math.inf}
    params = SamplingParams(max_tokens=30, temperature=temperature, logit_bias=bias)
    sequence = make(language_model, decoder, params, start(), PROMPTS[0])
    with pytest.raises(InputError, match="no token is left"):
        run(language_model, [sequence])
    assert bytes_of(sequence.output) in (b"", b"a", b"ab", b"abr", b"abra")
    language_model.engine.reset()
    shorter = make(language_model, decoder, replace(params, max_tokens=4), start(), PROMPTS[0])
    run(language_model, [shorter])
    assert bytes_of(shorter.output) == b"abra"


@pytest.mark.parametrize("decoder", ["wrong", "tree"])
def test_forbidden_drafts_are_not_run(decoder: str, language_model: LanguageModel) -> None:
    model, params = language_model, SamplingParams(max_tokens=40)
    start, allowed = compiled(model, GRAMMARS["words"].source), naive(GRAMMARS["words"].pattern)
    prompts = [model.encode(PROMPTS[0], raw=True)]
    (answer,) = answers(model, model._policy(DecodeSettings("autoregressive")), prompts, params, start=start)
    policy = policy_for(decoder, model, prompts, [[]])
    assert isinstance(policy, Speculative)
    policy.drafter.answers[tuple(prompts[0])] = answer  # type: ignore[attr-defined]
    sequence = make(model, "ngram", params, start(), PROMPTS[0])
    sequence.policy = policy
    plan, seen = policy.plan, 0

    def look(sequences: list[Sequence], others: int = 0) -> list:
        nonlocal seen
        (block,) = blocks = plan(sequences, others)
        for node, (token, parent) in enumerate(zip(block.tree.tokens, block.tree.parents, strict=True)):
            path = [token]
            while parent >= 0:
                path.insert(0, block.tree.tokens[parent])
                parent = block.tree.parents[parent]
            assert allowed([*sequences[0].output, *path[:-1]])[token], node
            seen += 1
        return blocks

    policy.plan = look  # type: ignore[method-assign]
    run(model, [sequence])
    assert sequence.output == answer and (seen > 0 or decoder == "wrong")


@pytest.mark.parametrize("decoder", EXACT)
def test_after_rejections_the_grammar_stands_where_a_fresh_one_does(
    decoder: str, language_model: LanguageModel
) -> None:
    start = compiled(language_model, PERSON)
    grammar = start()
    params = SamplingParams(max_tokens=60, temperature=1.2, seed=3)
    sequence = make(language_model, decoder, params, grammar, PROMPTS[1])
    run(language_model, [sequence])
    if decoder != "autoregressive":
        assert sequence.stats.accepted < sequence.stats.drafted
    for length in (len(sequence.output) - 1, 0, len(sequence.output) // 2):
        written = sequence.output[:length]
        assert np.array_equal(grammar.allowed(written), start().allowed(written))


def test_builtin(builtin_checkpoint: Checkpoint, builtin_gate: TorchGate | None) -> None:
    """Real tokens, which hold several characters or parts of one; a greedy answer and a sampled one in one batch."""
    model = assembled(builtin_checkpoint, None, LoadSettings(cache_tokens=8192), builtin_gate)
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    start, texts = compiled(model, schema), {}
    for decoder in ("autoregressive", "auto"):
        sequences: list[Sequence] = []
        for setting in ("greedy", "all"):
            params = with_length(SETTINGS[setting], 40)
            ids = model.encode("Name a city of Japan as JSON.")
            sequences.append(model.sequence(ids, params, model.check(decoder)))
            sequences[-1].grammar = start()
        run(model, sequences)
        for sequence in sequences:
            assert sequence.finish_reason == "stop"
            assert set(json.loads(str(model.target.tokenizer.decode(sequence.output[:-1])))) == {"city", "country"}
        texts[decoder] = [sequence.output for sequence in sequences]
    assert texts["auto"] == texts["autoregressive"]
