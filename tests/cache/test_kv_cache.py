"""The cache against a plain list per sequence: whatever is appended, kept, shared or cut, the content stays right."""

import contextlib
import random

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stridelm.backends.torch.memory import TorchMemory
from stridelm.cache.kv_cache import BLOCK_SIZE, CacheFull, KVCache, Table, blocks_for

HEADS, SIZE, LAYERS = 2, 3, 2


def rows_of(values: list[int], layer: int) -> torch.Tensor:
    """Keys that name their own value and layer, so that a wrong place shows."""
    return torch.tensor(values, dtype=torch.float32).add(layer * 1000).view(1, -1, 1).expand(HEADS, -1, SIZE)


def cache_of(blocks: int) -> KVCache:
    return KVCache(blocks * BLOCK_SIZE, TorchMemory(blocks * BLOCK_SIZE))


def memory_of(cache: KVCache) -> TorchMemory:
    assert isinstance(cache.memory, TorchMemory)
    return cache.memory


def write(cache: KVCache, table: Table, values: list[int]) -> None:
    slots = torch.from_numpy(cache.append(table, len(values)))
    for layer in range(LAYERS):
        memory_of(cache).write(layer, slots, rows_of(values, layer), -rows_of(values, layer))


def content(cache: KVCache, table: Table, layer: int) -> list[int]:
    slots = cache.reading_slots(table)
    keys, values = memory_of(cache).read(layer, slots if isinstance(slots, slice) else torch.from_numpy(slots))
    assert torch.equal(keys, -values)
    return (keys[0, :, 0] - layer * 1000).int().tolist()


