"""Hidden states to logits, outside of a forward pass: for masks that were deferred, and for prediction heads.

Shape letters: X rows, C model width, V vocabulary.
"""

from typing import Any

import torch
from transformers import PreTrainedModel


def cap_of(network: PreTrainedModel) -> float | None:
    """The soft cap on its logits (Gemma 2); None where there is none."""
    return getattr(network.config.get_text_config(), "final_logit_softcapping", None)


def capped(logits_XV: torch.Tensor, cap: float | None) -> torch.Tensor:
    return logits_XV if cap is None else cap * torch.tanh(logits_XV / cap)


class Scorer:
    """The network's own output head and soft cap."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.head: Any = network.get_output_embeddings()
        self.dtype = network.dtype
        self.softcap = cap_of(network)

    @torch.inference_mode()
    def __call__(self, hidden_XC: torch.Tensor) -> torch.Tensor:
        """In float32."""
        return capped(self.head(hidden_XC.to(self.dtype)).float(), self.softcap)
