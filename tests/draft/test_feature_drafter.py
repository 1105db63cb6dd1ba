"""Drafters that read the target: its hidden states, or its keys and values. The contract is all that they need.

Both draft by likeness: where was the target in the same state before, and what followed there?
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from reference import NEAR_TIE, first_departure, reference
from stepping import step_of
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.gated import TorchGate
from stridelm.backends.torch.llama_layer import has_llama_layers
from stridelm.backends.torch.memory import TorchMemory
from stridelm.cache.kv_cache import BLOCK_SIZE, KVCache
from stridelm.contracts import Drafter, Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Cost
from stridelm.decode.planned import Planned
from stridelm.decode.speculative import Speculative
from stridelm.draft.mask import MaskDrafter
from stridelm.engine.engine import Engine
from stridelm.params import SamplingParams
from stridelm.types import NO_DRAFT, ROOT, Block, Commit, DraftTree, Output, Sequence
from tiny import plain_network

FAMILIES = ("llama", "qwen3", "gemma3")
"""Layers of our own, transformers' layers, and those with scaled embeddings and windows."""
PROMPTS = ("abcabcabcabd abcabc", "The quick brown fox jumps over the lazy dog, and the quick brown", "x")
GREEDY = SamplingParams(max_tokens=32)
LAYERS = (0, 1)
STATES = (*LAYERS, len(LAYERS))
"""What each layer reads, and what the output head reads behind them."""
BRANCHES, LONGEST = 3, 4
CACHE_TOKENS = 2048


def drafts_by_likeness(state_TC: torch.Tensor, sequence: Sequence, name: str) -> DraftTree:
    """What followed at the places whose state was most like the present one, as a tree.

    The states end with the last cached token; its successor is known already, and is pending.
    """
    distances = (state_TC[:-1] - state_TC[-1]).norm(dim=-1)
    nodes: dict[tuple[int, ...], int] = {(): ROOT}
    for place in distances.topk(min(BRANCHES, len(distances)), largest=False).indices.tolist():
        followed = tuple(sequence.tokens[place + 2 : place + 2 + LONGEST])
        for depth in range(len(followed)):
            nodes.setdefault(followed[: depth + 1], len(nodes) - 1)
    paths = list(nodes)[1:]
    return DraftTree.of([path[-1] for path in paths], [nodes[path[:-1]] for path in paths], name)


@dataclass(eq=False)
class ReadsHiddenStates:
    """Keeps what two layers and the output head read at every token of a text."""

    name = "hidden states"
    layers: tuple[int, ...] = STATES
    reads_whole_texts = True
    is_optional = reads_predictions = False
    kept: dict[Sequence, dict[int, torch.Tensor]] = field(default_factory=dict)
    finished: dict[Sequence, dict[int, torch.Tensor]] = field(default_factory=dict)
    branches: list[tuple[list[int], dict[int, torch.Tensor]]] = field(default_factory=list)
    """Every branch that was run, as the text that ends with it, and what the layers read in its last so many rows."""

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        return [
            drafts_by_likeness(self.kept[sequence][LAYERS[-1]], sequence, self.name)
            if sequence in self.kept
            else NO_DRAFT
            for sequence in sequences
        ]

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        for sequence, block, output, commit in zip(sequences, blocks, outputs, commits, strict=True):
            assert all(len(read_qC) == len(block) for read_qC in output.layers_qC.values())
            before = self.kept.get(sequence)
            self.kept[sequence] = {
                layer: torch.cat(([before[layer]] if before else []) + [output.layers_qC[layer][list(commit.kept)]])
                for layer in self.layers
            }
            assert len(self.kept[sequence][LAYERS[0]]) == sequence.cached
            for end in set(range(len(block.tree))) - set(block.tree.parents):
                rows = _path(block, block.pending + end)
                text = sequence.tokens[: block.start] + [block.tokens[row] for row in rows]
                self.branches.append((text, {layer: output.layers_qC[layer][rows] for layer in self.layers}))

    def release(self, sequence: Sequence) -> None:
        self.finished[sequence] = self.kept.pop(sequence)


