"""What the drafters propose, and what they remember."""

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stridelm.api import LanguageModel
from stridelm.draft.ngram import NgramDrafter, longest_match
from stridelm.model.load import Checkpoint
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings, LoadSettings


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


def test_ngram_proposes_what_followed_and_no_more_than_the_match_has_earned() -> None:
    drafter = NgramDrafter(k=8)
    assert drafter._propose([1, 2, 3, 4, 5, 9, 1, 2, 3]).tokens == (4, 5, 9)
    assert drafter._propose([1, 2, 3, 4, 5, 9, 3]).tokens == ()
    assert NgramDrafter(k=2)._propose([1, 2, 3, 4, 5, 9, 1, 2, 3]).tokens == (4, 5)


def test_a_model_that_drafts_for_itself_is_always_right(tiny: Callable[..., Checkpoint]) -> None:
    """Greedy and sampled: a draft model draws with the target's noise, so a twin proposes the very same tokens."""
    model = LanguageModel(tiny("llama"), tiny("llama"), LoadSettings(cache_tokens=2048))
    for params in (SamplingParams(max_tokens=30), SamplingParams(max_tokens=30, temperature=1.0, top_p=0.9, seed=5)):
        for k in (1, 4, 7):
            result = model.generate("abcdefgh", params, decoder=DecodeSettings("draft", k=k))
            assert result.stats.forwards == -(-result.stats.tokens // (k + 1))
            assert result.stats.accepted == result.stats.drafted == result.stats.tokens - result.stats.forwards


def test_the_draft_model_gives_its_blocks_back(language_model: LanguageModel) -> None:
    answers = [language_model.stream(text, SamplingParams(max_tokens=12), decoder="draft") for text in ("abc", "defg")]
    next(answers[0])
    drafter = language_model._policy(DecodeSettings("draft", k=4)).drafter  # type: ignore[attr-defined]
    cache = drafter.forward.cache
    cache.check_integrity()
    assert cache.free_blocks < cache.block_count
    answers[0].close()
    answers[1].result()
    cache.check_integrity()
    assert cache.free_blocks == cache.block_count


def test_a_long_prompt_is_read_by_the_draft_model_in_parts(tiny: Callable[..., Checkpoint], monkeypatch) -> None:
    monkeypatch.setattr("stridelm.draft.draft_model._ROWS", 16)
    model = LanguageModel(tiny("llama"), tiny("llama"), LoadSettings(cache_tokens=2048))
    result = model.generate("a long prompt " * 10, SamplingParams(max_tokens=20), decoder=DecodeSettings("draft", k=4))
    assert result.stats.accepted == result.stats.drafted > 0


def test_a_draft_model_with_a_shorter_context_falls_silent(tiny: Callable[..., Checkpoint], tiny_folder) -> None:
    from tiny import load_tiny

    short = load_tiny(tiny_folder("llama", max_position_embeddings=64))
    model = LanguageModel(tiny("llama"), short, LoadSettings(cache_tokens=2048))
    prompt = "abcd" * 14
    plain = model.generate(prompt, SamplingParams(max_tokens=40), decoder="autoregressive", raw=True)
    drafted = model.generate(prompt, SamplingParams(max_tokens=40), decoder="draft", raw=True)
    assert drafted.token_ids == plain.token_ids
    assert 0 < drafted.stats.drafted < 12
