"""A model that is a hash: what it says of a row depends on every token that the row sees, read from the cache, and on
nothing else. One wrong block, and it says something else. It takes microseconds, for schedulers to be tried long."""

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stridelm.model.kv_cache import KVCache, Table
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


def logits_of(hashes_W: np.ndarray) -> torch.Tensor:
    """From what rows have seen to what they say: any bit changes everything."""
    words_WV = hashes_W[:, None] + _STEPS
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        words_WV = (words_WV ^ (words_WV >> np.uint64(shift))) * np.uint64(factor)
    return torch.from_numpy((words_WV >> np.uint64(40)).astype(np.float32) / 2**21)


class HashForward:
    """In the place of a TorchForward."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.rows = 0

    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        self.rows += len(rows.ids_Q)
        counts = [segment.stop - segment.start for segment in rows.segments]
        slots = [self.cache.append(table, count) for table, count in zip(tables, counts, strict=True)]
        tokens_1Q1 = torch.from_numpy(rows.ids_Q).float().view(1, -1, 1)
        self.cache.write(0, torch.from_numpy(np.concatenate(slots)), tokens_1Q1, -tokens_1Q1)
        return [self._output(rows, block, table) for block, table in enumerate(tables)]

    def _output(self, rows: Rows, block: int, table: Table) -> Output:
        segment, start = rows.segments[block], rows.starts[block]
        assert table.length == start, "the block does not begin where the cache ends"
        slots = self.cache.reading_slots(table)
        keys, values = self.cache.read(0, slots if isinstance(slots, slice) else torch.from_numpy(slots))
        assert torch.equal(keys, -values)
        read = keys[0, :, 0].long().numpy()
        seen = contributions(read[:start], range(start)).sum(dtype=np.uint64)
        own_q = contributions(read[start:], rows.positions_Q[segment])
        hashes_q = seen + (rows.ancestors[block] * own_q[None, :]).sum(axis=1, dtype=np.uint64)
        wanted = rows.wanted_W[rows.wanted_segments[block]] - segment.start
        return Output(logits_of(hashes_q[wanted]))


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