def _path(block: Block, row: int) -> list[int]:
    """The rows of a block from its first one to this."""
    above = [] if block.parents[row] == ROOT else _path(block, block.parents[row])
    return [*above, row]


@dataclass(eq=False)
class ReadsKeysAndValues:
    """Looks into the target's cache before every step, and compares what it finds with a plain forward."""

    cache: KVCache
    memory: TorchMemory
    network: Any
    name = "keys and values"
    layers = ()
    reads_whole_texts = is_optional = reads_predictions = False
    looked: int = 0
    scattered: int = 0
    """How often a text's blocks did not lie in one run."""

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        return [self._propose(sequence) for sequence in sequences]

    def _propose(self, sequence: Sequence) -> DraftTree:
        assert sequence.table is not None
        if sequence.cached == 0:
            return NO_DRAFT
        slots = self.cache.reading_slots(sequence.table)
        self.looked += 1
        if not isinstance(slots, slice):
            self.scattered += 1
            slots = torch.from_numpy(slots)
        read = {layer: self.memory.read(layer, slots) for layer in LAYERS}
        plain = plain_keys_and_values(self.network, sequence.tokens[: sequence.cached])
        for layer in LAYERS:
            for ours_HTD, theirs_HTD in zip(read[layer], plain[layer], strict=True):
                torch.testing.assert_close(ours_HTD, theirs_HTD, rtol=1e-4, atol=1e-4)
        _, value_HTD = read[LAYERS[-1]]
        return drafts_by_likeness(value_HTD.transpose(0, 1).flatten(1), sequence, self.name)

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        assert not any(output.layers_qC for output in outputs), "nobody asked for hidden states"

    def release(self, sequence: Sequence) -> None: ...


@torch.inference_mode()
def plain_keys_and_values(network: Any, text: list[int]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    cache = DynamicCache()  # made without a config, it keeps what lies outside of a window, too
    network(input_ids=torch.tensor([text]), past_key_values=cache, use_cache=True)
    return {layer: (cache.layers[layer].keys[0], cache.layers[layer].values[0]) for layer in LAYERS}  # type: ignore[index]


@torch.inference_mode()
def plain_states(network: Any, text: list[int]) -> dict[int, torch.Tensor]:
    """What the layers read, by a forward over the whole text."""
    hidden = network(input_ids=torch.tensor([text]), use_cache=False, output_hidden_states=True).hidden_states
    return {layer: hidden[layer][0] for layer in STATES}


@dataclass
class Bench:
    """An engine, and the same model as transformers made it."""

    checkpoint: Checkpoint
    gate: TorchGate
    network: Any
    engine: Engine

    @property
    def cache(self) -> KVCache:
        return self.engine.forward.cache

    @property
    def memory(self) -> TorchMemory:
        assert isinstance(self.cache.memory, TorchMemory)
        return self.cache.memory

    def encode(self, *texts: str) -> list[list[int]]:
        return [self.checkpoint.tokenizer(text)["input_ids"] for text in texts]  # type: ignore[misc]

    def run(self, prompts: list[list[int]], *policies: Policy, params: SamplingParams = GREEDY) -> list[Sequence]:
        """All prompts at once, by these policies in turn; the answers must be those of the reference."""
        sequences = [
            Sequence(list(ids), params, policies[number % len(policies)], frozenset(), self.checkpoint.context_length)
            for number, ids in enumerate(prompts)
        ]
        for sequence in sequences:
            self.engine.add(sequence)
        while any(sequence.finish_reason is None for sequence in sequences):
            step_of(self.engine)
            self.cache.check_integrity()
        for ids, sequence in zip(prompts, sequences, strict=True):
            expected = reference(self.network, ids, params, frozenset())
            at = first_departure(expected, sequence.output)
            assert at is None or expected[at].margin < NEAR_TIE, f"token {at}"
        return sequences


@pytest.fixture(params=FAMILIES)
def bench(
    request: pytest.FixtureRequest,
    converted: Callable[..., tuple[Checkpoint, TorchGate]],
    tiny_folder: Callable[..., Path],
) -> Bench:
    family = request.param
    checkpoint, gate = converted(family)
    assert has_llama_layers(checkpoint.network) == (family == "llama")
    engine = Engine(TorchForward(checkpoint.network, CACHE_TOKENS, gate), checkpoint.tokenizer)
    return Bench(checkpoint, gate, plain_network(str(tiny_folder(family))), engine)


def assert_drafts_stood_and_fell(sequences: list[Sequence], drafter: Drafter) -> None:
    """Else nothing was shown."""
    accepted, drafted = (sum(getattr(each.stats, name) for each in sequences) for name in ("accepted", "drafted"))
    assert 0 < accepted < drafted, f"{drafter.name}: {accepted} of {drafted}"


def assert_plain_states(bench: Bench, drafter: ReadsHiddenStates) -> None:
    assert drafter.finished and drafter.branches
    kept = [(sequence.tokens[: sequence.cached], states) for sequence, states in drafter.finished.items()]
    for text, ours in kept + drafter.branches:
        theirs = plain_states(bench.network, text)
        for layer in STATES:
            torch.testing.assert_close(ours[layer], theirs[layer][-len(ours[layer]) :], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 3])
