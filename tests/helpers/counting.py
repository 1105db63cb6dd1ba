"""A tiny model that can count, and its conversion: texts that are easy to foresee, so that drafts are accepted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.models.adapter import Adapter
from stridelm.settings import LoadSettings
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt
from stridelm.train.rollouts import Rollouts, Text
from stridelm.train.settings import TrainSettings
from stridelm.train.trainer import Trainer
from tiny import byte_tokenizer, save_tiny

FIRST, LAST = 32, 64
"""Tokens that it counts in, as A, B, C, ... or A, C, E, ...; behind the last one the text ends."""
END = 256
HELD_OUT = 12
SETTINGS = TrainSettings(
    k=4, rank=8, sequential_size=16, tail_heads=2, tail_size=16, texts=8, length=40, anchors=12,
    steps=60, warmup=5, learning_rate=0.01, evaluate_every=60, checkpoint_every=60,
)  # fmt: skip


@dataclass(frozen=True)
class Conversion:
    """A training that has run, and what it told on the way."""

    checkpoint: Checkpoint
    trainer: Trainer
    entries: list[dict[str, Any]]

    @property
    def adapter(self) -> Adapter:
        checkpoint = self.checkpoint
        return self.trainer.student.adapter(checkpoint.name, checkpoint.fingerprint, checkpoint.tokenizer)


def save_counting(folder: Path, family: str = "llama") -> Path:
    """A tiny model, trained to count; it takes text as it is."""
    network = AutoModelForCausalLM.from_pretrained(save_tiny(folder, family), dtype=torch.float32)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    random = torch.Generator().manual_seed(0)
    for _ in range(80):
        first = torch.randint(FIRST, LAST, (16, 1), generator=random)
        ids = first + torch.arange(24) * torch.randint(1, 3, (16, 1), generator=random)
        counted = ids.clamp(max=LAST)
        labels = counted.masked_fill(counted == LAST, END)
        labels[:, 1:][counted[:, :-1] == LAST] = -100  # nothing comes behind the end
        loss = network(ids.masked_fill(ids >= LAST, END), labels=labels, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    network.save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    return folder


def counting_prompts(count: int, max_tokens: int = 40) -> list[RolloutPrompt]:
    """Beginnings of two to nine tokens."""
    random = np.random.default_rng(0)
    drawn = zip(
        *(random.integers(low, high, count) for low, high in ((FIRST, LAST - 20), (2, 10), (1, 3))), strict=True
    )
    return [
        RolloutPrompt(tuple((first + step * np.arange(length)).tolist()), max_tokens) for first, length, step in drawn
    ]


def answered(checkpoint: Checkpoint, prompts: list[RolloutPrompt]) -> list[Text]:
    """The model's own answers."""
    answers = dict(RolloutEngine(checkpoint, 32, 64).run(prompts))
    return [
        Text(
            np.array([*prompt.tokens, *answers[index]], dtype=np.int32),
            len(prompt.tokens),
            prompt.temperature,
            prompt.seed,
        )
        for index, prompt in enumerate(prompts)
    ]


def convert_counting(folder: Path, family: str) -> Conversion:
    model = save_counting(folder / "model", family)
    checkpoint = load_checkpoint(str(model), LoadSettings(device="cpu"), trainable=True)
    texts = answered(checkpoint, counting_prompts(60))
    entries: list[dict[str, Any]] = []
    rollouts = Rollouts(texts[HELD_OUT:], texts[:HELD_OUT], {})
    trainer = Trainer(checkpoint, rollouts, SETTINGS, folder, entries.append)
    trainer.run()
    return Conversion(checkpoint, trainer, entries)
