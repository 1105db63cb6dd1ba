"""What the drafters propose, and what they remember."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assembly import assembled
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.speculative import Speculative
from stridelm.draft.draft_model import ModelDrafter, draw_and_confidence
from stridelm.draft.ngram import NgramDrafter, longest_match
from stridelm.params import SamplingParams
from stridelm.sampling import draw, gumbel_of, keep_likely
from stridelm.settings import DecodeSettings, LoadSettings
from stridelm.types import DraftTree, Sequence
from tiny import load_tiny, plain_network

GREEDY = SamplingParams()


def match_by_trying(tokens: list[int], longest: int) -> tuple[int, int]:
    """The longest ending that occurred before, and the place after its latest occurrence."""
    for length in range(min(longest, len(tokens) - 1), 0, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return end, length
    return 0, 0


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 20))
def test_longest_match_equals_trying_all(tokens: list[int], longest: int) -> None:
    assert longest_match(np.array(tokens), longest) == match_by_trying(tokens, longest)


def sequence_of(tokens: list[int], params: SamplingParams = GREEDY) -> Sequence:
    return Sequence(list(tokens), params, Autoregressive(), frozenset(), context_length=512)


def ngram_tokens(k: int, tokens: list[int]) -> tuple[int, ...]:
    (tree,) = NgramDrafter(k).propose([sequence_of(tokens)])
    return tree.tokens


def test_ngram_proposes_what_followed_and_no_more_than_the_match_has_earned() -> None:
    assert ngram_tokens(8, [1, 2, 3, 4, 5, 9, 1, 2, 3]) == (4, 5, 9)
    assert ngram_tokens(8, [1, 2, 3, 4, 5, 9, 3]) == ()
    assert ngram_tokens(2, [1, 2, 3, 4, 5, 9, 1, 2, 3]) == (4, 5)


def test_ngram_is_surer_of_a_longer_match_and_of_a_draft_whose_parent_stands() -> None:
    (short,) = NgramDrafter(8).propose([sequence_of([1, 2, 7, 9, 1, 2])])
    (long,) = NgramDrafter(8).propose([sequence_of([1, 2, 3, 4, 7, 9, 1, 2, 3, 4])])
    assert short.scores == pytest.approx((1 / 2, 2 / 3)) and long.scores == pytest.approx((3 / 4, 4 / 5, 5 / 6, 6 / 7))


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=8), st.integers(1, 6))
def test_ngram_follows_texts_that_grow_side_by_side(parts: list[list[int]], k: int) -> None:
    """What it keeps of a text is the text: a drafter that has never seen it says the same."""
    drafter = NgramDrafter(k)
    growing = [sequence_of([0]), sequence_of([1])]
    for number, part in enumerate(parts):
        growing[number % 2].tokens.extend(part)
        fresh = [sequence_of(sequence.tokens) for sequence in growing]
        assert drafter.propose(growing) == NgramDrafter(k).propose(fresh)


def test_ngram_forgets_who_has_ended() -> None:
    drafter, sequence = NgramDrafter(4), sequence_of([1, 2, 3])
    drafter.propose([sequence])
    drafter.release(sequence)
    assert not drafter._texts


TWINS = (GREEDY, SamplingParams(temperature=1.0, top_p=0.9, seed=5))


@pytest.mark.parametrize("params", TWINS)
@pytest.mark.parametrize("k", [1, 4, 7])
def test_a_model_that_drafts_for_itself_is_always_right(
    params: SamplingParams, k: int, tiny: Callable[..., Checkpoint]
) -> None:
    """Greedy and sampled: a draft model draws with the target's noise, so a twin proposes the very same tokens. All k
    of them if it never stops for doubt; and as many as it proposes otherwise."""
    model = assembled(tiny("llama"), tiny("llama"), LoadSettings(cache_tokens=2048))
    settings = DecodeSettings("draft", k=k)
    doubting = model.generate("abcdefgh", replace(params, max_tokens=30), decoder=settings).stats
    policy_drafter(model, k).floor = 0.0
    bold = model.generate("abcdefgh", replace(params, max_tokens=30), decoder=settings).stats
    assert bold.forwards == -(-bold.tokens // (k + 1)) <= doubting.forwards <= -(-doubting.tokens // 2)
    for stats in (doubting, bold):
        assert stats.accepted == stats.drafted == stats.tokens - stats.forwards


def drafts_of(model: LanguageModel, texts: list[str], params: SamplingParams) -> list[DraftTree]:
    """What a draft model proposes for all of the texts together."""
    drafter = policy_drafter(model, k=8)
    sequences = [sequence_of(model.encode(text, raw=True), params) for text in texts]
    trees = drafter.propose(sequences)
    for sequence in sequences:
        drafter.release(sequence)
    return trees


def policy_drafter(model: LanguageModel, k: int) -> ModelDrafter:
    policy = model._policy(DecodeSettings("draft", k=k))
    assert isinstance(policy, Speculative) and isinstance(policy.drafter, ModelDrafter)
    return policy.drafter


def test_a_draft_ends_where_the_draft_model_has_come_to_doubt_it(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, floor = [f"{number} is {number * number}" for number in range(24)], 1e-4  # a random model is never sure
    monkeypatch.setattr(policy_drafter(language_model, k=8), "floor", floor)
    trees = drafts_of(language_model, texts, replace(GREEDY, max_tokens=40))
    lengths = {len(tree) for tree in trees}
    assert len(lengths) > 1 and max(lengths) < 8
    for tree in trees:
        assert math.prod(tree.scores[:-1]) >= floor
        assert len(tree) == 8 or math.prod(tree.scores) < floor


@pytest.mark.parametrize("params", TWINS)
def test_drafts_do_not_depend_on_who_else_drafts(params: SamplingParams, language_model: LanguageModel) -> None:
    """Those who go on share a forward, and who stops early takes nothing with it."""
    params, texts = replace(params, max_tokens=40), [f"{number} and so on" for number in range(12)]
    together = drafts_of(language_model, texts, params)
    alone = [drafts_of(language_model, [text], params)[0] for text in texts]
    assert [tree.tokens for tree in together] == [tree.tokens for tree in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def test_a_greedy_drafts_scores_are_the_draft_models_probabilities(
    language_model: LanguageModel, tiny_folder: Callable[..., Path]
) -> None:
    network, ids = plain_network(str(tiny_folder("llama", seed=1))), language_model.encode("hello there", raw=True)
    (tree,) = drafts_of(language_model, ["hello there"], replace(GREEDY, max_tokens=40))
    for token, score in zip(tree.tokens, tree.scores, strict=True):
        with torch.inference_mode():
            probability = network(torch.tensor([ids])).logits[0, -1].softmax(-1)
        assert token == int(probability.argmax()) and score == pytest.approx(float(probability[token]), abs=1e-4)
        ids.append(token)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_the_confidence_of_a_draw_is_how_often_a_noisy_twin_draws_the_same(temperature: float) -> None:
    """The target's logits being the draft model's plus Gumbel noise of their own."""
    sequence = sequence_of([1, 2, 3], SamplingParams(temperature=temperature, top_k=12, seed=11))
    random = torch.Generator().manual_seed(0)
    logits_V = 2 * torch.randn(40, generator=random)
    token, confidence = draw_and_confidence(logits_V, sequence, sequence.tokens)
    assert token == draw(logits_V, sequence.params, sequence.tokens, 3, seed=sequence.seed, choice=0)
    kept_V = keep_likely(logits_V - logits_V.max(), sequence.params)
    uniform = torch.rand(4000, 40, generator=random, dtype=torch.float64)
    own_noise = -(-uniform.log()).log()
    shared = temperature * gumbel_of(torch.arange(40), sequence.seed, 0, 3)
    same = ((kept_V + own_noise + shared).argmax(dim=-1) == token).double().mean()
    assert confidence == pytest.approx(float(same), abs=0.04)


def test_an_unlikely_token_that_wins_clearly_is_no_doubtful_draft() -> None:
    """At a high temperature over a flat distribution every token is unlikely; the shared noise decides for both."""
    scores = []
    for seed in range(50):
        sequence = sequence_of([1, 2, 3], SamplingParams(temperature=5.0, seed=seed))
        scores.append(draw_and_confidence(torch.zeros(200), sequence, sequence.tokens)[1])
    assert sum(scores) / len(scores) > 0.5


def test_the_draft_model_gives_its_blocks_back(language_model: LanguageModel) -> None:
    answers = [language_model.stream(text, SamplingParams(max_tokens=12), decoder="draft") for text in ("abc", "defg")]
    next(answers[0])
    cache = policy_drafter(language_model, k=4).forward.cache
    cache.check_integrity()
    assert cache.free_blocks < cache.block_count
    answers[0].close()
    answers[1].result()
    cache.check_integrity()
    assert cache.free_blocks == cache.block_count


def test_a_long_prompt_is_read_by_the_draft_model_in_parts(tiny: Callable[..., Checkpoint]) -> None:
    model = assembled(tiny("llama"), tiny("llama"), LoadSettings(cache_tokens=2048))
    policy_drafter(model, k=4).max_rows = 16
    result = model.generate("a long prompt " * 10, SamplingParams(max_tokens=20), decoder=DecodeSettings("draft", k=4))
    assert result.stats.accepted == result.stats.drafted > 0


def test_a_draft_model_with_a_shorter_context_falls_silent(tiny: Callable[..., Checkpoint], tiny_folder) -> None:
    short = load_tiny(tiny_folder("llama", max_position_embeddings=64))
    model = assembled(tiny("llama"), short, LoadSettings(cache_tokens=2048))
    prompt = "abcd" * 14
    plain = model.generate(prompt, SamplingParams(max_tokens=40), decoder="autoregressive", raw=True)
    drafted = model.generate(prompt, SamplingParams(max_tokens=40), decoder="draft", raw=True)
    assert drafted.token_ids == plain.token_ids
    assert 0 < drafted.stats.drafted < 12
