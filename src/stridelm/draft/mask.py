"""Drafts from mask rows. Each mask of a chain says, by itself, what may stand at its place; here tokens are chosen.

The masks did not see the token that was drawn after them, nor each other's drafts. The sequential head reads these, one
after the other, and moves what a mask says.

Shape letters: X chains, one per sequence, D masks of a chain, V vocabulary, C model width, N candidates.
"""

import torch

from stridelm.model.gated import Gate
from stridelm.sampling import draw_among
from stridelm.types import Sequence

CANDIDATES = 256
"""The likeliest tokens of each mask, among which its draft is chosen: the whole vocabulary takes long to score."""
_BELOW_ONE = 1 - 1e-6


class MaskDrafter:
    """Draws with the target's own noise, filters and penalties, so that under sampling, too, it agrees often."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    @torch.inference_mode()
    def choose(
        self, sequences: list[Sequence], texts: list[list[int]], logits_XDV: torch.Tensor, hidden_XDC: torch.Tensor
    ) -> list[list[int]]:
        """Each chain's drafts. A text is all up to the token that was drawn where the chain's anchor is: its masks
        propose the tokens behind it."""
        candidates_XDN = logits_XDV.topk(min(CANDIDATES, logits_XDV.shape[-1]), sorted=False).indices
        head = self.gate.sequential_head
        state_XS = None if head is None else head.start(len(texts))
        written = [list(text) for text in texts]
        for depth in range(logits_XDV.shape[1]):
            logits_XV, candidates_XN = logits_XDV[:, depth], candidates_XDN[:, depth]
            if head is not None:
                before_XC = self._embed([text[-1] for text in written])
                moved_XC, state_XS = head(hidden_XDC[:, depth].float(), before_XC, state_XS)
                logits_XV = self._move(logits_XV, candidates_XN, moved_XC)
            for chain, (sequence, text) in enumerate(zip(sequences, written, strict=True)):
                text.append(draw_among(candidates_XN[chain], logits_XV[chain], sequence, text))
        return [longer[len(text) :] for longer, text in zip(written, texts, strict=True)]

    def _embed(self, tokens: list[int]) -> torch.Tensor:
        return self.gate.embedding(torch.tensor(tokens, device=self.gate.device)).float()

    def _move(self, logits_XV: torch.Tensor, candidates_XN: torch.Tensor, moved_XC: torch.Tensor) -> torch.Tensor:
        """The logits with what the sequential head adds to a mask's output, for the candidates alone."""
        assert self.gate.output_weight_VC is not None, "an adapter with a sequential head keeps the output matrix"
        rows_XNC = self.gate.output_weight_VC[candidates_XN]
        added_XN = torch.einsum("xnc,xc->xn", rows_XNC, moved_XC.to(rows_XNC.dtype)).float()
        logits_XN, cap = logits_XV.gather(-1, candidates_XN), self.gate.softcap
        if cap is None:
            moved_XN = logits_XN + added_XN
        else:  # what is added lies before the cap (Gemma 2)
            moved_XN = cap * torch.tanh(torch.atanh((logits_XN / cap).clamp(-_BELOW_ONE, _BELOW_ONE)) + added_XN / cap)
        return logits_XV.scatter(-1, candidates_XN, moved_XN)
