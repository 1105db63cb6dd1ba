"""Drafts from prediction heads: what they say of the last row that the model has read, as a tree.

Shape letters: X sequences, D drafts in a row, C model width, V vocabulary.
"""

import torch

from stridelm.draft.grow import Chain, TreeGrower
from stridelm.model.heads import Heads
from stridelm.model.scorer import Scorer
from stridelm.types import NO_DRAFT, Block, Commit, DraftTree, Output, Sequence

_FLOOR = 0.02
"""Nodes less likely to stand than this are left out: no cost curve makes their row pay."""


class HeadsDrafter:
    """Proposes what heads say of the row that gave the newest token; the first of them speaks of the token after."""

    name = "heads"
    reads_whole_texts = False

    def __init__(self, heads: Heads, score: Scorer, *, layers: int, k: int, branches: int) -> None:
        """`layers`: how many the target has; `k` - 1 heads are asked, `branches` tokens of each at most."""
        self.heads, self.score = heads, score
        self.layers = (layers,)
        self.depth = k - 1
        self._grower = TreeGrower(self.name, branches)
        self._hidden_C: dict[Sequence, torch.Tensor] = {}
        """What the output head read when it gave the sequence's newest token."""

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        ready = [sequence for sequence in sequences if sequence in self._hidden_C and sequence.room > 1]
        if not ready or not self.depth:
            return [NO_DRAFT] * len(sequences)
        trees = self._grower.draft(ready, self._chains(ready), depth=self.depth, floor=_FLOOR)
        found = dict(zip(ready, trees, strict=True))
        return [found.get(sequence, NO_DRAFT) for sequence in sequences]

    @torch.inference_mode()
    def _chains(self, sequences: list[Sequence]) -> list[Chain]:
        hidden_XC = torch.stack([self._hidden_C[sequence] for sequence in sequences])
        outputs_XDC = self.heads(hidden_XC.float())[:, : self.depth]
        logits_XDV = self.score(outputs_XDC.flatten(0, 1)).unflatten(0, outputs_XDC.shape[:2])
        return [Chain(*each) for each in zip(logits_XDV, outputs_XDC, strict=True)]

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        for sequence, output, commit in zip(sequences, outputs, commits, strict=True):
            if commit.tokens:
                # A copy: a view would keep the states of all rows, a whole prompt's perhaps, in memory.
                self._hidden_C[sequence] = output.layers_qC[self.layers[0]][commit.kept[-1]].clone()

    def release(self, sequence: Sequence) -> None:
        self._hidden_C.pop(sequence, None)
