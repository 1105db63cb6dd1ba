"""The rollout engine writes what the serving engine writes, whatever stands in the places beside."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from assembly import assembled
from stridelm.engine.rollout import Prompt, RolloutEngine
from stridelm.model.load import load_checkpoint
from stridelm.params import SamplingParams
from stridelm.sampling import gumbel_of, gumbel_rows
from stridelm.settings import PLAIN, LoadSettings
from tiny import FAMILIES, load_tiny

TEXTS = ["abc", "The quick brown fox", "x", "counting 1 2 3 4 5 6 7", "zz top", "again and again"]


@pytest.mark.parametrize("family", FAMILIES)
def test_same_answers_as_the_serving_engine(family: str, tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder(family)
    model = assembled(load_tiny(folder), None, LoadSettings(cache_tokens=4096))
    trainable = load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True)
    prompts = [
        Prompt(tuple(model.encode(text, raw=True)), 8 + 5 * index, temperature=0.8 * (index % 2), seed=index)
        for index, text in enumerate(TEXTS)
    ]
    expected = [
        model.generate(
            text,
            SamplingParams(max_tokens=prompt.max_tokens, temperature=prompt.temperature, seed=prompt.seed),
            decoder=PLAIN,
            raw=True,
        ).token_ids
        for text, prompt in zip(TEXTS, prompts, strict=True)
    ]
    for places in (1, 3, 8):
        answers = dict(RolloutEngine(trainable, places, 80).run(prompts))
        assert [tuple(answers[index]) for index in range(len(TEXTS))] == expected


def test_noise_of_many_rows_is_that_of_each() -> None:
    seeds, positions = torch.tensor([0, 5, 2**53 - 1]), torch.tensor([7, 0, 4000])
    rows = gumbel_rows(seeds, positions, 50)
    for row, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
        assert torch.equal(rows[row], gumbel_of(torch.arange(50), seed, 0, position))
