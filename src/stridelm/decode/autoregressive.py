"""Plain decoding, one token per forward: the reference of every exact decoder."""

from stridelm.decode.commit import decide_all, next_block
from stridelm.sampling import Drawer, drawer
from stridelm.stepper import PLAIN_PLAN, OwnPlan
from stridelm.types import Block, Commit, Output, Sequence


class Autoregressive:
    """The pending rows and nothing else."""

    exact = True
    needed_rows = spare_rows = 0
    reads_whole_texts = reads_predictions = False
    own_drafts: int | None = 0
    own_plan: OwnPlan | None = PLAIN_PLAN

    def plan(self, sequences: list[Sequence], others: int = 0) -> list[Block]:
        return [next_block(sequence) for sequence in sequences]

    def commit(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], drawer: Drawer = drawer
    ) -> list[Commit]:
        return decide_all(sequences, blocks, outputs, drawer=drawer)

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """Nothing to learn."""

    def release(self, sequence: Sequence) -> None:
        """Nothing to forget."""
