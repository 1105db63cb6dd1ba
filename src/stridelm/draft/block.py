"""The tokens of one chain of masks, chosen one after the other, and how likely each of them is.

The masks did not see the token that was drawn before them, nor each other's tokens. The sequential head, if there is
one, reads these in turn and adjusts each mask's logits; so each choice depends on the previous one, and a caller that
stops early saves the rest.

Shape letters: D masks of a chain, V vocabulary, C model width, N candidates.
"""

import math
from collections.abc import Iterator

from stridelm import arrays
from stridelm.contracts import Gate
from stridelm.sampling import UNVERIFIED_CANDIDATES, confidence, draw_among, keep_allowed, penalise
from stridelm.types import Array, Sequence


def read_chain(
    gate: Gate, sequence: Sequence, text: list[int], logits_DV: Array, hidden_DC: Array
) -> Iterator[tuple[int, float]]:
    """Each mask's token, drawn as the sequence draws, and its probability without temperature, filters and penalties.

    `text`: all tokens up to the one drawn at the chain's anchor. The chain ends if no token is left to draw.
    """
    written = list(text)
    if not gate.state_size and sequence.is_plain_greedy:
        yield from _likeliest(logits_DV)
        return
    state_1S = gate.start(1) if gate.state_size else None
    for logits_V, hidden_C in zip(logits_DV, hidden_DC, strict=True):
        # Candidates by penalised logits: these tokens are not verified, so a bias must reach tokens that are unlikely
        # without it, and so must a grammar.
        scores_V = penalise(logits_V, sequence.params, written, sequence.prompt_length)
        if sequence.grammar is not None:
            scores_V = keep_allowed(scores_V, sequence.grammar.allowed(written[sequence.prompt_length :]))
        if scores_V.max() == -math.inf:
            return
        candidates_N, _ = arrays.top(scores_V, min(UNVERIFIED_CANDIDATES, len(scores_V)))
        if state_1S is not None:
            added_1C, state_1S = gate.read(hidden_C[None], written[-1:], state_1S)
            moved_N = gate.moved(candidates_N, logits_V[candidates_N], added_1C[0])
            logits_V = arrays.put(logits_V, candidates_N, moved_N)
        token = draw_among(candidates_N, logits_V, sequence, written)
        written.append(token)
        (probability,) = confidence(logits_V[None], [token])
        yield token, probability


def _likeliest(logits_DV: Array) -> Iterator[tuple[int, float]]:
    """Greedy and without a sequential head: finding the best token is faster than finding candidates."""
    for logits_V in logits_DV:
        token = int(logits_V.argmax())
        (probability,) = confidence(logits_V[None], [token])
        yield token, probability
