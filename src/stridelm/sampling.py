"""From logits to a token: the only place that draws.

A draw is a pure function of (logits, parameters, tokens before it, seed, choice). The noise at a position is keyed by
(seed, choice, position, token id) and never by rank in a filtered list, so the draw is the same whether the logits came
from a pass over one row or over a tree: Gumbel-max over the penalised, filtered scores.

Shape letters: V vocabulary, W wanted rows.
"""

import math
from collections.abc import Sequence as Items
from typing import Protocol

import torch

from stridelm.params import InputError, SamplingParams
from stridelm.types import Alternatives, Sequence

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


class Draw(Protocol):
    """How a sequence draws from the rows of a step."""

    def __call__(self, row: int, before: Items[int], proposed: Items[int] = ()) -> int:
        """From a wanted row and all tokens before the drawn one to a token. One that is proposed in its place may do
        instead, if the sequence's decoder has a tolerance."""
        ...


def drawer(logits_WV: torch.Tensor, sequence: Sequence, tolerance: float = 0.0) -> Draw:
    """How `sequence` draws from these rows. Plain greedy rows are decided together, the others when asked for."""
    params = sequence.params
    if params.is_plain_greedy and tolerance == 0:
        best_W = logits_WV.argmax(dim=-1).tolist()
        return lambda row, before, proposed=(): best_W[row]

    def draw_row(row: int, before: Items[int], proposed: Items[int] = ()) -> int:
        scores_V = perturbed_scores(
            logits_WV[row], params, before, sequence.prompt_length, seed=sequence.seed, choice=sequence.choice
        )
        return best_or_tolerated(scores_V, proposed, tolerance)

    return draw_row


def draw(
    logits_V: torch.Tensor, params: SamplingParams, before: Items[int], prompt_length: int, *, seed: int, choice: int
) -> int:
    """The token at position len(before)."""
    return int(perturbed_scores(logits_V, params, before, prompt_length, seed=seed, choice=choice).argmax())


def perturbed_scores(
    logits_V: torch.Tensor, params: SamplingParams, before: Items[int], prompt_length: int, *, seed: int, choice: int
) -> torch.Tensor:
    """What a draw takes the best of: penalised logits; at a temperature, filtered ones over it, with their noise."""
    scores_V = penalise(logits_V.float(), params, before, prompt_length)
    best = scores_V.max()
    if best == -torch.inf:
        raise InputError("logit_bias bans every token: leave at least one")
    if params.temperature == 0:
        return scores_V
    scores_V = keep_likely((scores_V - best) / params.temperature, params)
    return scores_V.double() + gumbel(seed, choice, len(before), len(scores_V), device=scores_V.device)


def best_or_tolerated(scores_V: torch.Tensor, proposed: Items[int], tolerance: float) -> int:
    """The best token; if it is not proposed, the best of the proposed ones whose score is at most -log(1 - tolerance)
    below its own. What a filter or a ban dropped is infinitely far below."""
    best = int(scores_V.argmax())
    if tolerance == 0 or not proposed or best in proposed:
        return best
    nearest = max(proposed, key=lambda token: float(scores_V[token]))
    return nearest if scores_V[nearest] >= scores_V[best].double() + math.log1p(-tolerance) else best


def draw_among(tokens_N: torch.Tensor, logits_V: torch.Tensor, sequence: Sequence, before: Items[int]) -> int:
    """`draw` with all tokens but these left out: for drafts, which may be wrong and must be quick."""
    return int(tokens_N[perturbed_among(tokens_N, logits_V[tokens_N], sequence, before).argmax()])


def perturbed_among(
    tokens_N: torch.Tensor, logits_N: torch.Tensor, sequence: Sequence, before: Items[int]
) -> torch.Tensor:
    """`perturbed_scores`, were these all tokens. Where all of them are banned, what they have is as good as any."""
    params = sequence.params
    if params.changes_logits:
        size = max([int(tokens_N.max()), *before]) + 1
        logits_V = logits_N.new_full((size,), -torch.inf).scatter(0, tokens_N, logits_N)
        logits_N = penalise(logits_V, params, before, sequence.prompt_length)[tokens_N]
    best = logits_N.max()
    if params.temperature == 0 or best == -torch.inf:
        return logits_N
    noise_N = gumbel_of(tokens_N, sequence.seed, sequence.choice, len(before))
    return keep_likely((logits_N - best) / params.temperature, params).double() + noise_N


