"""A trial run of a network: a few tokens, in steps of several rows and of single rows, so that positions, the cache and
the choice of wanted rows are tested, too."""

from itertools import pairwise

import torch
from transformers import PreTrainedModel

from stridelm.contracts import Forward
from stridelm.layout import lay_out, make_block

TRIAL_STEPS = (0, 4, 5, 6)
TRIAL_TOKENS = TRIAL_STEPS[-1]
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-1, torch.bfloat16: 5e-1}
# bfloat16 is that coarse: on a GPU the built-in model's own logits differ from float32's by a tenth. Wrong attention,
# as cuDNN's was, gave a distance of more than one.


def trial_logits(forward: Forward, network: PreTrainedModel) -> torch.Tensor:
    """The logits that a forward of this network gives after each step of the trial."""
    table, ids, actual = forward.cache.open(), trial_ids(network), []
    for start, end in pairwise(TRIAL_STEPS):
        (output,) = forward(lay_out([make_block(start, ids[start:end])]), [table])
        actual.append(output.logits_WV)
        forward.cache.keep(table, range(end - start))
    forward.cache.free(table)
    return torch.cat(actual)


def distance(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected logit."""
    return float((expected - actual).abs().max() / expected.abs().max())


def trial_ids(network: PreTrainedModel) -> list[int]:
    vocabulary = network.config.get_text_config().vocab_size
    return [token % vocabulary for token in range(1, TRIAL_TOKENS + 1)]
