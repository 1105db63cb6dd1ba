"""The model drafts for itself: one forward verifies the drafts of the step before and asks masks for new ones."""

import torch

from stridelm.decode.autoregressive import decide_all, next_block, until_end
from stridelm.draft.mask import MaskDrafter
from stridelm.model.gated import Gate
from stridelm.types import NO_DRAFT, Block, Commit, DraftTree, Output, Sequence

NAME = "self"


class SelfDraft:
    """Masks hang off the last pending row and off every draft: wherever the path ends, fresh drafts lie ready.

    p-d1-d2-d3-m-m-m    k = 4: the last row of the path gives one token, its masks propose three more
    | |  |
    m m  m
    m m  m
    m m  m
    """

    exact = True

    def __init__(self, k: int, gate: Gate) -> None:
        assert 1 <= k <= gate.k, "choose_decoder lets this pass only up to the adapter's k"
        self.masks = k - 1
        self.spare_rows = self.masks * k
        self.drafter = MaskDrafter(gate)
        self._drafts: dict[Sequence, DraftTree] = {}
        """What the latest step's masks proposed."""

    def plan(self, sequences: list[Sequence]) -> list[Block]:
        return [next_block(sequence, self._drafts.pop(sequence, NO_DRAFT), self.masks) for sequence in sequences]

    def commit(self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output]) -> list[Commit]:
        commits = decide_all(sequences, blocks, outputs)
        chains = {
            sequence: (chain, [*sequence.tokens, *commit.tokens])
            for sequence, block, output, commit in zip(sequences, blocks, outputs, commits, strict=True)
            if (chain := _chain(block, output, commit)) is not None
        }
        if chains:
            masks, texts = zip(*chains.values(), strict=True)
            logits_XDV, hidden_XDC = (torch.stack(each) for each in zip(*masks, strict=True))
            drafts = self.drafter.choose(list(chains), list(texts), logits_XDV, hidden_XDC)
            for sequence, draft in zip(chains, drafts, strict=True):
                self._drafts[sequence] = DraftTree.chain(until_end(draft, sequence.eos_ids), NAME)
        return commits

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """The drafts lie ready already."""

    def release(self, sequence: Sequence) -> None:
        self._drafts.pop(sequence, None)


def _chain(block: Block, output: Output, commit: Commit) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What the masks off the path's last row say: logits, and what the output head read. None where there are none,
    or where the answer is finished."""
    end = commit.kept[-1] - block.pending  # ROOT where no draft was accepted
    if commit.finish_reason is not None or end not in block.mask_anchors:
        return None
    assert output.hidden_WC is not None, "a step with masks gives hidden states"
    rows = block.mask_outputs(end)
    return output.logits_WV[rows], output.hidden_WC[rows]
