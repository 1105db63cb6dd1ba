"""Reads the prompts of rollouts with the GPU's kernels. Each place of a stepper keeps its own pages of the cache."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items

from transformers import PreTrainedModel

from stridelm.backends.gpu.forward import GpuForward
from stridelm.backends.gpu.weights import Weights
from stridelm.cache.kv_cache import BLOCK_SIZE, blocks_for
from stridelm.layout import lay_out, make_block
from stridelm.params import InputError

_MAX_ROWS = 16384
"""Maximum number of prompt rows that are read in one step."""


class GpuPromptReader:
    """The cache of a number of places. Implements `train.rollout_engine.PromptReader`."""

    def __init__(self, network: PreTrainedModel, weights: Weights, places: int, width: int) -> None:
        """`weights` were stacked from the network; `width`: maximum number of tokens per text."""
        room = blocks_for(width) * BLOCK_SIZE + BLOCK_SIZE
        # Prompts come in many shapes, long ones included: graphs would cost more memory than they save time.
        try:
            self.forward = GpuForward(network, weights, places * room, captures=False)
        except InputError as error:
            raise InputError(
                f"there is no memory for {places} answers at once, with {width} tokens each: write fewer "
                "(--rollout-batch)"
            ) from error
        self.tables = [self.forward.cache.open(room) for _ in range(places)]

    def read(self, prompts: Mapping[int, Items[int]]) -> Mapping[int, Items[int]]:
        for group in _groups(prompts):
            tables = [self.tables[place] for place in group]
            self.forward(lay_out([make_block(0, tokens, reads_logits=False) for tokens in group.values()]), tables)
            for table in tables:
                # From here on only the device knows which tokens are in its blocks.
                self.forward.cache.truncate(table, 0)
        return {place: self.tables[place].blocks for place in prompts}


def _groups(prompts: Mapping[int, Items[int]]) -> Iterator[dict[int, Items[int]]]:
    """Prompts to be read together, grouped by length: the longest of a group decides how far attention looks."""
    group: dict[int, Items[int]] = {}
    rows = 0
    for place, tokens in sorted(prompts.items(), key=lambda entry: len(entry[1])):
        if not tokens:
            continue
        if group and rows + len(tokens) > _MAX_ROWS:
            yield group
            group, rows = {}, 0
        group[place] = tokens
        rows += len(tokens)
    if group:
        yield group
