"""Drafts from mask rows.

The masks did not see the token that was drawn after them, nor each other's drafts. The sequential head reads these. It
can read any tokens: a chain whose anchor lies some tokens back is still of use, its first masks being skipped.
"""

from stridelm.contracts import Gate, Greed
from stridelm.draft.grow import Chain, TreeGrower
from stridelm.types import MASKS, ROOT, DraftTree, Sequence


class MaskDrafter(TreeGrower):
    """Grows trees from what masks said, now or some tokens ago."""

    def __init__(self, gate: Gate, branches: int = 2) -> None:
        super().__init__(MASKS, branches, gate)
        self.gate = gate

    def draft(self, sequences: list[Sequence], chains: list[Chain], *, depth: int, floor: float) -> list[DraftTree]:
        if len(sequences) == 1 and (tree := self._at_once(sequences[0], chains[0], depth, floor)) is not None:
            return [tree]
        return super().draft(sequences, chains, depth=depth, floor=floor)

    def _at_once(self, sequence: Sequence, chain: Chain, depth: int, floor: float) -> DraftTree | None:
        """The same tree from a backend that grows it by itself: greedy ones, which need no noise and no text."""
        params = sequence.params
        if sequence.grammar is not None or params.temperature > 0 or params.weighs_text or chain.left <= 0:
            return None
        greed = Greed(
            sequence.tokens[-1], self.count(sequence), self.branches, floor, params.logit_bias, sequence.eos_ids
        )
        places = slice(chain.used, chain.used + depth)
        grown = self.gate.grow(chain.logits_DV[places], chain.hidden_DC[places], chain.state_1S, greed)
        if grown is None:
            return None
        paths: dict[int, tuple[int, ...]] = {ROOT: (greed.before,)}
        for node, (token, parent) in enumerate(zip(grown.tree.tokens, grown.tree.parents, strict=True)):
            paths[node] = (*paths[parent], token)
        for place, node in enumerate(grown.buds):
            chain.states[paths[node]] = grown.states_BS[place : place + 1]
        return grown.tree

    def advance(self, chain: Chain, tokens: list[int]) -> None:
        """The text has gone on: the first of these tokens stands before the chain's next mask, the last is the newest.
        Every one but the newest takes a mask's place."""
        known, places = chain.states, tuple(tokens[:-1])
        for count, token in enumerate(places, start=1):
            if places[:count] in known:
                chain.state_1S = known[places[:count]]
            elif chain.left > 0:
                chain.state_1S = self._read([chain], 0, [token], [chain.state_1S])[1][0]
            chain.used += 1
        chain.states = {}
