"""Draws at a temperature without the host: the same as those of `stridelm.sampling`, for all rows of a step.

    find_cutoffs     which tokens of a row the filters keep: those above a score, and the first ones of that score
    perturb_scores   for every tile of the vocabulary, the best score with noise; a draw takes the best of these

A row's noise and cutoffs are its own, summed in the vocabulary's order: they do not depend on the other rows.

Shape letters: B places, W rows of logits, R rows that are drawn from, N tokens, V vocabulary, T tiles of it.
"""

# Triton's language only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
import math
from dataclasses import dataclass
from enum import IntEnum

import torch
import triton
import triton.language as tl

from stridelm import sampling
from stridelm.arrays import signed
from stridelm.backends.gpu.layers import VOCABULARY_TILE, Layout, Scores, power_of_two
from stridelm.backends.gpu.template import Template
from stridelm.params import SamplingParams

_GOLDEN = tl.constexpr(sampling.GOLDEN)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = (tl.constexpr(shift) for shift in sampling.SHIFTS)
_MULTIPLIER_1, _MULTIPLIER_2 = (tl.constexpr(multiplier) for multiplier in sampling.MULTIPLIERS[:2])
_LOWEST = tl.constexpr(0x7F800000)
"""The rank of minus infinity."""
_GREEDY = (SamplingParams(), 0, 0)
_CUTOFF_TILE = 4096
"""Tokens that `find_cutoffs` loads together."""


@triton.jit
def _mix(words):
    """SplitMix64's finaliser on uint64."""
    words = (words ^ (words >> _SHIFT_1)) * _MULTIPLIER_1
    words = (words ^ (words >> _SHIFT_2)) * _MULTIPLIER_2
    return words ^ (words >> _SHIFT_3)


@triton.jit
def key_at(keys, place, position):
    """The key of a place's noise for the token at a position."""
    key = tl.load(keys + place).to(tl.uint64, bitcast=True)
    return _mix(key + position.to(tl.uint64) + _GOLDEN)


@triton.jit
def gumbel(tokens, key):
    """Standard Gumbel noise for these token ids, in double precision."""
    words = _mix((tokens + 1).to(tl.uint64) * _GOLDEN + key)
    share = ((words >> 11).to(tl.float64) + 0.5) * (1.0 / 9007199254740992.0)
    return -tl.log(-tl.log(share))


@triton.jit
def best_logit(best, row, TILES: tl.constexpr, TILE_TILE: tl.constexpr):
    """The best logit of a row, from those of its tiles."""
    at_T = tl.arange(0, TILE_TILE)
    return tl.max(tl.load(best + row * TILES + at_T, mask=at_T < TILES, other=float("-inf")), axis=0)


@triton.jit
def _ranks(logits, first, top, inverse, V: tl.constexpr, BV: tl.constexpr):
    """Ranks of a tile of a row's tokens, the best being 0. Scores are never above 0, so their bits without the sign
    rise as the scores fall."""
    token_V = first + tl.arange(0, BV)
    logit_V = tl.load(logits + token_V, mask=token_V < V, other=float("-inf"))
    rank_V = tl.abs((logit_V - top) * inverse).to(tl.int32, bitcast=True)
    return tl.where(token_V < V, rank_V, _LOWEST + 1)


@triton.jit
def _weight(rank):
    """e^score."""
    return tl.exp(-rank.to(tl.float32, bitcast=True)).to(tl.float64)


