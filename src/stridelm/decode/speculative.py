"""Verified drafts: what a drafter proposes is checked in the same forward, so that the text stays the model's own."""

from stridelm.contracts import Drafter
from stridelm.decode.commit import decide_all, lawful, next_block, reads_on
from stridelm.sampling import Drawer, drawer
from stridelm.settings import LARGEST_K
from stridelm.stepper import OwnPlan
from stridelm.types import NO_DRAFT, Block, Commit, Output, Sequence


class Speculative:
    """Verifies the trees of any one drafter."""

    needed_rows = 0
    spare_rows = LARGEST_K
    own_drafts: int | None = None
    own_plan: OwnPlan | None = None

    def __init__(self, drafter: Drafter, tolerance: float = 0.0) -> None:
        self.drafter = drafter
        self.tolerance = tolerance
        self.exact = tolerance == 0
        self.reads_whole_texts = drafter.reads_whole_texts
        self.reads_predictions = drafter.reads_predictions

    def plan(self, sequences: list[Sequence], others: int = 0) -> list[Block]:
        ready = [sequence for sequence in sequences if not reads_on(sequence)]
        trees = dict(zip(ready, self.drafter.propose(ready), strict=True)) if ready else {}
        return [
            next_block(sequence, lawful(sequence, trees.get(sequence, NO_DRAFT)), layers=self.drafter.layers)
            for sequence in sequences
        ]

    def commit(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], drawer: Drawer = drawer
    ) -> list[Commit]:
        return decide_all(sequences, blocks, outputs, self.tolerance, drawer)

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        self.drafter.observe(sequences, blocks, outputs, commits)

    def release(self, sequence: Sequence) -> None:
        self.drafter.release(sequence)