def penalise(logits_V: torch.Tensor, params: SamplingParams, before: Items[int], prompt_length: int) -> torch.Tensor:
    """Repetition penalty over all tokens before, presence and frequency over the answer alone, then the bias."""
    if not params.changes_logits:
        return logits_V
    scores_V = logits_V.clone()
    size = len(scores_V)
    if params.repetition_penalty != 1:
        seen = torch.tensor(
            sorted({token for token in before if token < size}), dtype=torch.int64, device=scores_V.device
        )
        held = scores_V[seen]
        scores_V[seen] = torch.where(held > 0, held / params.repetition_penalty, held * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        written = [token for token in before[prompt_length:] if token < size]
        counts_V = torch.bincount(torch.tensor(written, dtype=torch.int64), minlength=size).to(scores_V)
        scores_V -= params.presence_penalty * (counts_V > 0) + params.frequency_penalty * counts_V
    for token, bias in params.logit_bias.items():
        if token < size:
            scores_V[token] += bias
    return scores_V


def keep_likely(scores_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Top-k (equal scores stay together), top-p of what is left, then min-p; what is dropped becomes -inf."""
    if 0 < params.top_k < len(scores_V):
        least = scores_V.topk(params.top_k).values[-1]
        scores_V = scores_V.masked_fill(scores_V < least, -torch.inf)
    if params.top_p < 1:
        sorted_V, order_V = scores_V.softmax(dim=-1).sort(descending=True, stable=True)
        dropped_V = sorted_V.cumsum(dim=-1) - sorted_V >= params.top_p
        scores_V = scores_V.masked_fill(dropped_V.new_zeros(len(scores_V)).scatter(0, order_V, dropped_V), -torch.inf)
    if params.min_p > 0:
        probability_V = scores_V.softmax(dim=-1)
        scores_V = scores_V.masked_fill(probability_V < params.min_p * probability_V.max(), -torch.inf)
    return scores_V


def confidence(logits_WV: torch.Tensor, tokens: Items[int]) -> tuple[float, ...]:
    """The model's own probability of each row's token: no temperature, filter or penalty. In double precision: the
    logarithm of one that float32 would round to 0 is still right."""
    token_W1 = torch.tensor(tokens, device=logits_WV.device).unsqueeze(1)
    return tuple(logits_WV.log_softmax(dim=-1).gather(1, token_W1).squeeze(1).double().exp().tolist())


def likeliest(logits_WV: torch.Tensor, count: int) -> tuple[Alternatives, ...]:
    """Each row's so many likeliest tokens by the model's own probability, best first."""
    if not count:
        return ()
    best = logits_WV.log_softmax(dim=-1).topk(min(count, logits_WV.shape[1]))
    return tuple(
        tuple(zip(tokens, probabilities, strict=True))
        for tokens, probabilities in zip(best.indices.tolist(), best.values.double().exp().tolist(), strict=True)
    )


def gumbel(seed: int, choice: int, position: int, size: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
    """Standard Gumbel noise for token ids 0 .. size - 1."""
    return gumbel_of(torch.arange(size, device=device), seed, choice, position)


def gumbel_of(tokens_N: torch.Tensor, seed: int, choice: int, position: int) -> torch.Tensor:
    """Standard Gumbel noise for these token ids: SplitMix64 with the token id as its counter."""
    key = _mix(_mix(_mix(seed) + choice) + position)
    return _as_gumbel(_mix_tensor((tokens_N + 1) * _signed(_GOLDEN) + _signed(key)))


def gumbel_rows(seeds_B: torch.Tensor, positions_B: torch.Tensor, size: int) -> torch.Tensor:
    """`gumbel` for many rows at once (int64, seeds below 2**63, choice 0): B x size."""
    key_B = seeds_B
    for part in (0, 0, positions_B):  # seed, choice, position
        key_B = _mix_tensor(key_B + part + _signed(_GOLDEN))
    counter_V = torch.arange(1, size + 1, dtype=torch.int64, device=seeds_B.device)
    return _as_gumbel(_mix_tensor(counter_V * _signed(_GOLDEN) + key_B[:, None]))


def _as_gumbel(bits: torch.Tensor) -> torch.Tensor:
    uniform = ((bits >> 11 & 2**53 - 1).double() + 0.5) * 2.0**-53
    return -(-uniform.log()).log()


def _mix(word: int) -> int:
    """SplitMix64's step and finaliser on one Python int."""
    word = (word + _GOLDEN) & _WORD
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        word = ((word ^ (word >> shift)) * multiplier) & _WORD
    return word


def _mix_tensor(words: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser on int64 words: products wrap, and the shift's sign bits are cut off."""
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        words = (words ^ (words >> shift & 2 ** (64 - shift) - 1)) * _signed(multiplier)
    return words


def _signed(word: int) -> int:
    """The int64 with the same bits."""
    return word - 2**64 if word >= 2**63 else word
