"""The model's probability of each token of a text: reads a prompt and writes nothing."""

from stridelm.decode.commit import finite, reads_on
from stridelm.layout import make_block
from stridelm.sampling import Drawer, confidence, drawer, likeliest
from stridelm.stepper import OwnPlan
from stridelm.types import Block, Commit, Output, Sequence


class Scoring:
    """A policy whose commits hold no tokens, but the probabilities of the prompt's own tokens, from the second on."""

    exact = True
    needed_rows = spare_rows = 0
    reads_whole_texts = True
    reads_predictions = False
    own_drafts: int | None = None
    own_plan: OwnPlan | None = None

    def plan(self, sequences: list[Sequence], others: int = 0) -> list[Block]:
        return [
            make_block(sequence.cached, sequence.tokens[sequence.cached :][: sequence.allowance], reads_all=True)
            for sequence in sequences
        ]

    def commit(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], drawer: Drawer = drawer
    ) -> list[Commit]:
        return [_judge(*each) for each in zip(sequences, blocks, outputs, strict=True)]

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """Nothing to learn."""

    def release(self, sequence: Sequence) -> None:
        """Nothing to forget."""


def _judge(sequence: Sequence, block: Block, output: Output) -> Commit:
    # A row predicts the token after it; the prompt's last row has none.
    judged = sequence.tokens[block.start + 1 : block.start + 1 + block.pending]
    logits_WV = output.logits_WV[: len(judged)]
    return Commit(
        kept=tuple(range(block.pending)),
        confidence=finite(confidence(logits_WV, judged)) if judged else (),
        alternatives=likeliest(logits_WV, sequence.alternatives),
        finish_reason=None if reads_on(sequence) else "length",
    )
