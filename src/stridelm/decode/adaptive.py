"""Takes the masks' tokens without verification: several tokens per forward, without a guarantee.

ConfAdapt (arXiv 2602.06019) keeps the leading run of positions that are confident; static decoding keeps all.
"""

from collections.abc import Iterator

from stridelm.contracts import Gate
from stridelm.decode.commit import ending, finite, next_block, reads_on
from stridelm.draft.block import read_chain
from stridelm.layout import make_block
from stridelm.sampling import Drawer, confidence, drawer, likeliest
from stridelm.stepper import OwnPlan
from stridelm.types import ROOT, Alternatives, Block, Commit, Output, Sequence

SOURCE = "mask"


class Adaptive:
    """A chain of masks off the last pending row. What a step emits is pending in the next one:

    p-p-p-m-m-m    k_max = 4: the last p gives the first token, the masks up to three more
    """

    exact = False
    spare_rows = 0
    reads_whole_texts = reads_predictions = False
    own_drafts: int | None = None
    own_plan: OwnPlan | None = None

    def __init__(self, k_max: int, threshold: float, gate: Gate) -> None:
        """Up to `k_max` tokens per pass, as long as each is at least `threshold` likely; a threshold of 0 takes all."""
        self.masks = self.needed_rows = k_max - 1  # fewer masks would give another text
        self.threshold = threshold
        self.gate = gate

    def plan(self, sequences: list[Sequence], others: int = 0) -> list[Block]:
        return [self._block(sequence) for sequence in sequences]

    def _block(self, sequence: Sequence) -> Block:
        masks = min(self.masks, sequence.room - 1)
        if masks == 0 or reads_on(sequence):
            return next_block(sequence)
        return make_block(sequence.cached, sequence.tokens[sequence.cached :], anchors=[ROOT], masks=masks)

    def commit(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], drawer: Drawer = drawer
    ) -> list[Commit]:
        return [self._decide(*each, drawer) for each in zip(sequences, blocks, outputs, strict=True)]

    def _decide(self, sequence: Sequence, block: Block, output: Output, drawer: Drawer) -> Commit:
        pending = tuple(range(block.pending))
        if not block.wanted:
            return Commit(kept=pending)
        tokens, probabilities = zip(*self._leading_run(sequence, block, output, drawer), strict=True)
        return Commit(
            kept=pending,
            tokens=tokens,
            sources=("model", *(SOURCE,) * (len(tokens) - 1)),
            confidence=probabilities,
            finish_reason=ending(sequence, tokens),
            alternatives=self._alternatives(sequence, block, output, len(tokens)),
        )

    def _leading_run(self, sequence: Sequence, block: Block, output: Output, drawer: Drawer) -> list[tuple[int, float]]:
        """Tokens and their confidence up to the first one below the threshold, or that ends the text. The first token
        is the model's own and is always taken."""
        run: list[tuple[int, float]] = []
        for token, probability in _positions(self.gate, sequence, block, output, drawer):
            finite((probability,))
            is_confident = probability >= self.threshold
            if is_confident or not run:
                run.append((token, probability))
            if not is_confident or token in sequence.eos_ids:
                break
        return run

    def _alternatives(self, sequence: Sequence, block: Block, output: Output, count: int) -> tuple[Alternatives, ...]:
        """The likeliest tokens of the last pending row and of the masks, before the sequential head."""
        rows = [0, *range(block.mask_outputs(ROOT).start, block.mask_outputs(ROOT).stop)] if block.masks else [0]
        return likeliest(output.logits_WV[rows[:count]], max(sequence.alternatives, sequence.optional_alternatives))

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """Nothing to learn."""

    def release(self, sequence: Sequence) -> None:
        """Nothing to forget."""


def _positions(
    gate: Gate, sequence: Sequence, block: Block, output: Output, drawer: Drawer
) -> Iterator[tuple[int, float]]:
    """The token drawn at each position, and its probability: the last pending row's, then each mask's."""
    logits_1V = output.logits_WV[:1]
    first = drawer(logits_1V, sequence)(0, sequence.tokens)
    yield first, confidence(logits_1V, [first])[0]
    if block.masks:
        assert output.hidden_WC is not None, "a step with masks gives hidden states"
        rows = block.mask_outputs(ROOT)
        yield from read_chain(gate, sequence, [*sequence.tokens, first], output.logits_WV[rows], output.hidden_WC[rows])
