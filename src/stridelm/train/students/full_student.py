"""A student that is a whole model: every weight of a copy is trained, and one of its ordinary tokens is the mask.

The result needs no base model: it is a Hugging Face folder whose config.json names the mask token. Verified decoding of
it is exact with respect to its own answers, one token at a time.

Shape letters: as in stridelm.train.students.student; V vocabulary.
"""

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stridelm.models.mask_token import MASK_IDS_KEY, MASK_NAME_KEY, MASKS_KEY, ROUND_VOCABULARY, own_mask_token
from stridelm.models.preview import MASK_KEY
from stridelm.models.sequential_head import SequentialHead
from stridelm.models.store import as_dtype, save_network
from stridelm.train.students.passes import ChainPass, TextPass
from stridelm.train.students.student import mask_token, read_chains, read_real_rows, read_together


class FullStudent(nn.Module):
    """A copy of the network in float32. Without masks it is an ordinary model that learns one token at a time."""

    judges_anchor = True
    has_own_layers = True
    sequential: SequentialHead | None = None

    def __init__(self, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, masks: int) -> None:
        super().__init__()
        self.masks = self.drafts = masks
        self.network: Any = copy.deepcopy(network).float().requires_grad_(True)
        self.token: tuple[str, int] | None = None
        config = self.network.config
        if not masks:
            # If the model was converted before, its masks are not trained any further, so they are removed.
            for key in (MASK_KEY, MASK_IDS_KEY, MASK_NAME_KEY, MASKS_KEY):
                config.__dict__.pop(key, None)
            return
        self.token = own_mask_token(network.config, tokenizer)  # if the model was converted before
        if self.token is None:
            self.token = mask_token(tokenizer, int(network.config.get_text_config().vocab_size))
            self._make_room(self.token[1])
        config.__dict__.pop(MASK_IDS_KEY, None)  # one mask token is trained for all depths
        for key, value in ((MASK_NAME_KEY, self.token[0]), (MASK_KEY, self.token[1]), (MASKS_KEY, masks)):
            setattr(config, key, value)

    @torch.no_grad()
    def _make_room(self, token: int) -> None:
        """Add an embedding for the mask token, initialised as the mean of the others."""
        embedding: Any = self.network.get_input_embeddings()
        known = len(embedding.weight)
        mean_C = embedding.weight.mean(dim=0)
        if token >= known:
            self.network.resize_token_embeddings(token + 1, pad_to_multiple_of=ROUND_VOCABULARY, mean_resizing=False)
            # No text uses the padding rows. They get the mean, too, so that none of them stands out.
            for holder in (self.network.get_input_embeddings(), self.network.get_output_embeddings()):
                holder.weight[known:] = holder.weight[:known].mean(dim=0)
        self.network.get_input_embeddings().weight[token] = mean_C

    def mask_rows(self) -> torch.Tensor:
        assert self.token is not None, "a model that was not trained with masks"
        embedding = self.network.get_input_embeddings()
        return embedding(torch.full((self.masks,), self.token[1], device=self.network.device))

    def slots(
        self, ids_BT: torch.Tensor, anchors_BA: torch.Tensor, texts: TextPass | None, hidden_NC: torch.Tensor | None
    ) -> torch.Tensor:
        return read_together(self.network, ids_BT, anchors_BA, self.mask_rows())

    def outputs(self, chains: ChainPass) -> torch.Tensor:
        """The final hidden states of all mask rows, X x K x C. The texts of the chains were read by this network."""
        return read_chains(self.network, chains, self.mask_rows())

    def rows(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """The final hidden states of all real rows, N x C."""
        return read_real_rows(self.network, ids_BT)[1]


def save_full(
    folder: Path,
    student: FullStudent,
    weights: dict[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: frozenset[int],
    dtype: torch.dtype,
) -> None:
    """Write the model into a folder that may hold other files. config.json is written last: a folder without it is
    not a model. `weights` is the network's complete state, on the CPU."""
    if student.token is not None:
        name, token = student.token
        tokenizer = copy.deepcopy(tokenizer)
        if name not in tokenizer.get_vocab() and len(tokenizer) == token:
            tokenizer.add_tokens([AddedToken(name, special=True)])  # type: ignore[list-item]
    working = folder / ".writing"
    shutil.rmtree(working, ignore_errors=True)  # left by a run that was killed here
    try:
        save_network(working, student.network, tokenizer, eos_ids, as_dtype(weights, dtype))
        names = sorted(path.name for path in working.iterdir())
        for name in (*(name for name in names if name != "config.json"), "config.json"):
            os.replace(working / name, folder / name)
    finally:
        shutil.rmtree(working, ignore_errors=True)
