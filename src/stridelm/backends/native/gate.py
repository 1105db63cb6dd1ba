"""Masks on the native backend: their embeddings, and the sequential head that reads what was drafted.

Shape letters: X rows, M mask rows, D depths of a chain, C model width, S state size, N tokens.
"""

import numpy as np

from stridelm.backends.native.library import (
    Chain,
    DrawRules,
    Grown,
    GrowthRules,
    LogitRows,
    MaskParts,
    Sequential,
    Workspace,
    library,
)
from stridelm.backends.native.packed_file import Packed
from stridelm.backends.native.weights import MASK_EMBEDDING, Weights, address
from stridelm.contracts import Growth
from stridelm.params import SamplingParams
from stridelm.sampling import noise_key
from stridelm.stepper import mask_priors
from stridelm.types import MASKS, DraftTree, GrownTree, Sequence

READ, READ_BIAS, WRITE = "sequential.read", "sequential.read_bias", "sequential.write"
TAIL_UP, TAIL_DOWN = "tail.up", "tail.down"


class NativeGate:
    """An adapter's mask embeddings and sequential head; the forward itself applies the low-rank parts."""

    def __init__(self, weights: Weights, adapter: Packed) -> None:
        self._weights, self._workspace = weights, Workspace()
        notes = adapter.notes
        self.k = int(notes["masks"]) + 1
        prior = notes.get("draft_prior")
        self.prior = None if prior is None else mask_priors(prior)
        self.state_size = int(notes["sequential_size"])
        self._embedding_DC = adapter.vector(MASK_EMBEDDING).reshape(notes["masks"], -1)
        self.tail = int(notes["tail_heads"])
        if self.tail:
            width, size = self._embedding_DC.shape[1], notes["tail_size"]
            self._tail_up_JC = adapter.vector(TAIL_UP).reshape(-1, width)
            self._tail_down_TCS = adapter.vector(TAIL_DOWN).reshape(self.tail, width, size)
        self._sequential = Sequential()  # of size 0
        if self.state_size:
            matrices, bias = (adapter.matrix(name) for name in (READ, WRITE)), adapter.vector(READ_BIAS)
            self._sequential = Sequential(*matrices, address(bias), self.state_size)

    @property
    def parts(self) -> MaskParts:
        """For whole steps: points into the adapter's memory."""
        up, down = (address(self._tail_up_JC), address(self._tail_down_TCS)) if self.tail else (None, None)
        head = self._sequential if self.state_size else Sequential()
        size = self._tail_down_TCS.shape[2] if self.tail else 0
        return MaskParts(self.k - 1, address(self._embedding_DC), self.tail, size, up, down, head)

    def embed(self, depths_M: np.ndarray) -> np.ndarray:
        """Embeddings of mask rows, by their depth in the chain (1 for the first)."""
        return np.ascontiguousarray(self._embedding_DC[np.minimum(depths_M, len(self._embedding_DC)) - 1])

    def foretell(self, hidden_C: np.ndarray) -> np.ndarray:
        """The outputs for the places behind the last mask: T x C."""
        inner_TS = (self._tail_up_JC @ hidden_C).reshape(self.tail, -1)
        inner_TS = inner_TS / (1 + np.exp(-inner_TS))
        return hidden_C + np.einsum("ts,tcs->tc", inner_TS, self._tail_down_TCS)

    def start(self, chains: int) -> np.ndarray:
        return np.zeros((chains, self.state_size), np.float32)

    def read(self, hidden_XC: np.ndarray, before: list[int], state_XS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sequential head at one depth: what it adds to these masks' outputs, given the tokens `before` them, and
        its new states."""
        assert 0 <= min(before) <= max(before) < self._weights.vocabulary, "no such token"
        hidden_XC, state_XS = (np.ascontiguousarray(each, np.float32) for each in (hidden_XC, state_XS))
        before_X = np.array(before, np.int64)
        added_XC, next_XS = np.empty_like(hidden_XC), np.empty_like(state_XS)
        library().stride_read_chain(
            self._weights.model, self._sequential, self._workspace.handle, len(before), address(hidden_XC),
            address(before_X), address(state_XS), address(added_XC), address(next_XS),
        )  # fmt: skip
        return added_XC, next_XS

    def moved(self, tokens_N: np.ndarray, logits: np.ndarray, added: np.ndarray) -> np.ndarray:
        """The logits (... x N) of these tokens after the sequential head has added `added` (... x C) to a mask's
        output."""
        assert 0 <= tokens_N.min() <= tokens_N.max() < self._weights.vocabulary, "no such token"
        tokens_N = np.ascontiguousarray(tokens_N, np.int64)
        head = self._weights.model.head
        added_XC = np.zeros((added.size // added.shape[-1], head.groups * 32), np.float32)
        added_XC[:, : added.shape[-1]] = added.reshape(len(added_XC), -1)
        moved = np.array(logits, np.float32, order="C")
        library().stride_add_scores(
            head, address(tokens_N), len(tokens_N), address(added_XC), len(added_XC), address(moved)
        )
        return moved

    def top(self, logits_V: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` likeliest tokens, in any order, and their logits."""
        places_N = np.empty(count, np.int64)
        library().stride_top(address(logits_V), len(logits_V), count, address(places_N))
        return places_N, logits_V[places_N]

    def grow(
        self, logits_DV: np.ndarray, hidden_DC: np.ndarray, state_1S: np.ndarray | None, growth: Growth
    ) -> GrownTree:
        depth, sequence, params = len(hidden_DC), growth.sequence, growth.sequence.params
        before = sequence.tokens[-1]
        assert logits_DV.strides[1] == 4 and 0 <= before < self._weights.vocabulary, "float32 rows, a token"
        state_1S = np.ascontiguousarray(self.start(1) if state_1S is None else state_1S, np.float32)
        hidden_DC = np.ascontiguousarray(hidden_DC, np.float32)
        biased_N, biases_N = bias_arrays(params)
        ends = np.array([*sequence.eos_ids], np.int64)
        room = depth * growth.branches
        counts, bud_nodes = np.zeros(2, np.int64), np.empty(room, np.int64)
        nodes = np.empty((2, room * growth.branches), np.int64)
        scores, states_BS = np.empty(room * growth.branches), np.empty((room, self.state_size), np.float32)
        vocabulary, stride = logits_DV.shape[1], logits_DV.strides[0] // 4
        rules = GrowthRules(
            before, len(sequence.tokens), growth.branches, growth.floor, draw_rules(sequence),
            len(biased_N), address(biased_N), address(biases_N), len(ends), address(ends),
        )  # fmt: skip
        first = address(counts)
        library().stride_grow(
            self._weights.model, self._sequential, Chain(depth, address(hidden_DC), address(state_1S)),
            LogitRows(address(logits_DV[0]), vocabulary, stride, min(growth.candidates, vocabulary)), rules,
            Grown(first, first + 8, address(nodes[0]), address(nodes[1]), address(scores), address(bud_nodes),
                  address(states_BS)),
            self._workspace.handle,
        )  # fmt: skip
        count, buds = counts.tolist()
        tokens, parents = nodes[:, :count].tolist()
        tree = DraftTree.of(tokens, parents, MASKS, scores[:count].tolist())
        return GrownTree(tree, bud_nodes[:buds].tolist(), states_BS)

    def score(self, hidden_XC: np.ndarray) -> np.ndarray:
        return self._weights.score(hidden_XC)


def bias_arrays(params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """The tokens, and what is added to their logits."""
    return np.array([*params.logit_bias], np.int64), np.array([*params.logit_bias.values()], np.float32)


def draw_rules(sequence: Sequence) -> DrawRules:
    params, key = sequence.params, noise_key(sequence.seed, sequence.choice)
    return DrawRules(params.temperature, params.top_p, params.min_p, params.top_k, key)
