"""Masks as tokens of the vocabulary, for engines that have no kinds of rows.

Each depth of a chain gets an id with that depth's embedding; if all depths have the same embedding, they share one id.
The model must never emit such an id: so its row of the output matrix is the mean of the others, and the mean of all
logits is never above the largest. If input and output share one matrix, it is split into two for that.

Shape letters: D depths of a chain, C model width, V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stridelm.models.mask_token import MASK_IDS_KEY, MASK_NAME_KEY, MASK_TOKEN, MASKS_KEY, ROUND_VOCABULARY
from stridelm.models.preview import MASK_KEY


@torch.no_grad()
def add_mask_tokens(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, embedding_DC: torch.Tensor
) -> list[int]:
    """Give the depths their ids, in a network as transformers made it, and name them in its config. Ids that the
    tokenizer does not use are taken first; if there are too few, the vocabulary grows. The tokenizer is not changed."""
    masks_DC = embedding_DC[:1] if are_equal(embedding_DC) else embedding_DC
    vocabulary, wanted = int(network.config.get_text_config().vocab_size), len(masks_DC)
    ids = free_ids(tokenizer, vocabulary)[:wanted]
    if len(ids) < wanted:
        first = max(vocabulary, max(tokenizer.get_vocab().values()) + 1)
        ids = list(range(first, first + wanted))
        network.resize_token_embeddings(ids[-1] + 1, pad_to_multiple_of=ROUND_VOCABULARY, mean_resizing=False)
    untie(network)
    output: Any = network.get_output_embeddings()
    unused = sorted({*ids, *range(vocabulary, len(output.weight))})
    known = torch.ones(len(output.weight), dtype=torch.bool)
    known[unused] = False
    for part in (output.weight, getattr(output, "bias", None)):
        if part is not None:
            part[unused] = part[known].mean(dim=0)
    embed_as(network.get_input_embeddings(), ids, masks_DC)
    named: dict[str, Any] = {MASK_NAME_KEY: MASK_TOKEN, MASK_KEY: ids[0], MASKS_KEY: len(embedding_DC)}
    vars(network.config).pop(MASK_IDS_KEY, None)  # the base may have had its own masks
    for key, value in (named | ({MASK_IDS_KEY: ids} if len(ids) > 1 else {})).items():
        setattr(network.config, key, value)
    assert network.generation_config is not None
    suppressed: Any = network.generation_config.suppress_tokens
    network.generation_config.suppress_tokens = sorted({*(suppressed or ()), *ids})  # sampling must not draw one either
    return ids


def are_equal(embedding_DC: torch.Tensor) -> bool:
    """Whether masks have the same embedding at every depth, so that one token can stand for them all."""
    return torch.equal(embedding_DC, embedding_DC[:1].expand_as(embedding_DC))


def free_ids(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> list[int]:
    """The ids below `vocabulary` that the tokenizer does not use, in order."""
    used = set(tokenizer.get_vocab().values())
    return [token for token in range(vocabulary) if token not in used]


def untie(network: PreTrainedModel) -> None:
    """Give input and output separate matrices, if they share one."""
    output: Any = network.get_output_embeddings()
    embedding: Any = network.get_input_embeddings()
    if output.weight is embedding.weight:
        output.weight = nn.Parameter(output.weight.clone(), requires_grad=False)
    for config in (network.config, network.config.get_text_config()):
        config.tie_word_embeddings = False


@torch.no_grad()
def embed_as(embedding: Any, ids: list[int], wanted_DC: torch.Tensor) -> None:
    """Set the weights so that the layer's output for these ids is `wanted_DC`: Gemma's layer scales its weights."""
    rows_D = torch.tensor(ids, device=embedding.weight.device)
    embedding.weight[rows_D] = 1
    embedding.weight[rows_D] = wanted_DC.to(embedding.weight) / embedding(rows_D)
