"""The trial of a network: a few tokens in steps of several and of single rows, so that positions, the cache and the
choice of wanted rows are on trial, too."""

from itertools import pairwise

import torch
from transformers import PreTrainedModel

from stridelm.contracts import Forward
from stridelm.layout import lay_out, make_block

TRIAL_STEPS = (0, 4, 5, 6)
TRIAL_TOKENS = TRIAL_STEPS[-1]
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-1, torch.bfloat16: 5e-1}
# bfloat16 is that coarse: the built-in model's own logits on a GPU are a tenth away from float32's. Wrong attention, as
# cuDNN's was, showed as more than one.


def trial_logits(forward: Forward, network: PreTrainedModel) -> torch.Tensor:
    """What a forward of this network says behind each step of the trial."""
    table, ids, actual = forward.cache.open(), trial_ids(network), []
    for start, end in pairwise(TRIAL_STEPS):
        (output,) = forward(lay_out([make_block(start, ids[start:end])]), [table])
        actual.append(output.logits_WV)
        forward.cache.keep(table, range(end - start))
    forward.cache.free(table)
    return torch.cat(actual)


def distance(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference, the largest logit being 1."""
    return float((expected - actual).abs().max() / expected.abs().max())


def trial_ids(network: PreTrainedModel) -> list[int]:
    vocabulary = network.config.get_text_config().vocab_size
    return [token % vocabulary for token in range(1, TRIAL_TOKENS + 1)]
