"""Drafts from prediction heads: a tree of their predictions after the model's newest token.

Shape letters: X sequences, D drafts in a row, C model width, V vocabulary.
"""

from collections.abc import Callable

from stridelm import arrays
from stridelm.contracts import Heads
from stridelm.draft.final_states import FinalStates
from stridelm.draft.grow import Chain, TreeGrower
from stridelm.types import NO_DRAFT, Array, DraftTree, Sequence

_FLOOR = 0.02
"""Nodes less likely to be accepted than this are left out: their row never pays, whatever the cost curve."""


class HeadsDrafter(FinalStates):
    """The heads read the row that gave the newest token; the first head predicts the token after that one."""

    name = "heads"

    def __init__(self, heads: Heads, score: Callable[[Array], Array], *, layers: int, k: int, branches: int) -> None:
        """`score`: the target's output head; `layers`: the target's number of layers; `k` - 1 heads are used, with at
        most `branches` tokens each."""
        super().__init__(layers)
        self.heads, self.score = heads, score
        self.depth = k - 1
        self._grower = TreeGrower(self.name, branches)

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        ready = [sequence for sequence in sequences if sequence in self._hidden_C and sequence.room > 1]
        if not ready or not self.depth:
            return [NO_DRAFT] * len(sequences)
        trees = self._grower.draft(ready, self._chains(ready), depth=self.depth, floor=_FLOOR)
        found = dict(zip(ready, trees, strict=True))
        return [found.get(sequence, NO_DRAFT) for sequence in sequences]

    def _chains(self, sequences: list[Sequence]) -> list[Chain]:
        hidden_XC = arrays.stack([self._hidden_C[sequence] for sequence in sequences])
        outputs_XDC = self.heads(arrays.float32(hidden_XC))[:, : self.depth]
        count, _, width = outputs_XDC.shape
        logits_XDV = self.score(outputs_XDC.reshape(-1, width)).reshape(count, self.depth, -1)
        return [Chain(*each) for each in zip(logits_XDV, outputs_XDC, strict=True)]
