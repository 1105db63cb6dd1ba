"""Texts side by side in a static KV cache, through transformers' layers: any family, on any device.

There are B places, each with a fixed part of the cache: T tokens of every layer's keys and values. Prompts are read
into places. A step then runs P rows for each place; each row writes its keys and values at its position, and sees its
place's tokens up to itself:

    place 0   a b c d e [f]              P = 1: the row of f sees a .. f
    place 1   a b [c d e]                P = 3: the row of d sees a .. d

Anything in a place behind its rows is left over from earlier texts, and no row sees it.

Shape letters: B places, P rows of a place, X = B x P, T tokens of a place, W tokens read from it, N prompts, L
tokens of the longest prompt, G key-value heads, H query heads, r query heads of a key-value head, D head size, C model
width.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items

import torch
from transformers import PreTrainedModel

from stridelm.backends.torch.attention import AttentionInput
from stridelm.train.students.passes import TextPass, attend_dense
from stridelm.train.students.student import run

_READ_STEP = 128
"""The cache is read up to a multiple of this many tokens, so that few shapes occur."""
_PREFILL_ROWS = 16384
"""Maximum number of rows, padding included, of prompts that are read together."""


class DenseTexts:
    """The cache of B places. Implements `rollout_engine.PromptReader`."""

    def __init__(self, network: PreTrainedModel, places: int, width: int) -> None:
        """`width`: maximum number of tokens of a text, plus the rows that a step may write behind it."""
        self.network, self.places = network, places
        self.width = _round_up(width)
        self.device: torch.device = network.device
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Keys and values, B x G x T x D each."""
        self.places_B1 = torch.arange(places, device=self.device)[:, None]

    @torch.inference_mode()
    def read(self, prompts: Mapping[int, Items[int]]) -> Mapping[int, Items[int]]:
        """Each place has a single block, whose number is the place's own."""
        for group in _groups(prompts):
            self._read(group)
        return {place: (place,) for place in prompts}

    def _read(self, group: Mapping[int, Items[int]]) -> None:
        longest = max(map(len, group.values()))
        ids_NL = torch.zeros(len(group), longest, dtype=torch.int64)
        for row, tokens in enumerate(group.values()):
            ids_NL[row, : len(tokens)] = torch.tensor(tokens)
        places_N = torch.tensor(list(group), device=self.device)
        texts = TextPass(len(group), longest)
        positions = torch.arange(longest, device=self.device).repeat(len(group))[None]
        run(self.network, texts, positions, input_ids=ids_NL.to(self.device).reshape(1, -1))
        for layer, parts_NGLD in texts.layers.items():
            for held_BGTD, part_NGLD in zip(self.memory(layer, *parts_NGLD), parts_NGLD, strict=True):
                held_BGTD[places_N, :, :longest] = part_NGLD

    def memory(self, layer: int, *like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values. The first call allocates them with the shapes of `like`: keys and values,
        ... x G x ... x D."""
        if layer not in self.layers:
            keys, values = (part.new_zeros(self.places, part.shape[-3], self.width, part.shape[-1]) for part in like)
            self.layers[layer] = keys, values
        return self.layers[layer]

    def reach(self, longest: int) -> int:
        """Number of tokens of each place that must be read if the longest text has `longest` tokens."""
        return min(_round_up(longest), self.width)

    def run(self, ids_BP: torch.Tensor, starts_B: torch.Tensor, reach: int) -> torch.Tensor:
        """Run P rows per place, starting at these positions. Returns the final hidden states, B x P x C."""
        positions_BP = starts_B[:, None] + torch.arange(ids_BP.shape[1], device=self.device)
        rows = _Rows(self, positions_BP, reach)
        hidden_XC = run(self.network, rows, positions_BP.reshape(1, -1), input_ids=ids_BP.reshape(1, -1))
        return hidden_XC.view(*ids_BP.shape, -1)

    def as_pass(self, reach: int) -> TextPass:
        """The cached texts, in the form that chains of masks read."""
        texts = TextPass(self.places, reach)
        for layer, (keys_BGTD, values_BGTD) in self.layers.items():
            texts.layers[layer] = keys_BGTD[:, :, :reach], values_BGTD[:, :, :reach]
        return texts


class _Rows:
    """P rows for each place."""

    def __init__(self, texts: DenseTexts, positions_BP: torch.Tensor, reach: int) -> None:
        self.texts, self.positions_BP, self.reach = texts, positions_BP, reach
        self.behind_BPW = positions_BP[..., None] - torch.arange(reach, device=positions_BP.device)
        self.sees_BPW = self.behind_BPW >= 0

    def attend(self, given: AttentionInput) -> torch.Tensor:
        """X x H x D."""
        query_BPHD, key_BPGD, value_BPGD = (
            part.unflatten(1, self.positions_BP.shape).permute(1, 2, 0, 3) for part in given.projections
        )
        memory = self.texts.memory(given.layer, key_BPGD.transpose(1, 2), value_BPGD.transpose(1, 2))
        for held_BGTD, part_BPGD in zip(memory, (key_BPGD, value_BPGD), strict=True):
            held_BGTD[self.texts.places_B1, :, self.positions_BP] = part_BPGD
        keys_BGWD, values_BGWD = (held_BGTD[:, :, : self.reach] for held_BGTD in memory)
        window, rule = given.window, given.rule
        sees_BPW = self.sees_BPW if window is None else self.sees_BPW & (self.behind_BPW < window)
        query_BHPD = query_BPHD.transpose(1, 2)
        if query_BHPD.shape[2] == 1 and rule.is_plain:
            output_BHPD = _attend_single(query_BHPD, keys_BGWD, values_BGWD, sees_BPW, rule.scaling)
        else:
            output_BHPD = attend_dense(query_BHPD, keys_BGWD, values_BGWD, sees_BPW[:, None], rule)
        return output_BHPD.transpose(1, 2).flatten(0, 1)


def _attend_single(
    query_BH1D: torch.Tensor,
    keys_BGWD: torch.Tensor,
    values_BGWD: torch.Tensor,
    sees_B1W: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """Attention for one row per place. The query heads of a key-value head are treated as its rows, so keys and values
    are not repeated. Written out, because fused kernels are made for many rows and were far slower here on an H200, at
    1,536 places."""
    places, heads, _, size = query_BH1D.shape
    grouped_BGrD = query_BH1D.reshape(places, keys_BGWD.shape[1], -1, size)
    scores_BGrW = grouped_BGrD @ keys_BGWD.transpose(2, 3) * (scaling or size**-0.5)
    weights_BGrW = scores_BGrW.masked_fill(~sees_B1W[:, None], -torch.inf).softmax(dim=-1)
    return (weights_BGrW @ values_BGWD).reshape(places, heads, 1, -1)


def _groups(prompts: Mapping[int, Items[int]]) -> Iterator[dict[int, Items[int]]]:
    """Groups of prompts of similar length, to be read together: each group is padded to its longest prompt. Empty
    prompts are left out."""
    by_length = sorted(((place, tokens) for place, tokens in prompts.items() if tokens), key=lambda each: len(each[1]))
    while by_length:
        count = max(1, _PREFILL_ROWS // len(by_length[-1][1]))
        yield dict(by_length[-count:])
        del by_length[-count:]


def _round_up(tokens: int) -> int:
    return -(-tokens // _READ_STEP) * _READ_STEP
