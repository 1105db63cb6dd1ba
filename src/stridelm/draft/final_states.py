"""Base of drafters that start from the last input of the target's output head.

Shape letters: q rows of a block, C model width.
"""

from stridelm import arrays
from stridelm.types import Array, Block, Commit, Output, Sequence


class FinalStates:
    """Keeps these hidden states for each sequence."""

    reads_whole_texts = is_optional = reads_predictions = False

    def __init__(self, layers: int) -> None:
        """`layers`: the target's number of layers."""
        self.layers = (layers,)
        self._hidden_C: dict[Sequence, Array] = {}
        """The output head's input that gave the sequence's newest token."""

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        for sequence, output, commit in zip(sequences, outputs, commits, strict=True):
            if commit.tokens:
                # A copy: a view would keep the states of all rows, perhaps of a whole prompt, in memory.
                self._hidden_C[sequence] = arrays.copy(output.layers_qC[self.layers[0]][commit.kept[-1]])

    def release(self, sequence: Sequence) -> None:
        self._hidden_C.pop(sequence, None)