def test_hidden_states_are_those_of_a_plain_forward(bench: Bench, size: int) -> None:
    drafter = ReadsHiddenStates()
    sequences = bench.run(bench.encode(*PROMPTS)[:size], Speculative(drafter))
    assert set(drafter.finished) == set(sequences)
    assert_plain_states(bench, drafter)
    assert_drafts_stood_and_fell(sequences, drafter)


def test_hidden_states_of_prompts_that_are_read_in_parts(bench: Bench) -> None:
    bench.engine.scheduler.prefill_rows = 100
    drafter = ReadsHiddenStates()
    prompts = bench.encode(*(f"{number}: " + "to be or not to be, " * 11 for number in range(3)))
    sequences = bench.run(prompts, Speculative(drafter), params=SamplingParams(max_tokens=8))
    assert all(sequence.stats.prefill_forwards > 0 for sequence in sequences)
    assert_plain_states(bench, drafter)


def test_hidden_states_beside_masks_and_beside_those_who_want_none(bench: Bench) -> None:
    """The planner passes on what its drafters want; other answers of the same step are none the wiser."""
    drafter = ReadsHiddenStates()
    planned = Planned(Cost((1, 64), (100.0, 130.0)), masks=MaskDrafter(bench.gate), k=4, drafters=(drafter,))
    sequences = bench.run(bench.encode(*PROMPTS), planned, Autoregressive())
    assert set(drafter.finished) == {sequences[0], sequences[2]}
    assert any(masks for _, _, masks in planned.plans)
    assert_plain_states(bench, drafter)


@pytest.fixture
def crumbled(bench: Bench) -> Iterator[None]:
    """Half of the cache's blocks are taken, every other one, so that no two free ones are neighbours."""
    tables = [bench.cache.open(BLOCK_SIZE) for _ in range(bench.cache.block_count)]
    for table in tables[::2]:
        bench.cache.free(table)
    yield
    for table in tables[1::2]:
        bench.cache.free(table)


@pytest.mark.parametrize("size", [1, 3])
def test_keys_and_values_are_those_of_a_plain_forward(bench: Bench, size: int) -> None:
    drafter = ReadsKeysAndValues(bench.cache, bench.memory, bench.network)
    sequences = bench.run(bench.encode(*PROMPTS)[:size], Speculative(drafter))
    assert drafter.looked > 0 == drafter.scattered
    assert_drafts_stood_and_fell(sequences, drafter)


@pytest.mark.usefixtures("crumbled")
def test_keys_and_values_in_scattered_blocks(bench: Bench) -> None:
    drafter = ReadsKeysAndValues(bench.cache, bench.memory, bench.network)
    sequences = bench.run(bench.encode(*PROMPTS), Speculative(drafter))
    assert drafter.scattered > 0
    assert_drafts_stood_and_fell(sequences, drafter)
