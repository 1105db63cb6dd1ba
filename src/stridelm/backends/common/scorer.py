"""Hidden states to logits and probabilities, outside of a forward pass: for masks whose logits were deferred, for
prediction heads and for steps over `DenseTexts`.

Shape letters: X rows, C model width, V vocabulary.
"""

from typing import Any

import torch
from transformers import PreTrainedModel


def cap_of(network: PreTrainedModel) -> float | None:
    """The soft cap on its logits (Gemma 2); None if it has none."""
    return getattr(network.config.get_text_config(), "final_logit_softcapping", None)


def capped(logits_XV: torch.Tensor, cap: float | None) -> torch.Tensor:
    return logits_XV if cap is None else cap * torch.tanh(logits_XV / cap)


def probability(logits_XV: torch.Tensor, tokens_X: torch.Tensor) -> torch.Tensor:
    """The model's probability of one token per row: X."""
    chosen_X = logits_XV.gather(1, tokens_X[:, None])[:, 0]
    return (chosen_X - logits_XV.logsumexp(dim=-1)).exp()


class Scorer:
    """The network's own output head and soft cap."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.head: Any = network.get_output_embeddings()
        self.dtype = network.dtype
        self.softcap = cap_of(network)

    @torch.inference_mode()
    def __call__(self, hidden_XC: torch.Tensor) -> torch.Tensor:
        """Logits in float32."""
        return capped(self.head(hidden_XC.to(self.dtype)).float(), self.softcap)
