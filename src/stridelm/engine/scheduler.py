"""Decides which sequences take part in the next step and with how many rows, and which are preempted if the cache is
full."""

from bisect import insort
from itertools import count

from stridelm.cache.kv_cache import BLOCK_SIZE, KVCache, blocks_for
from stridelm.params import InputError
from stridelm.settings import LARGEST_K
from stridelm.types import Sequence

MAX_SEQUENCES = 64
PREFILL_ROWS = 512
"""Maximum number of prompt rows, over all sequences, in one step: long prompts are read in parts."""
_RESERVE = 512
"""Number of an answer's tokens that blocks are reserved for at its start, so that these are contiguous. Other sequences
get the unused ones if they need them."""
_WORTH_WAITING = 64
"""If a running sequence is about to read at least this many tokens that a waiting one begins with as well, the waiting
one waits to share them."""


class Scheduler:
    """First come, first served. A sequence starts when the cache has room for its prompt, and gets more blocks as it
    grows. If no blocks are left, the newest sequences are preempted: their text so far is read again later."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.max_sequences = MAX_SEQUENCES
        self.prefill_rows = PREFILL_ROWS
        """Maximum number of prompt rows in a step."""
        self.shared_prefill_rows = PREFILL_ROWS
        """The same for steps in which other sequences are decoding, since prompt rows delay these."""
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        """`waiting` and `running` are both in order of arrival."""
        self.preemptions = 0
        self._arrivals = count()

    @property
    def has_work(self) -> bool:
        """Whether a step would run anything."""
        return any(not sequence.is_held for sequence in (*self.waiting, *self.running))

    def add(self, sequence: Sequence) -> None:
        if blocks_for(sequence.most_tokens) > self.cache.block_count:
            raise InputError(
                f"prompt and answer may take {sequence.most_tokens} tokens, more than the KV cache holds: ask for "
                "fewer with max_tokens (--max-tokens), or give it more room with cache_tokens (--cache-tokens)"
            )
        sequence.arrival = next(self._arrivals)
        self.waiting.append(sequence)

    def schedule(self) -> list[Sequence]:
        """Allocate blocks for running sequences, admit waiting ones if there is room, and return all that have rows to
        run in this step."""
        ready = self._with_room()
        for sequence in [waiting for waiting in self.waiting if not waiting.is_held]:
            if len(self.running) >= self.max_sequences and not self._held():
                break
            if not self._admit(sequence):
                break
            if len(self.running) >= self.max_sequences:
                self._preempt(self._held()[-1])
            self.waiting.remove(sequence)
            insort(self.running, sequence, key=_arrival)
            ready.append(sequence)
        self._share_rows(ready)
        for sequence in ready:
            self._grant_spare_rows(sequence)
        return _by_policy([sequence for sequence in ready if sequence.allowance])

    def _with_room(self) -> list[Sequence]:
        """The running sequences that are not held, oldest first, each with blocks for what it writes next. The oldest
        is never preempted, so at least one sequence always makes progress."""
        ready: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.is_held or sequence.table is None:  # None: it was just preempted
                continue
            end = min(len(sequence.tokens), sequence.cached + self.prefill_rows)
            if needed := sequence.policy.needed_rows:
                end += min(needed, sequence.room)
            if end <= sequence.table.capacity or self._make_room(sequence, end):
                self.cache.grant(sequence.table, end)
                ready.append(sequence)
        return ready

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Free blocks until a running sequence can have `tokens` tokens. False if it had to be preempted itself."""
        assert sequence.table is not None
        while blocks_for(tokens) - len(sequence.table.blocks) > self.cache.free_blocks:
            if self._reclaim(sequence):
                continue
            victim = max(self.running, key=lambda other: (other.is_held, other.arrival))
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _reclaim(self, asking: Sequence) -> bool:
        """Take back unused reserved blocks of another sequence. Returns whether there were any."""
        return any(
            self.cache.give_back(other.table)
            for other in self.running
            if other.table is not None and other is not asking
        )

    def _preempt(self, sequence: Sequence) -> None:
        """Move a running sequence back to the waiting ones. What it has read can be reused until its blocks are."""
        self.preemptions += 1
        self._leave(sequence)
        sequence.cached = 0
        sequence.policy.release(sequence)
        insort(self.waiting, sequence, key=_arrival)

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence a table, if there is room for its text and for one more block per running one."""
        if any(_is_reading_for(other, sequence) for other in self.running):
            return False
        text = sequence.tokens if sequence.shares_prefixes else []
        least = len(sequence.tokens) + min(sequence.policy.needed_rows, sequence.room)
        while (room := self._room_for(text)) < blocks_for(least):
            if self._reclaim(sequence):
                continue
            held = self._held()
            # Do not preempt in vain: a preempted sequence has to read its text again.
            if not held or self._room_without(held, text) < blocks_for(least):
                return False
            self._preempt(held[-1])
        wanted = min(sequence.most_tokens, len(sequence.tokens) + _RESERVE) + sequence.policy.spare_rows
        sequence.table = self.cache.adopt(text, min(wanted, room * BLOCK_SIZE))
        self.cache.grant(sequence.table, least)
        sequence.cached = sequence.table.length
        if not sequence.stats.rows:
            sequence.stats.reused = sequence.cached
        return True

    def _room_for(self, text: list[int]) -> int:
        """Number of blocks that a new table for this text may have, shared ones included. One block is left free for
        each running sequence."""
        return self.cache.free_blocks + self.cache.shared_blocks(text) - len(self.running)

    def _room_without(self, sequences: list[Sequence], text: list[int]) -> int:
        """The same, if these sequences were preempted."""
        tables = [sequence.table for sequence in sequences if sequence.table is not None]
        return self.cache.room_without(tables, text) - (len(self.running) - len(sequences))

    def _held(self) -> list[Sequence]:
        """Running sequences that are held, because their client does not read: these can be preempted first."""
        return [sequence for sequence in self.running if sequence.is_held]

    def _share_rows(self, ready: list[Sequence]) -> None:
        """Decoding sequences get all their rows; prompts share a budget, oldest first."""
        for sequence in ready:
            sequence.allowance = len(sequence.tokens) - sequence.cached
        # Most sequences have one row to run; those that read a prompt have more.
        reading = [sequence for sequence in ready if sequence.allowance > 1 and _is_reading(sequence)]
        left = self.prefill_rows if len(reading) == len(ready) else min(self.prefill_rows, self.shared_prefill_rows)
        for sequence in sorted(reading, key=_arrival):
            sequence.allowance = min(sequence.allowance, left)
            left -= sequence.allowance

    def _grant_spare_rows(self, sequence: Sequence) -> None:
        """Grant room for drafts and masks. These are optional: they use free blocks only, and nothing is preempted for
        them."""
        table, length = sequence.table, len(sequence.tokens)
        assert table is not None
        if sequence.cached + sequence.allowance == length:
            wanted = length + sequence.policy.spare_rows
            if wanted > table.capacity:
                wanted = min(wanted, table.capacity + self.cache.free_blocks * BLOCK_SIZE)
            self.cache.grant(table, wanted)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended or was cancelled."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.running.remove(sequence)
        self.cache.free(sequence.table)
        sequence.table = None


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _by_policy(sequences: list[Sequence]) -> list[Sequence]:
    """In order of arrival, but grouped by policy, so that a policy plans and commits all its sequences at once."""
    groups: dict[int, list[Sequence]] = {}
    for sequence in sorted(sequences, key=_arrival):
        groups.setdefault(id(sequence.policy), []).append(sequence)
    return [sequence for group in groups.values() for sequence in group]


def _is_reading(sequence: Sequence) -> bool:
    """Whether a text is being read, for the first time or again. The few pending tokens that an unverified decoder
    leaves do not count: they are always run in one step."""
    pending = len(sequence.tokens) - sequence.cached
    return pending > LARGEST_K or (pending > 1 and len(sequence.tokens) == sequence.prompt_length)


def _is_reading_for(other: Sequence, sequence: Sequence) -> bool:
    """Whether another sequence is reading, or about to read, a long prefix that this sequence shares."""
    if not _is_reading(other) or other.is_held or not sequence.shares_prefixes:
        return False
    ahead = slice(other.cached, other.cached + _WORTH_WAITING)
    length = min(len(other.tokens), len(sequence.tokens))
    return length >= ahead.stop and other.tokens[ahead] == sequence.tokens[ahead] and _starts_alike(other, sequence)


def _starts_alike(other: Sequence, sequence: Sequence) -> bool:
    return other.tokens[: other.cached] == sequence.tokens[: other.cached]
