"""Who takes part in the next step, and with how many rows."""

from collections import deque

from stridelm.model.kv_cache import BLOCK_SIZE, KVCache, blocks_for
from stridelm.params import InputError
from stridelm.types import Sequence

MOST_SEQUENCES = 64
PREFILL_ROWS = 512
"""Rows of prompts, over all sequences, in one step: long prompts are read in parts, so that nobody waits for them."""


class Scheduler:
    """First come, first served. A sequence starts when the cache has room for all that it may still write."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.most_sequences = MOST_SEQUENCES
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        if blocks_for(_most_tokens(sequence)) > self.cache.block_count:
            raise InputError(
                f"prompt and answer may take {_most_tokens(sequence)} tokens, more than the KV cache holds: ask for "
                "fewer with max_tokens (--max-tokens), or give it more room with cache_tokens (--cache-tokens)"
            )
        self.waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        """Whether a step would run anything."""
        return bool(self.waiting) or any(not sequence.is_held for sequence in self.running)

    def schedule(self) -> list[Sequence]:
        """Admit whom there is room for, then let everyone in who has rows to run."""
        while self.waiting and len(self.running) < self.most_sequences:
            free = self.cache.free_blocks
            if blocks_for(_most_tokens(self.waiting[0])) > free:
                break
            sequence = self.waiting.popleft()
            # Spare rows are a luxury: a sequence that has no room for them starts all the same.
            reserve = min(_most_tokens(sequence) + sequence.policy.spare_rows, free * BLOCK_SIZE)
            sequence.table = self.cache.open(reserve)
            self.running.append(sequence)
        left = PREFILL_ROWS
        for sequence in self.running:
            pending = len(sequence.tokens) - sequence.cached
            # What was written goes in whole: an unverified decoder leaves several tokens pending.
            is_prompt = pending > 1 and len(sequence.tokens) == sequence.prompt_length
            sequence.allowance = min(pending, left) if is_prompt else pending
            left -= sequence.allowance if is_prompt else 0
        # Sequences of one policy stand together, so that it plans and commits them at once.
        return sorted((s for s in self.running if s.allowance), key=lambda sequence: id(sequence.policy))

    def remove(self, sequence: Sequence) -> None:
        """The sequence has ended, or nobody wants it any more."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence.table is not None:
            self.cache.free(sequence.table)
            sequence.table = None


def _most_tokens(sequence: Sequence) -> int:
    return min(sequence.prompt_length + sequence.params.max_tokens, sequence.context_length)
