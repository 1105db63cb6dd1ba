"""The engine; start reading at `step`. It works on token ids; text is made only for stop strings and strides."""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakKeyDictionary

from stridelm.cache.kv_cache import Table
from stridelm.contracts import Forward, Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.engine.detokenize import Detokenizer, TextStream
from stridelm.engine.own_steps import OwnSteps
from stridelm.engine.scheduler import Scheduler
from stridelm.layout import lay_out
from stridelm.models.tokenizer import TextTokenizer
from stridelm.params import InputError
from stridelm.types import PREDICTION, Block, Commit, Output, Sequence, Stride, Trace

log = logging.getLogger(__name__)
_PLAIN = Autoregressive()


class Engine:
    """Sequences join with `add` and leave when they are finished; every `step` is one forward over all of them."""

    def __init__(self, forward: Forward, tokenizer: TextTokenizer) -> None:
        self.forward = forward
        self.tokenizer = tokenizer
        self.scheduler = Scheduler(forward.cache)
        self.own_steps = OwnSteps(forward)
        self.ran: WeakKeyDictionary[Policy, Counter[tuple[bool, int]]] = WeakKeyDictionary()
        """Per policy: (whether the backend ran the step by itself, drafts) -> forward passes that emitted tokens."""
        self._decode = Detokenizer(tokenizer)
        self._texts: dict[Sequence, TextStream] = {}

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)
        self._texts[sequence] = TextStream(self._decode, sequence.params.stop)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, finished or not."""
        if self._texts.pop(sequence, None) is not None:
            self.scheduler.remove(sequence)
            sequence.policy.release(sequence)

    def reset(self) -> None:
        """Forget all sequences. Call it after a step that failed."""
        for sequence in list(self._texts):
            self.remove(sequence)
        self.own_steps.forget()

    def step(self) -> list[tuple[Sequence, Stride | Exception]]:
        """One forward pass: the backend's own step for each sequence that allows it, the host's for the others. Returns
        what it added to each answer, or the answer's error. Prompts that are still being read add nothing."""
        own = self.own_steps.step(self.scheduler.schedule())
        events = self._emit(_StepResult(own.batch, own.blocks, own.commits, is_own=True))
        events += [self._fail(sequence, error) for sequence, error in own.refused]
        if own.host:
            step = self._decide(own.host)
            events += self._emit(step) if isinstance(step, _StepResult) else self._one_by_one(own.host)
        return events

    def strides_of(self, sequence: Sequence) -> Iterator[Stride]:
        """Write one answer to its end, while there is no other; raises its error if it fails. For measurements:
        `LanguageModel.stream` is the way to share the engine."""
        assert not self.scheduler.has_work, "strides of other answers would be lost"
        self.add(sequence)
        try:
            while sequence.finish_reason is None:
                for _, event in self.step():
                    if isinstance(event, Exception):
                        raise event
                    yield event
        finally:
            self.remove(sequence)

    def _policies(self, batch: list[Sequence]) -> list[tuple[Policy, slice]]:
        """Each policy with its part of the batch, which the scheduler has sorted by policy. Where the backend will plan
        an answer's steps, the host reads the prompt without drafts and masks, which would only be lost."""
        parts: list[tuple[Policy, slice]] = []
        for at, sequence in enumerate(batch):
            policy = _PLAIN if self.own_steps.plans_answer(sequence) else sequence.policy
            start = parts.pop()[1].start if parts and parts[-1][0] is policy else at
            parts.append((policy, slice(start, at + 1)))
        return parts

    def _decide(self, batch: list[Sequence]) -> "_StepResult | Exception":
        """Plan, run and commit, without changing cache or sequences yet."""
        parts = self._policies(batch)
        try:
            rows = sum(sequence.allowance for sequence in batch)
            blocks: list[Block] = []
            for policy, part in parts:
                own = sum(sequence.allowance for sequence in batch[part])
                blocks += policy.plan(batch[part], rows - own)
            outputs = self.forward(lay_out(blocks), [cast(Table, sequence.table) for sequence in batch])
            commits = [
                commit for policy, part in parts for commit in policy.commit(batch[part], blocks[part], outputs[part])
            ]
        except AssertionError:
            raise  # a bug of ours, not caused by a request
        except Exception as error:
            return error
        return _StepResult(batch, blocks, commits, outputs, parts)

    def _one_by_one(self, batch: list[Sequence]) -> list[tuple[Sequence, Stride | Exception]]:
        """After a step that one of the requests made fail: run each by itself, so that only that one fails."""
        log.info("a step of %d sequences failed: each is run by itself", len(batch))
        for sequence in batch:
            table = cast(Table, sequence.table)
            self.forward.cache.truncate(table, table.length)
            sequence.policy.release(sequence)  # with what the policy recorded of the failed step
        events: list[tuple[Sequence, Stride | Exception]] = []
        for sequence in batch:
            step = self._decide([sequence])
            events += self._emit(step) if isinstance(step, _StepResult) else [self._fail(sequence, step)]
        return events

    def _fail(self, sequence: Sequence, error: Exception) -> tuple[Sequence, Exception]:
        if not isinstance(error, InputError):
            log.error("a sequence failed", exc_info=error)
        self.remove(sequence)
        return sequence, error

    def _emit(self, step: "_StepResult") -> list[tuple[Sequence, Stride | Exception]]:
        """Keep what was accepted, add it to the answers, and let the policies learn from it."""
        cache = self.forward.cache
        events: list[tuple[Sequence, Stride | Exception]] = []
        gone: list[Sequence] = []
        for sequence, block, commit in zip(step.batch, step.blocks, step.commits, strict=True):
            table = sequence.table
            assert table is not None
            # A backend's own step has moved the accepted rows together already.
            cache.keep(table, range(len(commit.kept)) if step.is_own else commit.kept)
            sequence.cached += len(commit.kept)
            stride = self._advance(sequence, block, commit, is_own=step.is_own)
            cache.publish(table, sequence.tokens)
            if stride is not None:
                events.append((sequence, stride))
            if sequence.finish_reason or isinstance(stride, Exception):
                gone.append(sequence)
        for policy, part in step.parts:
            policy.observe(step.batch[part], step.blocks[part], step.outputs[part], step.commits[part])
        for sequence in gone:
            self.remove(sequence)
        return events

    def _advance(self, sequence: Sequence, block: Block, commit: Commit, *, is_own: bool) -> Stride | Exception | None:
        """Add a commit to its sequence; a stop string may end the answer within it."""
        stats, drafted = sequence.stats, len(block.tree.tokens)
        stats.rows += len(block.tokens)
        stats.drafted += drafted
        if not commit.tokens:
            stats.prefill_forwards += 1
            if not commit.confidence and not commit.finish_reason:
                return None
        try:
            text, count = self._read(sequence, commit)
        except Exception as error:  # a tokenizer that cannot decode what the model wrote
            return error
        tokens, sources = commit.tokens[:count], commit.sources[:count]
        sequence.tokens.extend(tokens)
        if count:
            stats.last_token = time.perf_counter()
            stats.first_token = stats.first_token or stats.last_token
            stats.forwards += 1
            stats.own_forwards += is_own
            stats.tokens += count
            stats.accepted += count - sources.count("model")
            ran = self.ran.get(sequence.policy)
            if ran is None:
                ran = self.ran[sequence.policy] = Counter()
            ran[is_own, drafted] += 1
        judged = count if commit.tokens else len(commit.confidence)
        return Stride(
            tokens,
            text,
            sources,
            commit.confidence[:judged],
            sequence.finish_reason,
            commit.alternatives[:judged],
            drafted,
            block.tree.sources.count(PREDICTION),
            Trace(block, commit.kept) if sequence.is_traced else None,
            is_own,
        )

    def _read(self, sequence: Sequence, commit: Commit) -> tuple[str, int]:
        """The text that becomes final, and how many of the tokens are part of the answer."""
        stream, text, count = self._texts[sequence], "", 0
        for token in commit.tokens:
            text += stream.push(token)
            count += 1
            if stream.stopped_by is not None:
                break
        sequence.stopped_by = stream.stopped_by
        sequence.finish_reason = "stop" if stream.stopped_by is not None else commit.finish_reason
        return (text + stream.flush() if sequence.finish_reason else text), count


@dataclass(frozen=True, slots=True)
class _StepResult:
    """The blocks that were run and the commits that were decided."""

    batch: list[Sequence]
    blocks: list[Block]
    commits: list[Commit]
    outputs: list[Output] = field(default_factory=list)
    parts: list[tuple[Policy, slice]] = field(default_factory=list)
    """Each policy with its part of the batch. None if the backend ran the step by itself: policies learn nothing from
    it."""
    is_own: bool = False
