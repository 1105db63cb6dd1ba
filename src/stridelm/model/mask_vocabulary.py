"""Masks as tokens of the vocabulary, for engines that know nothing of rows of another kind.

Each depth of a chain gets an id of its own, whose embedding is that depth's. What such an id means at the output is of
no use to anyone, so it must not come up there: its row of the output matrix is the mean of the others, and the mean of
all logits is never above the largest. Where one matrix served at both ends it becomes two for that.

Shape letters: D depths of a chain, C model width, V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stridelm.model.mask_token import MASK_IDS_KEY, MASK_NAME_KEY, MASKS_KEY
from stridelm.model.preview import MASK_KEY
from stridelm.model.student import MASK_TOKEN

ROUND_VOCABULARY = 64
"""A larger vocabulary is made a multiple of this: output matrices of odd sizes are slow on GPUs."""


@torch.no_grad()
def add_mask_tokens(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, embedding_DC: torch.Tensor
) -> list[int]:
    """Give every depth an id, in a network as transformers made it, and name them in its config. Ids that no text uses
    come first; where there are too few of them the vocabulary grows. The tokenizer stays as it is."""
    used = set(tokenizer.get_vocab().values())
    vocabulary, depths = int(network.config.get_text_config().vocab_size), len(embedding_DC)
    ids = [token for token in range(vocabulary) if token not in used][:depths]
    if len(ids) < depths:
        first = max(vocabulary, max(used) + 1)
        ids = list(range(first, first + depths))
        network.resize_token_embeddings(ids[-1] + 1, pad_to_multiple_of=ROUND_VOCABULARY, mean_resizing=False)
    _untie(network)
    output: Any = network.get_output_embeddings()
    unused = sorted({*ids, *range(vocabulary, len(output.weight))})
    known = torch.ones(len(output.weight), dtype=torch.bool)
    known[unused] = False
    for part in (output.weight, getattr(output, "bias", None)):
        if part is not None:
            part[unused] = part[known].mean(dim=0)
    _embed(network.get_input_embeddings(), ids, embedding_DC)
    config = network.config
    for key, value in ((MASK_NAME_KEY, MASK_TOKEN), (MASK_KEY, ids[0]), (MASK_IDS_KEY, ids), (MASKS_KEY, depths)):
        setattr(config, key, value)
    assert network.generation_config is not None
    suppressed: Any = network.generation_config.suppress_tokens
    network.generation_config.suppress_tokens = sorted({*(suppressed or ()), *ids})  # sampling must not draw one either
    return ids


def _untie(network: PreTrainedModel) -> None:
    output: Any = network.get_output_embeddings()
    embedding: Any = network.get_input_embeddings()
    if output.weight is embedding.weight:
        output.weight = nn.Parameter(output.weight.clone(), requires_grad=False)
    for config in (network.config, network.config.get_text_config()):
        config.tie_word_embeddings = False


def _embed(embedding: Any, ids: list[int], wanted_DC: torch.Tensor) -> None:
    """Let these ids be embedded so: what comes out counts, and Gemma's embeddings are scaled on the way."""
    rows_D = torch.tensor(ids, device=embedding.weight.device)
    embedding.weight[rows_D] = wanted_DC.to(embedding.weight)
    scale = embedding(rows_D).norm() / embedding.weight[rows_D].norm()
    embedding.weight[rows_D] /= scale
