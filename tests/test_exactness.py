"""Every decoder against the naive reference, token for token. A new drafter or policy joins by being listed in
helpers/exactness.py."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from assembly import assembled, with_assistant, with_random_heads
from exactness import (
    BUILTIN_PROMPTS,
    DECODERS,
    EXACT,
    PREDICTIONS,
    PROMPTS,
    READERS,
    SETTINGS,
    VARIED_PROMPTS,
    answers,
    assert_same,
    expected_of,
    policy_for,
    with_length,
)
from reference import NEAR_TIE, Decision, first_departure, reference, replay
from stepping import step_of
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.gated import TorchGate
from stridelm.models.builtin import ensure_builtin
from stridelm.models.store import save_folder
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings, LoadSettings
from stridelm.types import Sequence
from tally import counts
from tiny import FAMILIES, plain_network, random_heads

BATCHES = (8, 8, 3, 1)
"""How many of the varied prompts share a run of the engine."""
LENGTH = 64


@pytest.fixture(scope="module", autouse=True)
def count_near_ties():
    yield
    # Near-ties excuse a departure; were they common, the comparison would show little.
    assert counts["near-tie"] <= 0.02 * counts["cases"] + 1


def lacks(model: LanguageModel, decoder: str) -> bool:
    """The built-in model may come without its adapter or its heads."""
    without_heads = decoder == "heads" and model.resources.heads_by_name() is None
    return without_heads or (decoder == "self" and model.gate is None)


def compare(
    model: LanguageModel,
    oracle: torch.nn.Module,
    prompts: list[list[int]],
    setting: str,
    tokens: int,
    *,
    alone: int = len(PROMPTS),
) -> None:
    """All decoders on all prompts as a batch, and on so many of them by themselves."""
    params = with_length(SETTINGS[setting], tokens)
    expected = [expected_of(oracle, ids, params, model.target.eos_ids) for ids in prompts]
    for decoder in DECODERS:
        if lacks(model, decoder):
            continue
        batched = answers(model, policy_for(decoder, model, prompts, expected), prompts, params)
        for index, ids in enumerate(prompts):
            case = f"{model.target.name} {setting} {decoder} prompt {index}"
            assert_same(f"{case} batched", expected[index], batched[index])
            if index < alone:
                (answer,) = answers(model, policy_for(decoder, model, prompts, expected), [ids], params)
                assert_same(case, expected[index], answer)


@pytest.fixture
def language_model(language_model: LanguageModel) -> LanguageModel:
    """With random heads, too."""
    model = language_model
    return with_random_heads(model)


@pytest.mark.parametrize("setting", SETTINGS)
def test_tiny_llama(setting: str, language_model: LanguageModel, tiny_folder: Callable[..., Path]) -> None:
    prompts = [language_model.encode(text, raw=True) for text in PROMPTS]
    compare(language_model, plain_network(str(tiny_folder("llama"))), prompts, setting, 40)


@pytest.mark.parametrize("setting", ["greedy", "temperature", "all"])
@pytest.mark.parametrize("decoder", READERS)
def test_predictions(
    decoder: str, setting: str, language_model: LanguageModel, tiny_folder: Callable[..., Path]
) -> None:
    """Right or wrong, they never change the text: all kinds as one batch, then each by itself."""
    params, oracle = with_length(SETTINGS[setting], 40), plain_network(str(tiny_folder("llama")))
    for text in PROMPTS[:2]:
        ids = language_model.encode(text, raw=True)
        expected = expected_of(oracle, ids, params, language_model.target.eos_ids)
        policy = policy_for(decoder, language_model, [ids], [expected])
        made = [make([decision.token for decision in expected]) for make in PREDICTIONS.values()]
        batched = answers(language_model, policy, [ids] * len(made), params, predictions=made)
        for name, prediction, tokens in zip(PREDICTIONS, made, batched, strict=True):
            (alone,) = answers(language_model, policy, [ids], params, predictions=[prediction])
            assert_same(f"{setting} {decoder}, a prediction that is {name}, batched", expected, tokens)
            assert_same(f"{setting} {decoder}, a prediction that is {name}", expected, alone)


FAMILY_CASES = [
    pytest.param(family, setting, marks=[pytest.mark.slow] if (family, setting) == ("gemma4", "greedy") else [])
    for family in FAMILIES
    if family != "llama"
    for setting in ("greedy", "all")
]
"""Greedy answers of Gemma 4 are compared in test_gemma4_assistant.py as well."""


@pytest.mark.parametrize(("family", "setting"), FAMILY_CASES)
def test_tiny_families(
    family: str,
    setting: str,
    converted: Callable[..., tuple[Checkpoint, TorchGate]],
    tiny: Callable[..., Checkpoint],
    tiny_folder: Callable[..., Path],
    assistant_folder: Path,
) -> None:
    """Gemma 4 has its assistant in a draft model's place."""
    target, gate = converted(family)
    model = assembled(target, tiny("llama", 1), LoadSettings(cache_tokens=4096), gate, random_heads(target))
    if family == "gemma4":
        model = with_assistant(model, assistant_folder)
    prompts = [model.encode(text, raw=True) for text in PROMPTS[:2]]
    compare(model, plain_network(str(tiny_folder(family))), prompts, setting, 24)


