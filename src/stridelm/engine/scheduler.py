"""Who takes part in the next step, and with how many rows; who gets the cache's blocks when there are too few."""

from bisect import insort
from itertools import count

from stridelm.cache.kv_cache import BLOCK_SIZE, KVCache, blocks_for
from stridelm.params import InputError
from stridelm.settings import LARGEST_K
from stridelm.types import Sequence

MAX_SEQUENCES = 64
PREFILL_ROWS = 512
"""Rows of prompts, over all sequences, in one step: long prompts are read in parts."""
_RESERVE = 512
"""Tokens of an answer that room is set aside for at its start, so that its blocks lie in one run. Others get what of it
is not used yet when they need it."""
_WORTH_WAITING = 64
"""Tokens that a sequence waits for another to read, to share them, rather than read them as well."""


class Scheduler:
    """First come, first served. A sequence starts when the cache has room for its prompt, and takes more as it grows.
    When nothing is left, those that came last make room: their text so far is read again later."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.max_sequences = MAX_SEQUENCES
        self.prefill_rows = PREFILL_ROWS
        """Maximum number of rows of prompts in a step."""
        self.shared_prefill_rows = PREFILL_ROWS
        """Rows of prompts in a step in which others write: they wait for it."""
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        """Both in the order of arrival."""
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
        """Make room for those who run, admit whom there is room for, and let everyone in who has rows to run."""
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
            self._spare(sequence)
        return _by_policy([sequence for sequence in ready if sequence.allowance])

    def _with_room(self) -> list[Sequence]:
        """Those who run and are not held, the oldest first, each with blocks for what it writes next. The oldest never
        makes room for anyone, so there is always someone who gets on."""
        ready: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.is_held or sequence.table is None:  # or it has just made room
                continue
            end = min(len(sequence.tokens), sequence.cached + self.prefill_rows)
            if needed := sequence.policy.needed_rows:
                end += min(needed, sequence.room)
            if end <= sequence.table.capacity or self._make_room(sequence, end):
                self.cache.grant(sequence.table, end)
                ready.append(sequence)
        return ready

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Whether the cache has blocks for so many tokens of a running sequence, once others have made room."""
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
        """Whether there was something set aside for another that is not in use: it is free now."""
        return any(
            self.cache.give_back(other.table)
            for other in self.running
            if other.table is not None and other is not asking
        )

    def _preempt(self, sequence: Sequence) -> None:
        """Let a sequence wait again. What it read stays known as long as nobody takes its blocks."""
        self.preemptions += 1
        self._leave(sequence)
        sequence.cached = 0
        sequence.policy.release(sequence)
        insort(self.waiting, sequence, key=_arrival)

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence a table, if there is room for its text and for the next block of everyone else."""
        if any(_is_reading_for(other, sequence) for other in self.running):
            return False
        text = sequence.tokens if sequence.shares_prefixes else []
        least = len(sequence.tokens) + min(sequence.policy.needed_rows, sequence.room)
        while (room := self._room_for(text)) < blocks_for(least):
            if self._reclaim(sequence):
                continue
            held = self._held()
            # Nobody makes room in vain: what was read would have to be read again.
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
        """Blocks that a new table for this text may have, shared ones included. Everyone else keeps its next one."""
        return self.cache.free_blocks + self.cache.shared_blocks(text) - len(self.running)

    def _room_without(self, sequences: list[Sequence], text: list[int]) -> int:
        """The same, if these sequences made room."""
        tables = [sequence.table for sequence in sequences if sequence.table is not None]
        return self.cache.room_without(tables, text) - (len(self.running) - len(sequences))

    def _held(self) -> list[Sequence]:
        """Those that have a place, and whose text nobody reads: they can wait without one."""
        return [sequence for sequence in self.running if sequence.is_held]

    def _share_rows(self, ready: list[Sequence]) -> None:
        """Everyone who writes gets its rows; the budget of prompts goes to those who came first."""
        for sequence in ready:
            sequence.allowance = len(sequence.tokens) - sequence.cached
        # Most have one row to run: whoever reads has more.
        reading = [sequence for sequence in ready if sequence.allowance > 1 and _is_reading(sequence)]
        left = self.prefill_rows if len(reading) == len(ready) else min(self.prefill_rows, self.shared_prefill_rows)
        for sequence in sorted(reading, key=_arrival):
            sequence.allowance = min(sequence.allowance, left)
            left -= sequence.allowance

    def _spare(self, sequence: Sequence) -> None:
        """Rows for drafts and masks are a luxury: they come out of what is free, and nobody makes room for them."""
        table, length = sequence.table, len(sequence.tokens)
        assert table is not None
        if sequence.cached + sequence.allowance == length:
            wanted = length + sequence.policy.spare_rows
            if wanted > table.capacity:
                wanted = min(wanted, table.capacity + self.cache.free_blocks * BLOCK_SIZE)
            self.cache.grant(table, wanted)

    def remove(self, sequence: Sequence) -> None:
        """The sequence has ended, or nobody wants it any more."""
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
    """In the order of arrival, but sequences of one policy together, so that it plans and commits them at once."""
    groups: dict[int, list[Sequence]] = {}
    for sequence in sorted(sequences, key=_arrival):
        groups.setdefault(id(sequence.policy), []).append(sequence)
    return [sequence for group in groups.values() for sequence in group]


def _is_reading(sequence: Sequence) -> bool:
    """Whether a text is being read, for the first time or again. What an unverified decoder leaves pending goes in
    whole."""
    pending = len(sequence.tokens) - sequence.cached
    return pending > LARGEST_K or (pending > 1 and len(sequence.tokens) == sequence.prompt_length)


def _is_reading_for(other: Sequence, sequence: Sequence) -> bool:
    """Whether another reads, or is about to read, much that the sequence begins with, too."""
    if not _is_reading(other) or other.is_held or not sequence.shares_prefixes:
        return False
    ahead = slice(other.cached, other.cached + _WORTH_WAITING)
    length = min(len(other.tokens), len(sequence.tokens))
    return length >= ahead.stop and other.tokens[ahead] == sequence.tokens[ahead] and _starts_alike(other, sequence)


def _starts_alike(other: Sequence, sequence: Sequence) -> bool:
    return other.tokens[: other.cached] == sequence.tokens[: other.cached]
