"""Several drafters at once: their proposals in one tree, within one budget, each weighed by how often it was right."""

from stridelm.contracts import Drafter
from stridelm.draft.calibration import Calibration
from stridelm.draft.merge import merge
from stridelm.types import Block, Commit, DraftTree, Output, Sequence


class EnsembleDrafter:
    """Asks all its drafters; a node keeps the name of the one that proposed it."""

    name = "ensemble"

    def __init__(self, drafters: list[Drafter], nodes: int, calibration: Calibration) -> None:
        self.drafters = drafters
        self.nodes = nodes
        self.calibration = calibration
        self.layers = tuple(sorted({layer for drafter in drafters for layer in drafter.layers}))
        self._proposed: dict[Sequence, list[DraftTree]] = {}
        """Each drafter's own tree of the step at hand: what was merged has lost their scores."""

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        proposals = zip(*(drafter.propose(sequences) for drafter in self.drafters), strict=True)
        self._proposed |= {sequence: list(trees) for sequence, trees in zip(sequences, proposals, strict=True)}
        return [merge(self._proposed[sequence], self.calibration.accepted, self.nodes) for sequence in sequences]

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        for sequence, commit in zip(sequences, commits, strict=True):
            for tree in self._proposed.pop(sequence, ()):
                self.calibration.observe_text(tree, commit.tokens)
        for drafter in self.drafters:
            drafter.observe(sequences, blocks, outputs, commits)

    def release(self, sequence: Sequence) -> None:
        self._proposed.pop(sequence, None)
        for drafter in self.drafters:
            drafter.release(sequence)
