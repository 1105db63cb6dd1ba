"""Drafters that go on from what the target's output head read last.

Shape letters: q rows of a block, C model width.
"""

from stridelm import arrays
from stridelm.types import Array, Block, Commit, Output, Sequence


class FinalStates:
    """The part of such a drafter that keeps those states."""

    reads_whole_texts = is_optional = reads_predictions = False

    def __init__(self, layers: int) -> None:
        """`layers`: how many the target has."""
        self.layers = (layers,)
        self._hidden_C: dict[Sequence, Array] = {}
        """What the output head read when it gave the sequence's newest token."""

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        for sequence, output, commit in zip(sequences, outputs, commits, strict=True):
            if commit.tokens:
                # A copy: a view would keep the states of all rows, a whole prompt's perhaps, in memory.
                self._hidden_C[sequence] = arrays.copy(output.layers_qC[self.layers[0]][commit.kept[-1]])

    def release(self, sequence: Sequence) -> None:
        self._hidden_C.pop(sequence, None)
