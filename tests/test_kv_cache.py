"""The cache against a plain list per sequence: whatever is appended, kept, shared or cut, the content stays right."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stridelm.model.kv_cache import BLOCK_SIZE, CacheFull, KVCache, Table

HEADS, SIZE, LAYERS = 2, 3, 2


def rows_of(values: list[int], layer: int) -> torch.Tensor:
    """Keys that name their own value and layer, so that a wrong place shows."""
    return torch.tensor(values, dtype=torch.float32).add(layer * 1000).view(1, -1, 1).expand(HEADS, -1, SIZE)


def write(cache: KVCache, table: Table, values: list[int]) -> None:
    slots = torch.from_numpy(cache.append(table, len(values)))
    for layer in range(LAYERS):
        cache.write(layer, slots, rows_of(values, layer), -rows_of(values, layer))


def content(cache: KVCache, table: Table, layer: int) -> list[int]:
    slots = cache.reading_slots(table)
    keys, values = cache.read(layer, slots if isinstance(slots, slice) else torch.from_numpy(slots))
    assert torch.equal(keys, -values)
    return (keys[0, :, 0] - layer * 1000).int().tolist()


class CacheMachine(RuleBasedStateMachine):
    """Tables beside lists."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(24 * BLOCK_SIZE)
        self.expected: dict[Table, list[int]] = {}
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
        length = data.draw(st.integers(0, table.length))
        self.cache.truncate(table, length)
        del self.expected[table][length:]

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), reserve=st.integers(0, 40))
    def fork(self, data: st.DataObject, reserve: int) -> None:
        table = self.pick(data)
        length = data.draw(st.integers(0, table.length))
        with contextlib.suppress(CacheFull):
            self.expected[self.cache.fork(table, length, reserve)] = self.expected[table][:length]

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


def test_a_fork_writes_into_blocks_of_its_own() -> None:
    cache = KVCache(8 * BLOCK_SIZE)
    first = cache.open()
    write(cache, first, list(range(20)))
    cache.keep(first, range(20))
    second = cache.fork(first, 20)
    assert second.blocks == first.blocks
    write(cache, second, [77])
    cache.keep(second, [0])
    assert second.blocks[0] == first.blocks[0] and second.blocks[1] != first.blocks[1]
    assert content(cache, first, 0) == list(range(20))
    assert content(cache, second, 0) == [*range(20), 77]


def test_reserved_blocks_lie_in_one_run_and_are_read_without_a_copy() -> None:
    cache = KVCache(16 * BLOCK_SIZE)
    tables = [cache.open(reserve=3 * BLOCK_SIZE) for _ in range(3)]
    cache.free(tables[1])
    again = cache.open(reserve=4 * BLOCK_SIZE)
    write(cache, again, list(range(50)))
    assert isinstance(cache.reading_slots(again), slice)
    keys, _ = cache.read(0, cache.reading_slots(again))  # type: ignore[arg-type]
    assert keys.data_ptr() == cache.layers[0][0][:, again.blocks[0] * BLOCK_SIZE :].data_ptr()


def test_scattered_blocks_read_the_same() -> None:
    cache = KVCache(6 * BLOCK_SIZE)
    tables = [cache.open(reserve=1) for _ in range(6)]
    for index in (1, 3, 5):
        cache.free(tables[index])
    scattered = cache.open(reserve=3 * BLOCK_SIZE)
    write(cache, scattered, list(range(40)))
    assert isinstance(cache.reading_slots(scattered), np.ndarray)
    assert content(cache, scattered, 0) == list(range(40))


def test_a_full_cache_says_what_to_do() -> None:
    cache = KVCache(2 * BLOCK_SIZE)
    with pytest.raises(CacheFull, match="cache_tokens"):
        cache.open(reserve=3 * BLOCK_SIZE)
    cache.check_integrity()


def test_check_integrity_sees_a_wrong_count_and_a_shared_write() -> None:
    cache = KVCache(4 * BLOCK_SIZE)
    table = cache.open(reserve=BLOCK_SIZE)
    cache.references[table.blocks[0]] += 1
    with pytest.raises(AssertionError, match="reference count"):
        cache.check_integrity()
    cache.references[table.blocks[0]] -= 1
    cache.append(table, 1)
    cache.references[table.blocks[0]] += 1
    with pytest.raises(AssertionError, match="shared"):
        cache.check_integrity()
