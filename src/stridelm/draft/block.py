"""The tokens of one chain of masks, chosen one after the other, and how likely each of them is.

The masks did not see the token that was drawn before them, nor each other's. The sequential head, where there is one,
reads these in turn and moves what a mask says; so each choice waits for the one before, and whoever stops early saves
the rest.

Shape letters: D masks of a chain, V vocabulary, C model width, N candidates.
"""

from collections.abc import Iterator

import torch

from stridelm.model.gated import Gate
from stridelm.sampling import confidence, draw_among, penalise
from stridelm.types import Sequence

CANDIDATES = 256
"""The likeliest tokens of a mask, among which one is chosen: the whole vocabulary takes long to score."""
_BELOW_ONE = 1 - 1e-6


@torch.inference_mode()
def read_chain(
    gate: Gate, sequence: Sequence, text: list[int], logits_DV: torch.Tensor, hidden_DC: torch.Tensor
) -> Iterator[tuple[int, float]]:
    """Each mask's token, drawn as the sequence draws, and its probability without temperature, filters and penalties.

    `text` is all up to the token that was drawn where the chain's anchor is.
    """
    head, written = gate.sequential_head, list(text)
    state_1S = None if head is None else head.start(1)
    for logits_V, hidden_C in zip(logits_DV, hidden_DC, strict=True):
        # Penalised ones: nobody checks these tokens, so a bias must reach those that are unlikely without it.
        scores_V = penalise(logits_V, sequence.params, written, sequence.prompt_length)
        candidates_N = scores_V.topk(min(CANDIDATES, len(scores_V)), sorted=False).indices
        if head is not None:
            before_1C = gate.embedding(torch.tensor(written[-1:], device=gate.device)).float()
            added_1C, state_1S = head(hidden_C[None].float(), before_1C, state_1S)
            logits_V = _moved(gate, logits_V, candidates_N, added_1C[0])
        token = draw_among(candidates_N, logits_V, sequence, written)
        written.append(token)
        (probability,) = confidence(logits_V[None], [token])
        yield token, probability


def _moved(gate: Gate, logits_V: torch.Tensor, candidates_N: torch.Tensor, added_C: torch.Tensor) -> torch.Tensor:
    """The logits with what the sequential head adds to a mask's output, for the candidates alone."""
    assert gate.output_weight_VC is not None, "an adapter with a sequential head keeps the output matrix"
    rows_NC = gate.output_weight_VC[candidates_N]
    added_N = (rows_NC @ added_C.to(rows_NC.dtype)).float()
    logits_N, cap = logits_V[candidates_N], gate.softcap
    if cap is None:
        moved_N = logits_N + added_N
    else:  # what is added lies before the cap (Gemma 2)
        moved_N = cap * torch.tanh(torch.atanh((logits_N / cap).clamp(-_BELOW_ONE, _BELOW_ONE)) + added_N / cap)
    return logits_V.scatter(0, candidates_N, moved_N)
