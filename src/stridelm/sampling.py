"""From logits to a token: the only place that draws.

A draw is a pure function of (logits, parameters, tokens before it, grammar, seed, choice). The noise at a position is
keyed by (seed, choice, position, token id) and never by rank in a filtered list, so the draw is the same whether the
logits came from a pass over one row or over a tree: Gumbel-max over the penalised, filtered scores. What the grammar
forbids is left out after the penalties and before the filters, which choose among what is left.

Shape letters: V vocabulary, W wanted rows.
"""

import math
from collections.abc import Sequence as Items
from typing import Protocol

import numpy as np

from stridelm import arrays
from stridelm.contracts import Grammar
from stridelm.params import InputError, SamplingParams
from stridelm.types import Alternatives, Array, Sequence

_WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 1)
SHIFTS = (30, 27, 31)
DRAFT_CANDIDATES = 64
"""The likeliest tokens of a mask or head, among which drafts are chosen: scoring the whole vocabulary takes long.
Drafts are verified, so this changes how many stand and never the text."""
GREEDY_CANDIDATES = DRAFT_CANDIDATES // 4
"""The same where no noise lifts tokens from further down, or where it is added before these are found, as on a GPU: the
sequential head alone moves none that far."""
UNVERIFIED_CANDIDATES = 256
"""The same where what a mask says is emitted unverified. The sampled text depends on it, so it is larger, and no other
number would give the same text."""


class Draw(Protocol):
    """How a sequence draws from the rows of a step."""

    def __call__(self, row: int, before: Items[int], proposed: Items[int] = ()) -> int:
        """Draw a token from a wanted row, given all tokens before it. If the sequence's decoder has a tolerance, one of
        the `proposed` tokens may be returned instead."""
        ...


class Drawer(Protocol):
    """`drawer`, or a replacement: the bench wraps it to time draws."""

    def __call__(self, logits_WV: Array, sequence: Sequence, tolerance: float = 0.0) -> Draw: ...


def drawer(logits_WV: Array, sequence: Sequence, tolerance: float = 0.0) -> Draw:
    """How `sequence` draws from these rows. Plain greedy rows are decided together, the others when asked for."""
    if sequence.is_plain_greedy and tolerance == 0:
        best_W = logits_WV.argmax(-1).tolist()
        return lambda row, before, proposed=(): best_W[row]

    def draw_row(row: int, before: Items[int], proposed: Items[int] = ()) -> int:
        return best_or_tolerated(scores_for(sequence, logits_WV[row], before), proposed, tolerance)

    return draw_row


def draw(
    logits_V: Array,
    params: SamplingParams,
    before: Items[int],
    prompt_length: int,
    *,
    seed: int,
    choice: int,
    grammar: Grammar | None = None,
) -> int:
    """The token at position len(before)."""
    scores_V = perturbed_scores(logits_V, params, before, prompt_length, seed=seed, choice=choice, grammar=grammar)
    return best_or_tolerated(scores_V, (), 0.0)


def scores_for(sequence: Sequence, logits_V: Array, before: Items[int]) -> Array:
    """`perturbed_scores` as a sequence has them."""
    return perturbed_scores(
        logits_V,
        sequence.params,
        before,
        sequence.prompt_length,
        seed=sequence.seed,
        choice=sequence.choice,
        grammar=sequence.grammar,
    )


def perturbed_scores(
    logits_V: Array,
    params: SamplingParams,
    before: Items[int],
    prompt_length: int,
    *,
    seed: int,
    choice: int,
    grammar: Grammar | None = None,
) -> Array:
    """The scores of which a draw takes the best: penalised logits of the tokens that the grammar allows; at a
    temperature, divided by it, filtered, and with noise. All are -inf if no token is left."""
    scores_V = penalise(arrays.float32(logits_V), params, before, prompt_length)
    if grammar is not None:
        scores_V = keep_allowed(scores_V, grammar.allowed(before[prompt_length:]))
    if params.temperature == 0:
        return scores_V
    best = scores_V.max()
    if best == -math.inf:
        return scores_V
    scores_V = keep_likely((scores_V - best) / params.temperature, params)
    return arrays.add_noise(scores_V, lambda tokens_N: gumbel_of(tokens_N, seed, choice, len(before)))


