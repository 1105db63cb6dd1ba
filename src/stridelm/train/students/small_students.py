"""Students without masks: heads on the teacher's final hidden states, and a draft model of its first layers.

Shape letters: as in stridelm.train.students.student.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from stridelm.backends.torch.draft_layers import first_layers
from stridelm.backends.torch.heads import TorchHeads
from stridelm.models.sequential_head import SequentialHead
from stridelm.train.students.passes import TextPass
from stridelm.train.students.student import flat_places, read_real_rows


class HeadsStudent(nn.Module):
    """Heads that read the teacher's final hidden states."""

    judges_anchor = False
    has_own_layers = False
    sequential: SequentialHead | None = None

    def __init__(self, network: PreTrainedModel, heads: int, size: int | None) -> None:
        super().__init__()
        self.network: Any = network
        width = int(network.config.get_text_config().hidden_size)
        self.heads = TorchHeads(width, heads, size or width).to(network.device)
        self.masks = heads

    def slots(
        self, ids_BT: torch.Tensor, anchors_BA: torch.Tensor, texts: TextPass | None, hidden_NC: torch.Tensor | None
    ) -> torch.Tensor:
        """The outputs of the heads at each anchor, X x S x C."""
        assert hidden_NC is not None, "heads read what the teacher's pass left"
        return self.heads(hidden_NC[flat_places(anchors_BA, ids_BT.shape[1])])


class DraftStudent(nn.Module):
    """A trained copy of the teacher's first layers."""

    has_own_layers = True

    def __init__(self, network: PreTrainedModel, layers: int) -> None:
        super().__init__()
        self.network: Any = first_layers(network, layers)

    def rows(self, ids_BT: torch.Tensor) -> torch.Tensor:
        return read_real_rows(self.network, ids_BT)[1]
