"""Drafts from mask rows.

The masks did not see the token that was drawn in the same step, nor each other's drafts. The sequential head reads
these. It can read any tokens: a chain whose anchor is some tokens back is still of use; its first masks are skipped.
"""

from stridelm.contracts import Gate, Growth
from stridelm.draft.grow import Chain, TreeGrower
from stridelm.types import MASKS, ROOT, DraftTree, Sequence


class MaskDrafter(TreeGrower):
    """Grows trees from the outputs of masks, of the last step or an earlier one."""

    def __init__(self, gate: Gate, branches: int = 2) -> None:
        super().__init__(MASKS, branches, gate)
        self.gate = gate

    def draft(self, sequences: list[Sequence], chains: list[Chain], *, depth: int, floor: float) -> list[DraftTree]:
        if len(sequences) == 1 and (tree := self._at_once(sequences[0], chains[0], depth, floor)) is not None:
            return [tree]
        return super().draft(sequences, chains, depth=depth, floor=floor)

    def _at_once(self, sequence: Sequence, chain: Chain, depth: int, floor: float) -> DraftTree | None:
        """The same tree, grown by the backend in one call: if the draws depend on nothing else than their
        positions."""
        if sequence.grammar is not None or sequence.params.weighs_text or chain.left <= 0:
            return None
        growth = Growth(sequence, self.count(sequence), self.branches, floor)
        places = slice(chain.used, chain.used + depth)
        grown = self.gate.grow(chain.logits_DV[places], chain.hidden_DC[places], chain.state_1S, growth)
        if grown is None:
            return None
        paths: dict[int, tuple[int, ...]] = {ROOT: (sequence.tokens[-1],)}
        for node, (token, parent) in enumerate(zip(grown.tree.tokens, grown.tree.parents, strict=True)):
            paths[node] = (*paths[parent], token)
        for place, node in enumerate(grown.buds):
            chain.states[paths[node]] = grown.states_BS[place : place + 1]
        return grown.tree

    def advance(self, chain: Chain, tokens: list[int]) -> None:
        """Follow the text. The first of these tokens comes right before the chain's next mask, the last one is the
        text's newest. Every token but the newest takes the position of a mask."""
        known, places = chain.states, tuple(tokens[:-1])
        for count, token in enumerate(places, start=1):
            if places[:count] in known:
                chain.state_1S = known[places[:count]]
            elif chain.left > 0:
                chain.state_1S = self._read([chain], 0, [token], [chain.state_1S])[1][0]
            chain.used += 1
        chain.states = {}
