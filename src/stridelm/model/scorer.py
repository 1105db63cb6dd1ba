"""Hidden states to logits, outside of a forward pass: for masks that were deferred, and for prediction heads.

Shape letters: X rows, C model width, V vocabulary.
"""

from typing import Any

import torch
from transformers import PreTrainedModel


class Scorer:
    """The network's own output head and soft cap."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.head: Any = network.get_output_embeddings()
        self.dtype = network.dtype
        self.softcap: float | None = getattr(network.config.get_text_config(), "final_logit_softcapping", None)

    @torch.inference_mode()
    def __call__(self, hidden_XC: torch.Tensor) -> torch.Tensor:
        """In float32."""
        logits_XV = self.head(hidden_XC.to(self.dtype)).float()
        return logits_XV if self.softcap is None else self.softcap * torch.tanh(logits_XV / self.softcap)
