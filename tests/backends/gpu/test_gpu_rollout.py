"""Rollouts by the GPU's steps write what those through transformers' layers write, and leave a network to train."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interpreted import DEVICE
from stridelm.backends.gpu.weights import stack
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.params import InputError
from stridelm.settings import LoadSettings
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt
from stridelm.train.rollouts import Rollouts, Text
from stridelm.train.settings import TrainSettings
from stridelm.train.trainer import Trainer

LENGTHS = [1, 30, 5, 17, 2]
"""Of prompts: nothing to read before the first step, within a page and beyond one."""


def load(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder), LoadSettings(device=DEVICE, dtype="float32"), trainable=True)


def prompts_of(*, temperature: float) -> list[RolloutPrompt]:
    """Every second one is greedy."""
    generator = torch.Generator().manual_seed(0)
    return [
        RolloutPrompt(
            tuple(torch.randint(0, 250, (length,), generator=generator).tolist()),
            max_tokens=2 + index % 3,
            temperature=temperature * (index % 2),
            seed=(7 << 32) + index,
        )
        for index, length in enumerate(LENGTHS)
    ]


@pytest.mark.parametrize(("family", "temperature"), [("llama", 0.0), ("mistral", 0.8)])
def test_answers_are_those_of_torch(family: str, temperature: float, tiny_folder: Callable[..., Path]) -> None:
    """More prompts than places, so that some begin while others go on."""
    folder = tiny_folder(family)
    prompts = prompts_of(temperature=temperature)
    expected = dict(RolloutEngine(load(folder), 2, 40).run(prompts))
    checkpoint = load(folder)
    engine = RolloutEngine(checkpoint, 2, 40, weights=stack(checkpoint.network))
    assert dict(engine.run(prompts)) == expected
    assert [len(expected[index]) for index in range(len(LENGTHS))] == [prompt.max_tokens for prompt in prompts]


def test_an_answer_ends_with_its_text(tiny_folder: Callable[..., Path]) -> None:
    """At a token that ends texts, and where nobody asks for the rest: the next run finds all places free."""
    folder, prompts = tiny_folder("llama"), prompts_of(temperature=0.0)[2:]
    longest = max(dict(RolloutEngine(load(folder), 2, 40).run(prompts)).values(), key=len)
    ended = [replace(load(folder), eos_ids=frozenset(longest[1:2])) for _ in range(2)]
    expected = dict(RolloutEngine(ended[0], 2, 40).run(prompts))
    assert any(len(answer) < prompts[index].max_tokens for index, answer in expected.items())
    engine = RolloutEngine(ended[1], 2, 40, weights=stack(ended[1].network))
    for _ in engine.run(prompts):
        break
    assert dict(engine.run(prompts)) == expected


STUDENTS: dict[str, dict[str, Any]] = {
    "adapter": {"mode": "adapter", "rank": 4, "k": 3, "anchors": 4},
    "without a gate": {"mode": "adapter", "gate": "none", "rank": 4, "k": 3, "anchors": 4},
    "full": {"mode": "full", "k": 3, "anchors": 4},
    "heads": {"mode": "heads", "heads": 2, "anchors": 4},
    "draft": {"mode": "draft", "layers": 1},
}


@pytest.mark.parametrize("student", STUDENTS)
def test_a_stacked_network_is_trained_as_before(student: str, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """Its weights are views of the stacked ones: what is trained with or beside them goes the same way, step by step,
    and leaves them as they are."""
    settings = TrainSettings(**STUDENTS[student], texts=2, length=64, steps=3, warmup=1)
    random = np.random.default_rng(0)
    texts = [Text(random.integers(0, 250, 40, dtype=np.int32), 4) for _ in range(4)]
    plain, stacked = (
        load_checkpoint(str(tiny_folder("llama")), LoadSettings(device="cpu"), trainable=True) for _ in range(2)
    )
    weights = stack(stacked.network)
    before = [layer.units.weight_KNC.clone() for layer in weights.layers]
    losses: list[list[float]] = []
    for checkpoint in (plain, stacked):
        torch.manual_seed(0)
        trainer = Trainer(checkpoint, Rollouts(texts, [], {}), settings, tmp_path, lambda entry: None)
        losses.append([float(trainer._step(step)) for step in range(settings.steps)])
    assert losses[0] == losses[1]
    assert all(torch.equal(was, layer.units.weight_KNC) for was, layer in zip(before, weights.layers, strict=True))


def test_a_network_is_stacked_once(tiny_folder: Callable[..., Path]) -> None:
    """Engine after engine is made of the same network: its weights stay where they are, and whoever shares its
    parameters reads them there."""
    network = load(tiny_folder("qwen2")).network
    shared = dict(network.named_parameters())
    first, second = stack(network), stack(network)
    assert all(parameter is shared[name] for name, parameter in network.named_parameters())
    for one, other in zip(first.layers, second.layers, strict=True):
        for name in ("heads", "output", "units", "down"):
            mine, others = getattr(one, name).weight_KNC, getattr(other, name).weight_KNC
            assert mine.data_ptr() == others.data_ptr() and torch.equal(mine, others)


def test_too_many_places_are_refused(tiny_folder: Callable[..., Path]) -> None:
    checkpoint = load(tiny_folder("llama"))
    with pytest.raises(InputError, match="--rollout-batch"):
        RolloutEngine(checkpoint, 2**40, 100, weights=stack(checkpoint.network))