class CacheMachine(RuleBasedStateMachine):
    """Tables beside lists."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = cache_of(24)
        self.expected: dict[Table, list[int]] = {}
        self.published: list[list[int]] = []
        self.next = 0

    def fresh(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    def pick(self, data: st.DataObject) -> Table:
        return data.draw(st.sampled_from(list(self.expected)))

    @rule(reserve=st.integers(0, 60))
    def open(self, reserve: int) -> None:
        try:
            self.expected[self.cache.open(reserve)] = []
        except CacheFull:
            assert reserve > self.cache.free_blocks * BLOCK_SIZE

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), count=st.integers(1, 40))
    def step(self, data: st.DataObject, count: int) -> None:
        """Append rows and keep a rising path of them."""
        table, values = self.pick(data), self.fresh(count)
        path = sorted(data.draw(st.sets(st.integers(0, count - 1))))
        try:
            write(self.cache, table, values)
        except CacheFull:
            return
        self.cache.check_integrity()
        assert content(self.cache, table, 1) == self.expected[table] + values
        self.cache.keep(table, path)
        self.expected[table] += [values[row] for row in path]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        table = self.pick(data)
        length = data.draw(st.integers(table.published * BLOCK_SIZE, table.length))
        self.cache.truncate(table, length)
        del self.expected[table][length:]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """What the cache knows is remembered here for good, the cache may forget it."""
        table = self.pick(data)
        self.cache.publish(table, self.expected[table])
        self.published.append(list(self.expected[table]))

    @precondition(lambda self: self.published)
    @rule(data=st.data(), reserve=st.integers(0, 40), further=st.integers(0, 20))
    def adopt(self, data: st.DataObject, reserve: int, further: int) -> None:
        """A text that begins as an earlier one did: whatever part of it is known has the right content."""
        text = data.draw(st.sampled_from(self.published))
        text = text[: data.draw(st.integers(0, len(text)))] + self.fresh(further)
        with contextlib.suppress(CacheFull):
            table = self.cache.adopt(text, reserve)
            assert table.length % BLOCK_SIZE == 0 and table.length < max(1, len(text))
            assert table.capacity >= reserve
            self.expected[table] = text[: table.length]

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), tokens=st.integers(1, 90))
    def grant(self, data: st.DataObject, tokens: int) -> None:
        table = self.pick(data)
        with contextlib.suppress(CacheFull):
            self.cache.grant(table, tokens)
            self.cache.give_back(table)
            assert table.capacity >= tokens

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        table, free = self.pick(data), self.cache.free_blocks
        assert self.cache.give_back(table) == self.cache.free_blocks - free

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table = self.pick(data)
        del self.expected[table]
        self.cache.free(table)

    @invariant()
    def holds(self) -> None:
        self.cache.check_integrity()
        for table, expected in self.expected.items():
            assert table.length == len(expected)
            if expected:
                for layer in range(LAYERS):
                    assert content(self.cache, table, layer) == expected

    def teardown(self) -> None:
        for table in list(self.expected):
            self.cache.free(table)
        assert self.cache.free_blocks == self.cache.block_count


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def text_in(cache: KVCache, values: list[int]) -> Table:
    """A table that holds these values, and is known for them."""
    table = cache.open()
    write(cache, table, values)
    cache.keep(table, range(len(values)))
    cache.publish(table, values)
    return table


def test_what_is_known_is_copied_into_a_run_while_there_is_room() -> None:
    cache = cache_of(16)
    text = list(range(40))
    first = text_in(cache, text)
    second = cache.adopt(text, reserve=60)
    assert second.length == 32 and second.is_run
    assert not set(second.blocks) & set(first.blocks)
    assert content(cache, second, 1) == text[:32]


def test_what_is_known_is_shared_where_room_is_scarce() -> None:
    cache = cache_of(6)
    text = list(range(40))
    first = text_in(cache, text)
    second = cache.adopt(text, reserve=60)
    assert second.blocks[:2] == first.blocks[:2] and second.blocks[2:] != first.blocks[2:]
    assert cache.free_blocks == 6 - 3 - 2
    write(cache, second, [77])
    cache.keep(second, [0])
    cache.check_integrity()
    assert content(cache, first, 0) == text
    assert content(cache, second, 0) == [*text[:32], 77]


def test_a_text_of_whole_blocks_leaves_a_row_to_run() -> None:
    cache = cache_of(8)
    text = list(range(2 * BLOCK_SIZE))
    text_in(cache, text)
    assert cache.adopt(text).length == BLOCK_SIZE
    assert cache.adopt([*text, 7]).length == 2 * BLOCK_SIZE
    assert cache.adopt([]).length == 0


def test_what_nobody_holds_is_known_until_its_room_is_needed_the_oldest_first() -> None:
    cache = cache_of(4)
    old, new = list(range(100, 117)), list(range(200, 217))
    for text in (old, new):
        cache.free(text_in(cache, text))
    assert cache.free_blocks == 4
    for text in (old, new, old):  # looked at last: the old one
        table = cache.adopt(text)
        assert table.length == BLOCK_SIZE
        cache.free(table)
    holder = cache.open(reserve=3 * BLOCK_SIZE)
    table = cache.adopt(old)
    assert table.length == BLOCK_SIZE
    cache.free(table)
    assert cache.adopt(new).length == 0
    cache.free(holder)


def test_a_text_that_has_just_ended_is_known_longer_than_one_that_ended_before() -> None:
    cache = cache_of(4)
    long, short = list(range(100, 117)), list(range(200, 217))
    running = text_in(cache, long)
    cache.free(text_in(cache, short))
    cache.free(running)
    cache.open(reserve=3 * BLOCK_SIZE)
    assert cache.adopt(long).length == BLOCK_SIZE


def test_the_same_text_behind_another_one_is_another_text() -> None:
    cache = cache_of(12)
    same = [7] * BLOCK_SIZE
    text_in(cache, [*range(BLOCK_SIZE), *same, 1])
    assert cache.adopt([*same, 1]).length == 0


def test_a_granted_block_is_not_taken_back_before_the_step() -> None:
    cache = cache_of(8)
    table = cache.open(reserve=6 * BLOCK_SIZE)
    cache.grant(table, 2 * BLOCK_SIZE)
    assert cache.give_back(table) == 4
    write(cache, table, list(range(20)))
    cache.keep(table, [0])
    assert len(table.blocks) == 1


def test_reserved_blocks_lie_in_one_run_and_are_read_without_a_copy() -> None:
    cache = cache_of(16)
    tables = [cache.open(reserve=3 * BLOCK_SIZE) for _ in range(3)]
    cache.free(tables[1])
    again = cache.open(reserve=4 * BLOCK_SIZE)
    write(cache, again, list(range(50)))
    assert isinstance(cache.reading_slots(again), slice)
    keys, _ = memory_of(cache).read(0, cache.reading_slots(again))  # type: ignore[arg-type]
    assert keys.data_ptr() == memory_of(cache).layers[0][0][:, again.blocks[0] * BLOCK_SIZE :].data_ptr()


def test_scattered_blocks_read_the_same() -> None:
    cache = cache_of(6)
    tables = [cache.open(reserve=1) for _ in range(6)]
    for index in (1, 3, 5):
        cache.free(tables[index])
    scattered = cache.open(reserve=3 * BLOCK_SIZE)
    write(cache, scattered, list(range(40)))
    assert isinstance(cache.reading_slots(scattered), np.ndarray)
    assert content(cache, scattered, 0) == list(range(40))


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_taken_where_the_latest_use_is_longest_ago(seed: int) -> None:
    draw = random.Random(seed)
    count, texts = draw.randrange(2, 10), [[number] * draw.randrange(20, 70) for number in range(12)]
    cache = cache_of(sum(blocks_for(len(text)) for text in texts))
    tables = [text_in(cache, text) for text in texts]
    for table in draw.sample(tables, 11):
        cache.free(table)
    missed = np.where(cache.references == 0, cache.index.last_use, np.inf)
    latest = [missed[first : first + count].max() for first in range(len(missed) - count + 1)]
    first = int(np.argmin(latest))
    assert latest[first] < np.inf, "the test needs a run"
    assert cache.open(reserve=count * BLOCK_SIZE).blocks == list(range(first, first + count))
    cache.check_integrity()


def test_a_full_cache_says_what_to_do() -> None:
    cache = cache_of(2)
    with pytest.raises(CacheFull, match="cache_tokens"):
        cache.open(reserve=3 * BLOCK_SIZE)
    cache.check_integrity()


def test_check_integrity_sees_a_wrong_count_and_a_shared_write() -> None:
    cache = cache_of(4)
    table = cache.open(reserve=BLOCK_SIZE)
    cache.references[table.blocks[0]] += 1
    with pytest.raises(AssertionError, match="reference count"):
        cache.check_integrity()
    cache.references[table.blocks[0]] -= 1
    cache.free_blocks += 1
    with pytest.raises(AssertionError, match="miscounted"):
        cache.check_integrity()
    cache.free_blocks -= 1
    cache.append(table, 1)
    cache.references[table.blocks[0]] += 1
    with pytest.raises(AssertionError, match="shared"):
        cache.check_integrity()


def test_what_is_forgotten_is_read_anew_and_what_is_in_use_stays() -> None:
    cache = cache_of(8)
    text = list(range(40))
    first = text_in(cache, text)
    cache.forget()
    assert cache.adopt(text).length == 0
    assert content(cache, first, 0) == text
    cache.publish(first, text)
    cache.check_integrity()
