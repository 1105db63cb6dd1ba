"""Thousands of answers, one token per forward each: the engine for rollouts, where throughput counts and not latency.

The serving engine looks at each sequence by itself; here everything has a fixed shape. There are B places, each with
its own stretch of a static KV cache; a pass runs one row for each of them, and what was drawn comes back as one tensor.
Who has finished makes room for the next prompts, which are read together. The draws are those of `stridelm.sampling`:
an answer is the one that the serving engine gives with the same seed.

Shape letters: B places, T tokens of the cache, W tokens that are read of it, P tokens of the prompts, G key-value
heads, H query heads, D head size, V vocabulary.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from stridelm.model.cuda_graph import Graphed
from stridelm.model.load import Checkpoint
from stridelm.model.passes import TextPass, attend_dense
from stridelm.model.student import OutputHead, run
from stridelm.sampling import gumbel_rows

_READ_STEP = 128
"""The cache is read up to a multiple of this, so that few shapes occur."""
_PREFILL_ROWS = 16384


@dataclass(frozen=True, slots=True)
class Prompt:
    """One answer to be written."""

    tokens: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class _Place:
    index: int
    prompt: Prompt
    answer: list[int] = field(default_factory=list)


class RolloutEngine:
    """Runs a model that was loaded with `trainable`."""

    def __init__(self, checkpoint: Checkpoint, places: int, width: int) -> None:
        """`width`: the most tokens of a prompt and its answer."""
        self.network = checkpoint.network
        self.head = OutputHead(checkpoint.network)
        self.eos_ids = checkpoint.eos_ids
        self.places = places
        self.width = -(-width // _READ_STEP) * _READ_STEP
        self.device = checkpoint.network.device
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.ids_B, self.positions_B, self.seeds_B = (
            torch.zeros(places, dtype=torch.int64, device=self.device) for _ in range(3)
        )
        self.temperatures_B = torch.zeros(places, device=self.device)
        self.all_places_B = torch.arange(places, device=self.device)
        self._graphed = Graphed(self._decode, self.network, self.device)

    @torch.inference_mode()
    def run(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, list[int]]]:
        """Every prompt's number and answer, in the order in which they are finished."""
        waiting = deque(enumerate(prompts))
        running: dict[int, _Place] = {}
        while waiting or running:
            free = [place for place in range(self.places) if place not in running]
            # New prompts come in groups: reading a few at a time would stop everyone else too often.
            if waiting and (len(free) >= max(1, self.places // 8) or not running):
                admitted = [(place, _Place(*waiting.popleft())) for place in free[: min(len(free), len(waiting))]]
                running |= dict(admitted)
                drawn = self._read(admitted)
            else:
                drawn = dict(enumerate(self._step(list(running.values()))))
            for place, token in drawn.items():
                holder = running.get(place)
                if holder is None:
                    continue
                holder.answer.append(token)
                if token in self.eos_ids or len(holder.answer) == holder.prompt.max_tokens:
                    del running[place]
                    yield holder.index, holder.answer

    def _read(self, admitted: list[tuple[int, _Place]]) -> dict[int, int]:
        """Read prompts into their places and draw the first token of their answers."""
        drawn: dict[int, int] = {}
        by_length = sorted(admitted, key=lambda entry: len(entry[1].prompt.tokens))
        while by_length:
            longest = len(by_length[-1][1].prompt.tokens)
            count = max(1, _PREFILL_ROWS // longest)
            group, by_length = by_length[-count:], by_length[:-count]
            drawn |= self._read_group(group, longest)
        return drawn

    def _read_group(self, group: list[tuple[int, _Place]], longest: int) -> dict[int, int]:
        lengths = [len(place.prompt.tokens) for _, place in group]
        ids_NP = torch.zeros(len(group), longest, dtype=torch.int64)
        for row, (_, place) in enumerate(group):
            ids_NP[row, : lengths[row]] = torch.tensor(place.prompt.tokens)
        places_N = torch.tensor([place for place, _ in group], device=self.device)
        lengths_N = torch.tensor(lengths, device=self.device)
        texts = TextPass(len(group), longest)
        positions = torch.arange(longest, device=self.device).repeat(len(group))[None]
        hidden = run(self.network, texts, positions, input_ids=ids_NP.to(self.device).reshape(1, -1))
        for layer, parts in texts.layers.items():
            if layer not in self.layers:
                self.layers[layer] = tuple(self._memory(part) for part in parts)  # type: ignore[assignment]
            for memory, part in zip(self.layers[layer], parts, strict=True):
                memory[places_N, :, :longest] = part
        self.seeds_B[places_N] = torch.tensor([place.prompt.seed for _, place in group], device=self.device)
        self.temperatures_B[places_N] = torch.tensor(
            [place.prompt.temperature for _, place in group], device=self.device
        )
        self.positions_B[places_N] = lengths_N - 1
        last = torch.arange(len(group), device=self.device) * longest + lengths_N - 1
        samples = any(place.prompt.temperature for _, place in group)
        drawn = self._draw(hidden[last], places_N, samples).tolist()
        return dict(zip((place for place, _ in group), drawn, strict=True))

    def _step(self, running: list[_Place]) -> list[int]:
        """One more token for every place; those without an answer in the making draw something that nobody reads."""
        longest = max(len(place.prompt.tokens) + len(place.answer) for place in running)
        self._reach = min(-(-longest // _READ_STEP) * _READ_STEP, self.width)
        self._samples = any(place.prompt.temperature for place in running)
        return self._graphed((self._reach, self._samples)).tolist()

    def _decode(self) -> torch.Tensor:
        rows = _DecodeRows(self, self._reach)
        hidden = run(self.network, rows, self.positions_B[None], input_ids=self.ids_B[None])
        return self._draw(hidden, self.all_places_B, self._samples)

    def _draw(self, hidden_NC: torch.Tensor, places_N: torch.Tensor, samples: bool) -> torch.Tensor:
        """Draw the token behind each place's position, and move on to it."""
        logits_NV = self.head(hidden_NC)
        drawn_N = logits_NV.argmax(dim=-1)
        if samples:
            temperatures_N1 = self.temperatures_B[places_N, None]
            scores_NV = (logits_NV - logits_NV.amax(dim=-1, keepdim=True)) / temperatures_N1.clamp(min=1e-4)
            noise_NV = gumbel_rows(self.seeds_B[places_N], self.positions_B[places_N] + 1, logits_NV.shape[1])
            sampled_N = (scores_NV.double() + noise_NV).argmax(dim=-1)
            drawn_N = torch.where(temperatures_N1[:, 0] > 0, sampled_N, drawn_N)
        self.ids_B[places_N] = drawn_N
        self.positions_B[places_N] = (self.positions_B[places_N] + 1).clamp(max=self.width - 1)
        return drawn_N

    def _memory(self, like_NGPD: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = like_NGPD.shape
        return like_NGPD.new_zeros(self.places, heads, self.width, size)


class _DecodeRows:
    """One row for each place: writes its key and value, sees what its place holds."""

    def __init__(self, engine: RolloutEngine, reach: int) -> None:
        self.engine = engine
        self.reach = reach
        self.rows_B = engine.all_places_B
        places_W = torch.arange(self.reach, device=engine.device)
        self.behind_BW = engine.positions_B[:, None] - places_W
        self.sees_BW = self.behind_BW >= 0

    def attend(
        self,
        layer: int,
        query_HBD: torch.Tensor,
        key_GBD: torch.Tensor,
        value_GBD: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
        softcap: float | None = None,
        sinks_H: torch.Tensor | None = None,
    ) -> torch.Tensor:
        keys_BGTD, values_BGTD = self.engine.layers[layer]
        keys_BGTD[self.rows_B, :, self.engine.positions_B] = key_GBD.transpose(0, 1)
        values_BGTD[self.rows_B, :, self.engine.positions_B] = value_GBD.transpose(0, 1)
        keys_BGWD, values_BGWD = keys_BGTD[:, :, : self.reach], values_BGTD[:, :, : self.reach]
        sees_BW = self.sees_BW if window is None else self.sees_BW & (self.behind_BW < window)
        heads, places, size = query_HBD.shape
        if softcap is None and sinks_H is None:
            # The query heads of a key head pass as rows of it: nothing is repeated. Written out, because fused kernels
            # are made for many rows and were far slower here on an H200, at 1,536 places.
            grouped_BGrD = query_HBD.transpose(0, 1).reshape(places, keys_BGWD.shape[1], -1, size)
            scores_BGrW = grouped_BGrD @ keys_BGWD.transpose(2, 3) * (scaling or size**-0.5)
            weights_BGrW = scores_BGrW.masked_fill(~sees_BW[:, None, None], -torch.inf).softmax(dim=-1)
            return (weights_BGrW @ values_BGWD).reshape(places, heads, -1)
        query_BH1D = query_HBD.transpose(0, 1).unsqueeze(2)
        output = attend_dense(query_BH1D, keys_BGWD, values_BGWD, sees_BW[:, None, None], scaling, softcap, sinks_H)
        return output.squeeze(2)
