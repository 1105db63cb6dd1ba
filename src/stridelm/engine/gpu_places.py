"""Rollouts by the GPU's kernels: steps are those of serving without drafts, each a CUDA graph that the host runs ahead
of. A place has its own pages of the cache for good."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items

from stridelm.contracts import Continuation
from stridelm.engine.places import Prompt
from stridelm.layout import lay_out, make_block
from stridelm.model.gpu.forward import GpuForward
from stridelm.model.gpu.weights import Weights
from stridelm.model.kv_cache import BLOCK_SIZE, blocks_for
from stridelm.model.load import Checkpoint
from stridelm.params import InputError, SamplingParams

_ROWS = 16384
"""Of prompts that are read together."""


class GpuPlaces:
    """Keeps `engine.places.Places`."""

    def __init__(self, checkpoint: Checkpoint, weights: Weights, places: int, width: int) -> None:
        """`weights` were stacked from the checkpoint's network; `width`: the most tokens of a prompt and its answer."""
        room = blocks_for(width) * BLOCK_SIZE + BLOCK_SIZE
        # Prompts come in many shapes, and long ones: a graph of each would hold more memory than it saves time.
        try:
            self.forward = GpuForward(checkpoint.network, weights, places * room, captures=False)
        except InputError as error:
            raise InputError(
                f"there is no memory for {places} answers at once, with {width} tokens each: write fewer "
                "(--rollout-batch)"
            ) from error
        self.tables = [self.forward.cache.open(room) for _ in range(places)]
        self.stepper = self.forward.stepper(0, places, checkpoint.eos_ids)
        self.max_in_flight = self.stepper.max_in_flight

    def begin(self, prompts: Mapping[int, Prompt]) -> None:
        """The last token of a prompt is the first step's to read: it draws behind it."""
        for group in _groups({place: prompt.tokens[:-1] for place, prompt in prompts.items()}):
            tables = [self.tables[place] for place, _ in group]
            self.forward(lay_out([make_block(0, tokens, reads_logits=False) for _, tokens in group]), tables)
            for table in tables:
                # Which tokens are in its blocks only the device knows from here on.
                self.forward.cache.truncate(table, 0)
        for place, prompt in prompts.items():
            text = Continuation(
                cached=len(prompt.tokens) - 1,
                pending=prompt.tokens[-1],
                room=prompt.max_tokens,
                blocks=self.tables[place].blocks,
                params=SamplingParams(temperature=prompt.temperature),
                seed=prompt.seed,
            )
            self.stepper.begin(place, text)

    def end(self, place: int) -> None:
        self.stepper.end(place)

    def launch(self) -> None:
        self.stepper.launch()

    def collect(self) -> Items[Items[int]]:
        return [emitted.tokens for emitted in self.stepper.collect()]


def _groups(texts: Mapping[int, tuple[int, ...]]) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
    """Texts that are read together, short ones with short ones: the longest decides how far attention looks."""
    group: list[tuple[int, tuple[int, ...]]] = []
    rows = 0
    for place, tokens in sorted(texts.items(), key=lambda entry: len(entry[1])):
        if not tokens:
            continue
        if group and rows + len(tokens) > _ROWS:
            yield group
            group, rows = [], 0
        group.append((place, tokens))
        rows += len(tokens)
    if group:
        yield group