@triton.jit
def _sum_above(logits, cutoff, top, inverse, WEIGHED: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    """The total weight, or the number, of the tokens that rank before a cutoff."""
    sum_V = tl.zeros((BV,), tl.float64)
    for first in range(0, V, BV):
        rank_V = _ranks(logits, first, top, inverse, V, BV)
        weight_V = tl.full((BV,), 1.0, tl.float64)
        if WEIGHED:
            weight_V = _weight(rank_V)
        sum_V += tl.where(rank_V < cutoff, weight_V, 0.0)
    return tl.sum(sum_V, axis=0)


@triton.jit
def _cutoff(logits, most, top, inverse, WEIGHED: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    """The rank at which the tokens, best first, sum up to `most`, found bit by bit: the last rank before which the sum
    is less."""
    found = tl.full((), 0, tl.int32)
    for bit in range(31):
        higher = found + (1 << (30 - bit))
        if _sum_above(logits, higher, top, inverse, WEIGHED, V, BV) < most:
            found = higher
    return found


@triton.jit
def _last_kept(logits, cutoff, most, top, inverse, V: tl.constexpr, BV: tl.constexpr):
    """The last of the equal tokens at a cutoff that is kept: what comes before it sums up to less than `most`."""
    weight = _weight(cutoff)
    before = _sum_above(logits, cutoff, top, inverse, True, V, BV)
    last = tl.full((), 0, tl.int32)
    for first in range(0, V, BV):
        is_equal_V = _ranks(logits, first, top, inverse, V, BV) == cutoff
        before_V = before + (tl.cumsum(is_equal_V.to(tl.int32), axis=0) - 1).to(tl.float64) * weight
        token_V = first + tl.arange(0, BV)
        last = tl.maximum(last, tl.max(tl.where(is_equal_V & (before_V < most), token_V, 0), axis=0))
        before += tl.sum(is_equal_V.to(tl.int32), axis=0).to(tl.float64) * weight
    return last


@triton.jit
def find_cutoffs(
    logits, best, inverses, top_ks, top_ps, floors, least, last,
    NODES: tl.constexpr, V: tl.constexpr, TILES: tl.constexpr, TILE_TILE: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One node of one place: top-k (equal scores stay together), top-p of what is left, then min-p."""
    place, node = tl.program_id(0), tl.program_id(1)
    row = place * NODES + node
    inverse, top_k, top_p = tl.load(inverses + place), tl.load(top_ks + place), tl.load(top_ps + place)
    top = best_logit(best, row, TILES, TILE_TILE)
    own = logits + row.to(tl.int64) * V
    cutoff = tl.full((), _LOWEST, tl.int32)
    kept = tl.full((), V, tl.int32)
    if (top_k > 0) & (top_k < V):
        cutoff = _cutoff(own, top_k.to(tl.float64), top, inverse, False, V, BV)
    if top_p < 1:
        most = top_p * _sum_above(own, cutoff + 1, top, inverse, True, V, BV)
        cutoff = _cutoff(own, most, top, inverse, True, V, BV)
        kept = _last_kept(own, cutoff, most, top, inverse, V, BV)
    score = -cutoff.to(tl.float32, bitcast=True)
    floor = tl.load(floors + place)
    tl.store(least + place * NODES + node, tl.maximum(score, floor))
    tl.store(last + place * NODES + node, tl.where(floor > score, V, kept))


@triton.jit
def perturb_scores(
    logits, best, best_tokens, ends_at, starts, depths, inverses, keys, least, last, noisy, noisy_tokens, real,
    NODES: tl.constexpr, COUNT: tl.constexpr, V: tl.constexpr, TILES: tl.constexpr,
    TILE_TILE: tl.constexpr, VT: tl.constexpr, OF_MASKS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """One tile of one of the COUNT rows that a place draws from: its nodes, or the masks at which its walk ended. A
    greedy place has no noise."""
    number, tile = tl.program_id(0), tl.program_id(1)
    place = number // COUNT
    inverse = tl.load(inverses + place)
    if OF_MASKS:
        depth = number % COUNT
        row = real + (place * NODES + tl.load(ends_at + place)) * COUNT + depth
    else:
        row = number
        depth = tl.load(depths + row)
    to = number * TILES + tile
    score = tl.load(best + row * TILES + tile).to(tl.float64)
    token = tl.load(best_tokens + row * TILES + tile)
    if inverse > 0:
        top = best_logit(best, row, TILES, TILE_TILE)
        key = key_at(keys, place, tl.load(starts + place) + 1 + depth)
        token_V = tile * VT + tl.arange(0, VT)
        logit_V = tl.load(logits + row.to(tl.int64) * V + token_V, mask=token_V < V, other=float("-inf"))
        score_V = (logit_V - top) * inverse
        if FILTERS:
            lowest = tl.load(least + number)
            is_kept_V = (score_V > lowest) | ((score_V == lowest) & (token_V <= tl.load(last + number)))
            score_V = tl.where(is_kept_V, score_V, float("-inf"))
        score, at = tl.max(score_V.to(tl.float64) + gumbel(token_V, key), axis=0, return_indices=True)
        token = tile * VT + at
    tl.store(noisy + to, score)
    tl.store(noisy_tokens + to, token)


class Kind(IntEnum):
    """What the draws of a step need: each kind has a graph of its own."""

    GREEDY = 0
    SAMPLED = 1
    FILTERED = 2

    @classmethod
    def of(cls, params: SamplingParams) -> "Kind":
        if params.temperature == 0:
            return cls.GREEDY
        filters = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        return cls.FILTERED if filters else cls.SAMPLED


@dataclass(frozen=True, slots=True)
class Noisy:
    """For some rows, every tile's best score with noise, in double precision, and its token."""

    best_RT: torch.Tensor
    tokens_RT: torch.Tensor


class Drawing:
    """The sampling parameters of each place, on the device."""

    def __init__(self, places: int, device: torch.device) -> None:
        self.inverses_B = torch.zeros(places, device=device)
        """1 / temperature; 0 is greedy."""
        self.keys_B = torch.zeros(places, dtype=torch.int64, device=device)
        """Keys of the noise, from seed and choice."""
        self.top_ks_B = torch.zeros(places, dtype=torch.int32, device=device)
        self.top_ps_B = torch.ones(places, dtype=torch.float64, device=device)
        self.floors_B = torch.full((places,), -math.inf, device=device)
        """Min-p: how far below the best score a token may be."""
        self._set = [_GREEDY] * places

    @property
    def kind(self) -> Kind:
        return max(Kind.of(params) for params, _, _ in self._set)

    def begin(self, place: int, params: SamplingParams, seed: int, choice: int) -> None:
        wanted = (params, seed, choice) if params.temperature else _GREEDY
        if wanted == self._set[place]:
            return
        self._set[place] = params, seed, choice = wanted
        self.inverses_B[place] = 1 / params.temperature if params.temperature else 0.0
        self.keys_B[place] = signed(sampling.noise_key(seed, choice))
        self.top_ks_B[place] = min(params.top_k, 2**31 - 1)
        self.top_ps_B[place] = params.top_p
        self.floors_B[place] = math.log(params.min_p) if params.min_p else -math.inf

    def end(self, place: int) -> None:
        self.begin(place, *_GREEDY)

    def at_nodes(self, scores: Scores, layout: Layout, template: Template) -> Noisy:
        """What the places draw from at each node."""
        least_R = last_R = None
        if self.kind == Kind.FILTERED:
            least_R, last_R = self.cutoffs(scores.logits_WV, scores.best_WT, template)
        return self._perturb(scores, layout, template, None, least_R, last_R)

    def cutoffs(
        self, logits_WV: torch.Tensor, best_WT: torch.Tensor, template: Template
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """For every node, the lowest score that its place's filters keep, and the last token of that score."""
        vocabulary, tiles = logits_WV.shape[1], best_WT.shape[1]
        places, nodes = len(self.inverses_B), template.nodes
        least_R = logits_WV.new_empty(places * nodes)
        last_R = torch.empty(places * nodes, dtype=torch.int32, device=logits_WV.device)
        find_cutoffs[(places, nodes)](
            logits_WV, best_WT, self.inverses_B, self.top_ks_B, self.top_ps_B, self.floors_B, least_R, last_R,
            NODES=nodes, V=vocabulary, TILES=tiles, TILE_TILE=power_of_two(tiles),
            BV=min(_CUTOFF_TILE, power_of_two(vocabulary)), num_warps=16,
        )  # fmt: skip
        return least_R, last_R

    def at_masks(self, scores: Scores, layout: Layout, template: Template, ends_at_B: torch.Tensor) -> Noisy:
        """What the next drafts are chosen from, after the new tokens are appended. Filters are left out."""
        return self._perturb(scores, layout, template, ends_at_B, None, None)

    def _perturb(
        self,
        scores: Scores,
        layout: Layout,
        template: Template,
        ends_at_B: torch.Tensor | None,
        least_R: torch.Tensor | None,
        last_R: torch.Tensor | None,
    ) -> Noisy:
        vocabulary, tiles = scores.logits_WV.shape[1], scores.best_WT.shape[1]
        count = template.nodes if ends_at_B is None else template.masks
        rows = len(self.inverses_B) * count
        device = self.inverses_B.device
        noisy = Noisy(
            torch.empty(rows, tiles, dtype=torch.float64, device=device),
            torch.empty(rows, tiles, dtype=torch.int32, device=device),
        )
        perturb_scores[(rows, tiles)](
            scores.logits_WV, scores.best_WT, scores.best_tokens_WT, ends_at_B, layout.starts_B, layout.depths_M,
            self.inverses_B, self.keys_B, least_R, last_R, noisy.best_RT, noisy.tokens_RT,
            len(self.inverses_B) * template.nodes,
            NODES=template.nodes, COUNT=count, V=vocabulary, TILES=tiles,
            TILE_TILE=power_of_two(tiles), VT=VOCABULARY_TILE, OF_MASKS=ends_at_B is not None,
            FILTERS=least_R is not None,
        )  # fmt: skip
        return noisy
