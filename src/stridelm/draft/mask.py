"""Drafts from mask rows.

The masks did not see the token that was drawn after them, nor each other's drafts. The sequential head reads these. It
can read any tokens: a chain whose anchor lies some tokens back is still of use, its first masks being skipped.
"""

from stridelm.contracts import Gate
from stridelm.draft.grow import Chain, TreeGrower


class MaskDrafter(TreeGrower):
    """Grows trees from what masks said, now or some tokens ago."""

    def __init__(self, gate: Gate, branches: int = 2) -> None:
        super().__init__("self", branches, gate)
        self.gate = gate

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
