"""The engine: `step` is the architecture. It speaks token ids; text is made at its edge, for stops and strides."""

import time
from typing import cast

from transformers import PreTrainedTokenizerBase

from stridelm.contracts import Policy
from stridelm.engine.detokenize import TextStream
from stridelm.engine.scheduler import Scheduler
from stridelm.layout import lay_out
from stridelm.model.forward import TorchForward
from stridelm.model.kv_cache import Table
from stridelm.types import Block, Commit, Output, Sequence, Stride


class Engine:
    """Sequences join with `add` and leave when they are finished; every `step` is one forward over all of them."""

    def __init__(self, forward: TorchForward, tokenizer: PreTrainedTokenizerBase) -> None:
        self.forward = forward
        self.tokenizer = tokenizer
        self.scheduler = Scheduler(forward.cache)
        self._texts: dict[Sequence, TextStream] = {}

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)
        self._texts[sequence] = TextStream(self.tokenizer, sequence.params.stop)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, finished or not."""
        if self._texts.pop(sequence, None) is not None:
            self.scheduler.remove(sequence)
            sequence.policy.release(sequence)

    def reset(self) -> None:
        """Forget all sequences: what to do after a step that failed."""
        for sequence in list(self._texts):
            self.remove(sequence)

    def step(self) -> list[tuple[Sequence, Stride]]:
        """One forward pass; returns what it added to each answer. Prompts still being read add nothing."""
        batch = self.scheduler.schedule()
        if not batch:
            return []
        blocks = [block for policy, part in _policies(batch) for block in policy.plan(batch[part])]
        outputs = self.forward(lay_out(blocks), [cast(Table, sequence.table) for sequence in batch])
        commits = [
            commit
            for policy, part in _policies(batch)
            for commit in policy.commit(batch[part], blocks[part], outputs[part])
        ]
        self._keep(batch, blocks, commits)
        return self._emit(batch, blocks, outputs, commits)

    def _keep(self, batch: list[Sequence], blocks: list[Block], commits: list[Commit]) -> None:
        for sequence, block, commit in zip(batch, blocks, commits, strict=True):
            self.forward.cache.keep(cast(Table, sequence.table), commit.kept)
            sequence.cached += len(commit.kept)
            sequence.stats.rows += len(block)
            sequence.stats.drafted += len(block.tree)

    def _emit(
        self, batch: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> list[tuple[Sequence, Stride]]:
        strides = [self._advance(*each) for each in zip(batch, blocks, commits, strict=True)]
        for policy, part in _policies(batch):
            policy.observe(batch[part], blocks[part], outputs[part], commits[part])
        for sequence in batch:
            if sequence.finish_reason:
                self.remove(sequence)
        return [(sequence, stride) for sequence, stride in zip(batch, strides, strict=True) if stride is not None]

    def _advance(self, sequence: Sequence, block: Block, commit: Commit) -> Stride | None:
        """Add a commit to its sequence; a stop string may end the answer within it."""
        stats = sequence.stats
        if not commit.tokens:
            stats.prefill_forwards += 1
            return None
        stream, text, count = self._texts[sequence], "", 0
        for token in commit.tokens:
            text += stream.push(token)
            count += 1
            if stream.stopped:
                break
        sequence.finish_reason = "stop" if stream.stopped else commit.finish_reason
        if sequence.finish_reason:
            text += stream.flush()
        sequence.tokens.extend(commit.tokens[:count])
        stats.last_token = time.perf_counter()
        stats.first_token = stats.first_token or stats.last_token
        stats.forwards += 1
        stats.tokens += count
        stats.accepted += sum(source != "model" for source in commit.sources[:count])
        return Stride(
            commit.tokens[:count],
            text,
            commit.sources[:count],
            commit.confidence[:count],
            sequence.finish_reason,
            drafted=len(block.tree),
        )


def _policies(batch: list[Sequence]) -> list[tuple[Policy, slice]]:
    """Each policy with its part of the batch, which the scheduler has sorted by policy."""
    parts: list[tuple[Policy, slice]] = []
    for sequence in batch:
        if parts and parts[-1][0] is sequence.policy:
            parts[-1] = (sequence.policy, slice(parts[-1][1].start, parts[-1][1].stop + 1))
        else:
            start = parts[-1][1].stop if parts else 0
            parts.append((sequence.policy, slice(start, start + 1)))
    return parts