@pytest.mark.parametrize("decoder", DECODERS)
def test_batch_sizes(decoder: str, language_model: LanguageModel, tiny_folder: Callable[..., Path]) -> None:
    """1, 2 or 8 sequences in a step: the tokens of each are the same."""
    params = with_length(SETTINGS["temperature"], 24)
    texts = [f"{number}: {'ab' * number} and so on {'xyz' * (number % 3)}" for number in range(8)]
    prompts = [language_model.encode(text, raw=True) for text in texts]
    oracle = plain_network(str(tiny_folder("llama")))
    expected = [expected_of(oracle, ids, params, language_model.target.eos_ids) for ids in prompts]
    policy = policy_for(decoder, language_model, prompts, expected)
    for size in (1, 2, 8):
        for start in range(0, 8, size):
            part = prompts[start : start + size]
            for offset, tokens in enumerate(answers(language_model, policy, part, params)):
                assert_same(f"batch of {size}, {decoder}, {start + offset}", expected[start + offset], tokens)


def test_an_always_right_drafter_strides_and_a_wrong_one_does_not(
    language_model: LanguageModel, tiny_folder: Callable[..., Path]
) -> None:
    params = SamplingParams(max_tokens=36)
    ids = language_model.encode(PROMPTS[0], raw=True)
    expected = [expected_of(plain_network(str(tiny_folder("llama"))), ids, params, language_model.target.eos_ids)]
    forwards = {}
    for name in ("right", "wrong"):
        policy = policy_for(name, language_model, [ids], expected)
        sequence = Sequence(
            list(ids), params, policy, language_model.target.eos_ids, language_model.target.context_length
        )
        language_model.engine.add(sequence)
        while sequence.finish_reason is None:
            step_of(language_model.engine)
        forwards[name] = sequence.stats.forwards
    tokens = len(expected[0])
    assert forwards == {"right": -(-tokens // 6), "wrong": tokens}  # five drafts and one token of the model's own


def test_choices_differ_and_repeat(language_model: LanguageModel, tiny_folder: Callable[..., Path]) -> None:
    params = with_length(SETTINGS["hot"], 16)
    ids = language_model.encode(PROMPTS[1], raw=True)
    oracle = plain_network(str(tiny_folder("llama")))
    policy = language_model._policy(DecodeSettings("ngram", k=8))
    texts = []
    for choice in (0, 1, 0):
        sequence = Sequence(list(ids), params, policy, frozenset(), language_model.target.context_length, choice=choice)
        language_model.engine.add(sequence)
        while sequence.finish_reason is None:
            step_of(language_model.engine)
        assert_same(f"choice {choice}", expected_of(oracle, ids, params, frozenset(), choice=choice), sequence.output)
        texts.append(sequence.output)
    assert texts[0] == texts[2] != texts[1]


@pytest.mark.parametrize("setting", ["greedy", "temperature"])
def test_drafts_that_are_right_but_not_run(
    setting: str, tiny: Callable[..., Checkpoint], tiny_folder: Callable[..., Path]
) -> None:
    """The draft model is the model itself, so it has read already what the model then says beyond the few nodes."""
    target = tiny("llama")
    model = assembled(target, target, LoadSettings(cache_tokens=4096))
    params = with_length(SETTINGS[setting], 32)
    for text in PROMPTS:
        ids = model.encode(text, raw=True)
        expected = expected_of(plain_network(str(tiny_folder("llama"))), ids, params, target.eos_ids)
        for nodes in (1, 2):
            policy = model._policy(DecodeSettings("ensemble", k=8, nodes=nodes))
            (tokens,) = answers(model, policy, [ids], params)
            assert_same(f"{nodes} nodes, {setting}, {text!r}", expected, tokens)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_replay_takes_the_decisions_of_the_reference(
    setting: str, language_model: LanguageModel, tiny_folder: Callable[..., Path]
) -> None:
    oracle, ids = plain_network(str(tiny_folder("llama"))), language_model.encode(PROMPTS[1], raw=True)
    params = with_length(SETTINGS[setting], 24)
    expected = reference(oracle, ids, params, frozenset(), choice=3)
    tokens = [decision.token for decision in expected]

    def departure(text: list[int], *ends: int) -> int | None:
        return first_departure(replay(oracle, ids, text, params, frozenset(ends), choice=3), text)

    margins = [decision.margin for decision in replay(oracle, ids, tokens, params, frozenset(), choice=3)]
    assert margins == pytest.approx([decision.margin for decision in expected], abs=NEAR_TIE)
    assert departure(tokens) is None
    for at in (0, 11, 23):
        assert departure([*tokens[:at], (tokens[at] + 1) % 200, *tokens[at + 1 :]]) == at
    # An answer that stops too early, or that goes on behind its end or beyond its length, is another one, too.
    assert departure(tokens[:10]) == 10
    assert departure([*tokens, 5]) == 24
    end = tokens.index(tokens[12])
    assert departure(tokens, tokens[12]) == end + 1
    assert departure(tokens[: end + 1], tokens[12]) is None


@pytest.fixture(scope="module")
def draft_checkpoint(builtin_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A draft model for the built-in one: its own first six layers."""
    network = AutoModelForCausalLM.from_pretrained(ensure_builtin(), dtype=torch.float32)
    config = deepcopy(network.config)
    config.num_hidden_layers = 6
    weights = {
        name: weight.clone()
        for name, weight in network.state_dict().items()
        if name != "lm_head.weight" and not any(f".layers.{layer}." in name for layer in range(6, 30))
    }
    folder = tmp_path_factory.mktemp("draft") / "model"
    save_folder(folder, config, weights, builtin_checkpoint.tokenizer)
    return load_checkpoint(str(folder), LoadSettings(device="cpu"))


@pytest.fixture
def builtin_model(
    builtin_checkpoint: Checkpoint, draft_checkpoint: Checkpoint, builtin_gate: TorchGate | None
) -> LanguageModel:
    return assembled(builtin_checkpoint, draft_checkpoint, LoadSettings(cache_tokens=8192), builtin_gate)


@pytest.mark.parametrize("setting", ["greedy", "all"])
def test_builtin(setting: str, builtin_model: LanguageModel) -> None:
    prompts = [builtin_model.encode(text) for text in BUILTIN_PROMPTS]
    compare(builtin_model, plain_network(str(ensure_builtin())), prompts, setting, 16, alone=1)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_builtin_at_length(setting: str, builtin_model: LanguageModel) -> None:
    prompts = [
        builtin_model.encode(text) for text in (*BUILTIN_PROMPTS, "Count from one to thirty in words.", "Tell a story.")
    ]
    compare(builtin_model, plain_network(str(ensure_builtin())), prompts, setting, 32, alone=0)


def endless(params: SamplingParams, eos_ids: frozenset[int]) -> SamplingParams:
    """With the ends of a text banned. Plain greedy stays as it is, to be decided as it is: it writes on behind them."""
    params = with_length(params, LENGTH)
    if params.is_plain_greedy:
        return params
    return replace(params, logit_bias={**params.logit_bias, **dict.fromkeys(eos_ids, -math.inf)})


@cache
def replay_of_builtin(
    prompt: tuple[int, ...], tokens: tuple[int, ...], setting: str, eos_ids: frozenset[int]
) -> list[Decision]:
    """Once for all decoders that wrote the same."""
    params = endless(SETTINGS[setting], eos_ids)
    return replay(plain_network(str(ensure_builtin())), list(prompt), list(tokens), params, frozenset())


@pytest.mark.slow
@pytest.mark.parametrize("decoder", EXACT)
@pytest.mark.parametrize("setting", SETTINGS)
def test_builtin_replayed(setting: str, decoder: str, builtin_model: LanguageModel) -> None:
    """A thousand cases of prompt, decoder and sampling, of 64 tokens each."""
    assert len(VARIED_PROMPTS) == sum(BATCHES) and len(VARIED_PROMPTS) * len(SETTINGS) * len(EXACT) >= 1000
    if lacks(builtin_model, decoder):
        pytest.skip(f"this package comes without what {decoder} needs")
    eos_ids = builtin_model.target.eos_ids
    params = endless(SETTINGS[setting], eos_ids)
    policy = builtin_model._policy(DecodeSettings(decoder))
    prompts = iter([builtin_model.encode(text) for text in VARIED_PROMPTS])
    for size in BATCHES:
        batch = list(islice(prompts, size))
        for ids, tokens in zip(batch, answers(builtin_model, policy, batch, params, frozenset()), strict=True):
            assert len(tokens) == LENGTH
            expected = replay_of_builtin(tuple(ids), tuple(tokens), setting, eos_ids)
            assert_same(f"{setting} {decoder} {builtin_model.target.tokenizer.decode(ids)!r}", expected, tokens)
