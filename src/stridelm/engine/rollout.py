"""Thousands of answers, one token per step each: the engine for rollouts, where throughput counts and not latency.

The serving engine looks at each sequence by itself; here everything has a fixed shape. There are B places, each with
its own stretch of a KV cache; a step runs one row for each of them. Who has finished makes room for the next prompts,
which are read together. The draws are those of `stridelm.sampling`: an answer is the one that the serving engine gives
with the same seed.

Where the GPU's kernels run the model, the steps are those that serving has (`engine.gpu_places`), and the host is one
behind them; elsewhere they go through transformers' layers (`engine.torch_places`).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from stridelm.engine.places import Places, Prompt
from stridelm.engine.torch_places import TorchPlaces
from stridelm.model.gpu.load import stacked
from stridelm.model.gpu.weights import Weights
from stridelm.model.load import Checkpoint


@dataclass(eq=False, slots=True)
class _Answer:
    index: int
    prompt: Prompt
    tokens: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.prompt.max_tokens - len(self.tokens)


class RolloutEngine:
    """Runs a model that was loaded with `trainable`."""

    def __init__(self, checkpoint: Checkpoint, places: int, width: int, *, weights: Weights | None = None) -> None:
        """`width`: the most tokens of a prompt and its answer. `weights`: the network's, for the GPU's kernels; where
        none are given, these run it if they can."""
        self.count, self.eos_ids = places, checkpoint.eos_ids
        self.places = _places(checkpoint, places, width, weights)

    @torch.inference_mode()
    def run(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, list[int]]]:
        """Every prompt's number and answer, in the order in which they are finished."""
        waiting = deque(_Answer(index, prompt) for index, prompt in enumerate(prompts))
        running: dict[int, _Answer] = {}
        launched: deque[dict[int, _Answer]] = deque()
        """Of every step in flight, whose places they were."""
        try:
            while waiting or running:
                running |= self._admit(waiting, running)
                while len(launched) < self.places.most_in_flight and any(
                    answer.room > len(launched) for answer in running.values()
                ):
                    self.places.launch()
                    launched.append(dict(running))
                written = self.places.collect()
                for place, answer in launched.popleft().items():
                    if running.get(place) is not answer:
                        continue  # it was whole before that step
                    assert written[place], "a text that goes on got nothing"
                    answer.tokens.extend(written[place])
                    if answer.tokens[-1] in self.eos_ids or answer.room == 0:
                        del running[place]
                        self.places.end(place)
                        yield answer.index, answer.tokens
        finally:
            # Whoever asks for no more answers leaves the places to the next.
            for _ in launched:
                self.places.collect()
            for place in running:
                self.places.end(place)

    def _admit(self, waiting: deque[_Answer], running: dict[int, _Answer]) -> dict[int, _Answer]:
        """Who begins now, and where. In groups: reading a few prompts at a time would stop everyone else too often."""
        free = [place for place in range(self.count) if place not in running]
        if not waiting or (len(free) < max(1, self.count // 8) and running):
            return {}
        admitted = {place: waiting.popleft() for place in free[: len(waiting)]}
        self.places.begin({place: answer.prompt for place, answer in admitted.items()})
        return admitted


def _places(checkpoint: Checkpoint, places: int, width: int, weights: Weights | None) -> Places:
    if weights is None and (found := stacked(checkpoint.network, None)) is not None:
        weights = found.weights
    if weights is None:
        return TorchPlaces(checkpoint, places, width)
    from stridelm.engine.gpu_places import GpuPlaces

    return GpuPlaces(checkpoint, weights, places, width)
