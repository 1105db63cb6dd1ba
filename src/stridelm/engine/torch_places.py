"""Rollouts through transformers' layers: any family, on any device.

Every place has its own stretch of a static KV cache. A pass runs one row for each of them, and what was drawn comes
back as one tensor.

Shape letters: B places, T tokens of the cache, W tokens that are read of it, N prompts, P tokens of the prompts, G
key-value heads, H query heads, D head size, V vocabulary.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items

import torch

from stridelm.engine.places import Prompt
from stridelm.model.cuda_graph import Graphed
from stridelm.model.load import Checkpoint
from stridelm.model.passes import TextPass, attend_dense
from stridelm.model.student import OutputHead, run
from stridelm.sampling import gumbel_rows

_READ_STEP = 128
"""The cache is read up to a multiple of this, so that few shapes occur."""
_PREFILL_ROWS = 16384


class TorchPlaces:
    """Keeps `engine.places.Places`."""

    most_in_flight = 1

    def __init__(self, checkpoint: Checkpoint, places: int, width: int) -> None:
        """`width`: the most tokens of a prompt and its answer."""
        self.network = checkpoint.network
        self.head = OutputHead(checkpoint.network)
        self.places = places
        self.width = -(-width // _READ_STEP) * _READ_STEP
        self.device = checkpoint.network.device
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.ids_B, self.positions_B, self.seeds_B = (
            torch.zeros(places, dtype=torch.int64, device=self.device) for _ in range(3)
        )
        """Of each place's last token, which the next pass runs, and of its noise."""
        self.temperatures_B = torch.zeros(places, device=self.device)
        self.all_places_B = torch.arange(places, device=self.device)
        self._held: dict[int, Prompt] = {}
        self._lengths: dict[int, int] = {}
        """Of the texts, by place."""
        self._drawn_B = self.ids_B
        self._graphed = Graphed(self._decode, self.network, self.device)

    def begin(self, prompts: Mapping[int, Prompt]) -> None:
        by_length = sorted(prompts.items(), key=lambda entry: len(entry[1].tokens))
        while by_length:
            longest = len(by_length[-1][1].tokens)
            count = max(1, _PREFILL_ROWS // longest)
            group, by_length = dict(by_length[-count:]), by_length[:-count]
            self._read(group, longest)
        self._held |= prompts
        self._lengths |= {place: len(prompt.tokens) for place, prompt in prompts.items()}

    def end(self, place: int) -> None:
        """Its row goes on to be run."""
        del self._held[place], self._lengths[place]

    def launch(self) -> None:
        longest = max(self._lengths.values())
        self._reach = min(-(-longest // _READ_STEP) * _READ_STEP, self.width)
        self._samples = any(prompt.temperature for prompt in self._held.values())
        self._drawn_B = self._graphed((self._reach, self._samples))
        self._lengths = {place: length + 1 for place, length in self._lengths.items()}

    def collect(self) -> Items[Items[int]]:
        return self._drawn_B[:, None].tolist()

    def _read(self, group: dict[int, Prompt], longest: int) -> None:
        prompts = list(group.values())
        ids_NP = torch.zeros(len(prompts), longest, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids_NP[row, : len(prompt.tokens)] = torch.tensor(prompt.tokens)
        places_N = torch.tensor(list(group), device=self.device)
        texts = TextPass(len(prompts), longest)
        positions = torch.arange(longest, device=self.device).repeat(len(prompts))[None]
        run(self.network, texts, positions, input_ids=ids_NP.to(self.device).reshape(1, -1))
        for layer, parts in texts.layers.items():
            if layer not in self.layers:
                self.layers[layer] = tuple(self._memory(part) for part in parts)  # type: ignore[assignment]
            for memory, part in zip(self.layers[layer], parts, strict=True):
                memory[places_N, :, :longest] = part
        # The first step runs the last token again: it draws behind it.
        for state_B, values in (
            (self.ids_B, [prompt.tokens[-1] for prompt in prompts]),
            (self.positions_B, [len(prompt.tokens) - 1 for prompt in prompts]),
            (self.seeds_B, [prompt.seed for prompt in prompts]),
            (self.temperatures_B, [prompt.temperature for prompt in prompts]),
        ):
            state_B[places_N] = torch.tensor(values, dtype=state_B.dtype, device=self.device)

    def _decode(self) -> torch.Tensor:
        """Draw the token behind each place's position, and move on to it. Places that are nobody's draw something that
        nobody reads."""
        rows = _DecodeRows(self, self._reach)
        hidden_BC = run(self.network, rows, self.positions_B[None], input_ids=self.ids_B[None])
        logits_BV = self.head(hidden_BC)
        drawn_B = logits_BV.argmax(dim=-1)
        if self._samples:
            scores_BV = (logits_BV - logits_BV.amax(dim=-1, keepdim=True)) / self.temperatures_B[:, None].clamp(
                min=1e-4
            )
            noise_BV = gumbel_rows(self.seeds_B, self.positions_B + 1, logits_BV.shape[1])
            sampled_B = (scores_BV.double() + noise_BV).argmax(dim=-1)
            drawn_B = torch.where(self.temperatures_B > 0, sampled_B, drawn_B)
        self.ids_B.copy_(drawn_B)
        self.positions_B.copy_((self.positions_B + 1).clamp(max=self.width - 1))
        return drawn_B

    def _memory(self, like_NGPD: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = like_NGPD.shape
        return like_NGPD.new_zeros(self.places, heads, self.width, size)


class _DecodeRows:
    """One row for each place: writes its key and value, sees what its place holds."""

    def __init__(self, places: "TorchPlaces", reach: int) -> None:
        self.places = places
        self.reach = reach
        self.rows_B = places.all_places_B
        places_W = torch.arange(self.reach, device=places.device)
        self.behind_BW = places.positions_B[:, None] - places_W
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
        keys_BGTD, values_BGTD = self.places.layers[layer]
        keys_BGTD[self.rows_B, :, self.places.positions_B] = key_GBD.transpose(0, 1)
        values_BGTD[self.rows_B, :, self.places.positions_B] = value_GBD.transpose(0, 1)
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
