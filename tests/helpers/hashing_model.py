"""A model that is a hash: what it says of a row depends on every token that the row sees, read from the cache, and on
nothing else. One wrong block, and it says something else. It takes microseconds, for schedulers to be tried long."""

from typing import Any

import numpy as np
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stridelm import arrays
from stridelm.cache.kv_cache import BLOCK_SIZE, KVCache, Table, blocks_for
from stridelm.contracts import Growth
from stridelm.params import SamplingParams
from stridelm.sampling import draw
from stridelm.types import Output, Rows

VOCABULARY = 24
END = VOCABULARY - 1
CONTEXT = 160
_WEIGHTS = np.random.default_rng(5).integers(0, 2**63, CONTEXT, dtype=np.uint64)
_STEPS = np.arange(1, VOCABULARY + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def contributions(tokens: Any, positions: Any) -> np.ndarray:
    return (np.asarray(tokens, dtype=np.uint64) + np.uint64(1)) * _WEIGHTS[np.asarray(positions, dtype=np.int64)]


def logits_of(hashes_W: np.ndarray) -> np.ndarray:
    """From what rows have seen to what they say: any bit changes everything."""
    words_WV = hashes_W[:, None] + _STEPS
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        words_WV = (words_WV ^ (words_WV >> np.uint64(shift))) * np.uint64(factor)
    return (words_WV >> np.uint64(40)).astype(np.float32) / np.float32(2**21)


class TokenMemory:
    """Keeps `kv_cache.KVMemory`: of every slot just the token."""

    def __init__(self, slots: int) -> None:
        self.tokens = np.full(slots, -1)

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        self.tokens[target] = self.tokens[source]


class HashForward:
    """In the place of a TorchForward. Hands out numpy arrays, as a native backend does."""

    width, layers, longest, backend, identity = 1, 1, CONTEXT, "hash", ()

    def __init__(self, blocks: int, gate: "HashGate | None" = None) -> None:
        self.gate = gate
        self.memory = TokenMemory(blocks * BLOCK_SIZE)
        self.cache = KVCache(blocks * BLOCK_SIZE, self.memory)
        self.rows = 0

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        self.rows += len(rows.ids_Q)
        counts = [segment.stop - segment.start for segment in rows.segments]
        slots = [self.cache.append(table, count) for table, count in zip(tables, counts, strict=True)]
        self.memory.tokens[np.concatenate(slots)] = rows.ids_Q
        return [self._output(rows, block, table) for block, table in enumerate(tables)]

    def _output(self, rows: Rows, block: int, table: Table) -> Output:
        segment, start = rows.segments[block], rows.starts[block]
        assert table.length == start, "the block does not begin where the cache ends"
        read = self.memory.tokens[self.cache.reading_slots(table)]
        seen = contributions(read[:start], range(start)).sum(dtype=np.uint64)
        own_q = contributions(read[start:], rows.positions_Q[segment])
        hashes_q = seen + (rows.ancestors[block] * own_q[None, :]).sum(axis=1, dtype=np.uint64)
        wanted = rows.wanted_W[rows.wanted_segments[block]] - segment.start
        is_mask_q = np.isin(np.arange(segment.start, segment.stop), rows.mask_rows_M)
        if not is_mask_q.any():
            return Output(logits_of(hashes_q[wanted]))
        for row in np.flatnonzero(is_mask_q):
            seen_q = rows.ancestors[block][row]
            path = [*read[:start].tolist(), *read[start:][seen_q & ~is_mask_q].tolist()]
            hashes_q[row] = _foreseen(path, int((seen_q & is_mask_q).sum()))
        return Output(logits_of(hashes_q[wanted]), np.zeros((len(wanted), 1), dtype=np.float32))

    def with_cache(self, tokens: int) -> "HashForward":
        return HashForward(blocks_for(tokens), self.gate)

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        raise AssertionError("nothing is scored outside of a step")

    def zeros(self, rows: int) -> np.ndarray:
        return np.zeros((rows, 1), dtype=np.float32)

    def synchronize(self) -> None: ...

    def stepper(self, drafts: int, places: int, ends: frozenset[int]) -> None:
        """The host takes part in every step."""


class HashGate:
    """Keeps `contracts.Gate`, without a sequential head. Its masks foresee what greedy decoding writes."""

    k, state_size, tail = 5, 0, 0
    prior = None

    def foretell(self, hidden_C: np.ndarray) -> np.ndarray:
        raise AssertionError("there are no tail heads")

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        raise AssertionError("no mask is deferred")

    def top(self, logits_V: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        return arrays.top(logits_V, count)

    def grow(self, logits_DV: np.ndarray, hidden_DC: np.ndarray, state_1S: np.ndarray | None, growth: Growth) -> None:
        """Depth by depth."""

    def start(self, chains: int) -> np.ndarray:
        raise AssertionError("there is no sequential head")

    def read(self, hidden_XC: np.ndarray, before: list[int], state_XS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("there is no sequential head")

    def moved(self, tokens_N: np.ndarray, logits: np.ndarray, added: np.ndarray) -> np.ndarray:
        raise AssertionError("there is no sequential head")


def _foreseen(path: list[int], depth: int) -> np.uint64:
    """What a row has seen that stands so many greedy tokens behind a path."""
    for _ in range(depth):
        if len(path) == CONTEXT:
            break
        seen = contributions(path, range(len(path))).sum(dtype=np.uint64)
        path = [*path, int(logits_of(np.array([seen]))[0].argmax())]
    return contributions(path, range(len(path))).sum(dtype=np.uint64)


def answer(prompt: list[int], params: SamplingParams, seed: int, choice: int = 0) -> list[int]:
    """What the model writes, one token at a time, without a cache."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < params.max_tokens and len(tokens) < CONTEXT:
        seen = contributions(tokens, range(len(tokens))).sum(dtype=np.uint64)
        logits_V = logits_of(np.array([seen]))[0]
        tokens.append(draw(logits_V, params, tokens, len(prompt), seed=seed, choice=choice))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


def letters() -> PreTrainedTokenizerBase:
    """A letter a token."""
    vocabulary = {chr(ord("a") + token): token for token in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="a")))