def best_or_tolerated(scores_V: Array, proposed: Items[int], tolerance: float) -> int:
    """The best token; if it is not proposed, the best proposed token, if its score is at most -log(1 - tolerance) below
    the best. Tokens dropped by a filter, a grammar or a ban are infinitely far below."""
    best = int(scores_V.argmax())
    if scores_V[best] == -math.inf:
        raise InputError(
            "no token is left to draw: logit_bias bans every token, or every one that the grammar allows here: leave "
            "at least one. A grammar that is too complex for the text allows none"
        )
    if tolerance == 0 or not proposed or best in proposed:
        return best
    nearest = max(proposed, key=lambda token: float(scores_V[token]))
    return nearest if float(scores_V[nearest]) >= float(scores_V[best]) + math.log1p(-tolerance) else best


def draw_among(tokens_N: Array, logits_V: Array, sequence: Sequence, before: Items[int]) -> int:
    """`draw` with all tokens but these left out: for drafts, which may be wrong and must be quick."""
    return int(tokens_N[perturbed_among(tokens_N, logits_V[tokens_N], sequence, before).argmax()])


def perturbed_among(tokens_N: Array, logits_N: Array, sequence: Sequence, before: Items[int]) -> Array:
    """`perturbed_scores` as if these were all tokens. All are -inf if none of them is left."""
    params = sequence.params
    if params.weighs_text:
        size = max([int(tokens_N.max()), *before]) + 1
        logits_V = arrays.spread(logits_N, tokens_N, size, -math.inf)
        logits_N = penalise(logits_V, params, before, sequence.prompt_length)[tokens_N]
    elif params.logit_bias:
        bias_N = np.array([params.logit_bias.get(token, 0.0) for token in tokens_N.tolist()], np.float32)
        logits_N = logits_N + arrays.placed(bias_N, logits_N)
    if sequence.grammar is not None:
        allowed_V = sequence.grammar.allowed(before[sequence.prompt_length :])
        logits_N = arrays.fill(logits_N, ~arrays.placed(allowed_V, tokens_N)[tokens_N], -math.inf)
    best = logits_N.max()
    if params.temperature == 0 or best == -math.inf:
        return logits_N
    noise_N = gumbel_of(tokens_N, sequence.seed, sequence.choice, len(before))
    return arrays.float64(keep_likely((logits_N - best) / params.temperature, params)) + noise_N


