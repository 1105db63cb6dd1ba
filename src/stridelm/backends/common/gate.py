"""The sequential head and the output matrix of a converted network, in the form that drafters use.

Shape letters: X chains, C model width, S state size, N candidates, D depths of a chain, V vocabulary.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from stridelm import arrays
from stridelm.backends.common.scorer import Scorer
from stridelm.contracts import Growth
from stridelm.models.adapter import Adapter
from stridelm.stepper import mask_priors
from stridelm.types import Array

_BELOW_ONE = 1 - 1e-6


class TensorGate:
    """Implements `contracts.Gate`: the parts of an adapter other than its low-rank parts, on its network's device."""

    def __init__(self, network: PreTrainedModel, adapter: Adapter) -> None:
        self.k = adapter.config.k
        prior = adapter.config.draft_prior
        self.prior = None if prior is None else mask_priors(prior)
        self.device = network.device
        self.embedding = network.get_input_embeddings()
        tail = adapter.tail_heads()
        self.tail = adapter.config.tail_heads
        self._tail_heads = None if tail is None else tail.to(network.device)
        head = adapter.sequential_head()
        self.sequential_head = None if head is None else head.to(network.device)
        self.output_weight_VC = None if head is None else _output_weight(network)
        """The output matrix. Its rows turn what the sequential head adds into changes of tokens' logits."""
        self.score = Scorer(network)
        self.softcap = self.score.softcap

    @torch.inference_mode()
    def foretell(self, hidden_C: torch.Tensor) -> torch.Tensor:
        assert self._tail_heads is not None
        return self._tail_heads(hidden_C[None].float())[0].to(hidden_C.dtype)

    @property
    def state_size(self) -> int:
        return 0 if self.sequential_head is None else self.sequential_head.size

    def start(self, chains: int) -> torch.Tensor:
        assert self.sequential_head is not None
        return self.sequential_head.start(chains)

    @torch.inference_mode()
    def read(
        self, hidden_XC: torch.Tensor, before: list[int], state_XS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.sequential_head is not None
        before_XC = self.embedding(torch.tensor(before, device=self.device)).float()
        return self.sequential_head(hidden_XC.float(), before_XC, state_XS)

    @torch.inference_mode()
    def moved(self, tokens_N: torch.Tensor, logits: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        assert self.output_weight_VC is not None, "an adapter with a sequential head keeps the output matrix"
        rows_NC = self.output_weight_VC[tokens_N]
        more, cap = (added.to(rows_NC.dtype) @ rows_NC.t()).float(), self.softcap
        if cap is None:
            return logits + more
        # The soft cap is applied after the addition (Gemma 2), so undo it first.
        return cap * torch.tanh(torch.atanh((logits / cap).clamp(-_BELOW_ONE, _BELOW_ONE)) + more / cap)

    def top(self, logits_V: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return arrays.top(logits_V, count)

    def grow(self, logits_DV: Array, hidden_DC: Array, state_1S: Array | None, growth: Growth) -> None:
        """None: nothing here is faster than growing the tree depth by depth."""


def _output_weight(network: PreTrainedModel) -> torch.Tensor:
    # If the matrix is tied, take the embedding, whose rows are contiguous; the head may store it in another order.
    tied = network.config.get_text_config().tie_word_embeddings
    holder: Any = network.get_input_embeddings() if tied else network.get_output_embeddings()
    return holder.weight
