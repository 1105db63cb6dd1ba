"""The evaluation of a model that learns one token at a time: the loss on answers that it is not trained on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stridelm.params import InputError
from stridelm.train.batches import make_batch, usable
from stridelm.train.objective import ChainObjective, RowObjective
from stridelm.train.rollouts import Text
from stridelm.train.settings import TrainSettings


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """The mean over all answer tokens, each with the same weight."""

    loss: float
    texts: int
    tokens: int

    @property
    def entry(self) -> dict[str, Any]:
        """For metrics.jsonl."""
        return {"held_out_loss": self.loss}

    @property
    def sentence(self) -> str:
        """For a person."""
        return f"a loss of {self.loss:.3f} nats per token on {self.texts} held-out answers"


@torch.no_grad()
def held_out_loss(
    objective: ChainObjective | RowObjective, texts: list[Text], settings: TrainSettings, device: torch.device
) -> HeldOutLoss:
    texts = [text for text in texts if usable(text, settings)]
    if not texts:
        raise InputError(
            f"no held-out answer fits into --length ({settings.length}): give a greater one, or shorter prompts"
        )
    found, tokens = 0.0, 0
    for start in range(0, len(texts), settings.texts):
        anchors_unused = np.random.default_rng(0)
        batch = make_batch(texts[start : start + settings.texts], settings.length, 1, anchors_unused)
        inputs = [torch.from_numpy(array).to(device) for array in objective.inputs(batch, 0)]
        count = int((batch.lengths_B - batch.prompts_B).sum())
        with torch.compiler.set_stance("force_eager"):
            found, tokens = found + float(objective(*inputs)) * count, tokens + count
    return HeldOutLoss(found / tokens, len(texts), tokens)