def penalise(logits_V: Array, params: SamplingParams, before: Items[int], prompt_length: int) -> Array:
    """Repetition penalty over all tokens before, presence and frequency over the answer alone, then the bias."""
    if not params.changes_logits:
        return logits_V
    scores_V = arrays.copy(logits_V)
    size = len(scores_V)
    if params.repetition_penalty != 1:
        seen = arrays.integers(sorted({token for token in before if token < size}), scores_V)
        held = scores_V[seen]
        scores_V[seen] = arrays.choose(held > 0, held / params.repetition_penalty, held * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        written = [token for token in before[prompt_length:] if token < size]
        counts_V = arrays.occurrences(written, scores_V)
        scores_V -= params.presence_penalty * arrays.float32(counts_V > 0) + params.frequency_penalty * counts_V
    for token, bias in params.logit_bias.items():
        if token < size:
            scores_V[token] += bias
    return scores_V


def keep_allowed(scores_V: Array, allowed_V: np.ndarray) -> Array:
    """Tokens that are not allowed become -inf. A draft model may score fewer tokens than the vocabulary has."""
    return arrays.fill(scores_V, arrays.placed(~allowed_V[: len(scores_V)], scores_V), -math.inf)


def keep_likely(scores_V: Array, params: SamplingParams) -> Array:
    """Top-k (equal scores stay together), top-p of what is left, then min-p; what is dropped becomes -inf."""
    if 0 < params.top_k < len(scores_V):
        scores_V = arrays.fill(scores_V, scores_V < arrays.least_of_top(scores_V, params.top_k), -math.inf)
    if params.top_p < 1:
        scores_V = arrays.fill(scores_V, arrays.beyond(arrays.softmax(scores_V), params.top_p), -math.inf)
    if params.min_p > 0:
        probability_V = arrays.softmax(scores_V)
        scores_V = arrays.fill(scores_V, probability_V < params.min_p * probability_V.max(), -math.inf)
    return scores_V


def confidence(logits_WV: Array, tokens: Items[int], log_sums_W: Array | None = None) -> tuple[float, ...]:
    """The model's own probability of each row's token: no temperature, filter or penalty. In double precision, so that
    the logarithm is right even if float32 would round the probability to 0. `log_sums_W`: an Output's, if known."""
    if log_sums_W is not None:
        of_tokens = (float(logits_V[token]) for logits_V, token in zip(logits_WV, tokens, strict=True))
        return tuple(math.exp(logit - each) for logit, each in zip(of_tokens, log_sums_W.tolist(), strict=True))
    return tuple(arrays.exp(arrays.float64(arrays.log_softmax_at(logits_WV, tokens))).tolist())


def likeliest(logits_WV: Array, count: int) -> tuple[Alternatives, ...]:
    """Each row's `count` likeliest tokens by the model's own probability, best first."""
    if not count:
        return ()
    found_WN, logarithms_WN = arrays.best(arrays.log_softmax(logits_WV), min(count, logits_WV.shape[1]))
    return tuple(
        tuple(zip(tokens, probabilities, strict=True))
        for tokens, probabilities in zip(
            found_WN.tolist(), arrays.exp(arrays.float64(logarithms_WN)).tolist(), strict=True
        )
    )


def gumbel_of(tokens_N: Array, seed: int, choice: int, position: int) -> Array:
    """Standard Gumbel noise for these token ids: SplitMix64 with the token id as its counter."""
    key = _mix(noise_key(seed, choice) + position)
    return _as_gumbel(_mix_words((tokens_N + 1) * arrays.signed(GOLDEN) + arrays.signed(key)))


def noise_key(seed: int, choice: int) -> int:
    """The part of the noise's key that all positions of an answer share: 64 bits."""
    return _mix(_mix(seed) + choice)


def gumbel_rows(seeds_B: Array, positions_B: Array, size: int, choices_B: Array | int = 0) -> Array:
    """`gumbel_of` token ids 0 .. size - 1 for many rows at once (int64, seeds by way of `arrays.signed`): B x size."""
    return gumbel_among(seeds_B, positions_B, arrays.count_up(0, size, seeds_B)[None], choices_B)


def gumbel_among(seeds_B: Array, positions_B: Array, tokens_BN: Array, choices_B: Array | int = 0) -> Array:
    """The same for some token ids of each row: B x N."""
    key_B = seeds_B
    for part in (0, choices_B, positions_B):  # behind the seed
        key_B = _mix_words(key_B + part + arrays.signed(GOLDEN))
    return _as_gumbel(_mix_words((tokens_BN + 1) * arrays.signed(GOLDEN) + key_B[:, None]))


def _as_gumbel(bits: Array) -> Array:
    return arrays.negative_log(arrays.negative_log(arrays.uniform(bits)))


def _mix(word: int) -> int:
    """SplitMix64's step and finaliser on one Python int."""
    word = (word + GOLDEN) & _WORD
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=True):
        word = ((word ^ (word >> shift)) * multiplier) & _WORD
    return word


def _mix_words(words: Array) -> Array:
    """SplitMix64's finaliser on int64 words."""
    return arrays.mix(words, SHIFTS, MULTIPLIERS)
