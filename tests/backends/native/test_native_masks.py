"""Masks on the native backend: near a float64 network with the adapter's 4-bit weights, and without a trace in the bits
of real rows."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from native import deviation, forward_of, load_native, rounded, rounded_network
from native_shapes import PREFIXES, save_shape
from reference import mask_row_outputs
from stridelm.backends.native.forward import NativeForward
from stridelm.backends.native.gate import NativeGate
from stridelm.backends.native.quantised_matrix import FOUR
from stridelm.backends.native.weights import make_weights
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.gated import TorchGate, attach
from stridelm.contracts import Growth
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Cost
from stridelm.decode.draft_prior import draft_priors
from stridelm.decode.planned import Planned
from stridelm.draft.grow import Chain, TreeGrower
from stridelm.draft.mask import MaskDrafter
from stridelm.layout import lay_out, make_block
from stridelm.models.adapter import Adapter, load_adapter, save_adapter
from stridelm.params import SamplingParams
from stridelm.types import ROOT, DraftTree, Output, Sequence
from tiny import load_tiny, random_adapter

TREE = DraftTree.of((5, 6, 7, 8), (ROOT, 0, ROOT, 1), "tree")
NODES = range(ROOT, len(TREE))
SHAPES = ["llama, odd sizes", "llama, three heads", "mistral", "qwen2", "qwen3, small heads"]
Get = Callable[..., tuple[NativeForward, Adapter, Path]]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """A tiny model and a random adapter of it; of `layers` only, if they are given."""

    @cache
    def make(
        shape: str, rank: int = 4, layers: tuple[int, ...] = (0, 1), sequential_size: int = 8
    ) -> tuple[Path, Path]:
        folder = folder_of(shape)
        adapter = random_adapter(load_tiny(folder), rank=rank, sequential_size=sequential_size)
        chosen = tuple(each for each in adapter.config.targets if int(each.split(".")[2]) in layers)
        dropped = {f"{each}.{part}" for each in {*adapter.config.targets} - {*chosen} for part in ("down", "up")}
        tensors = {name: tensor for name, tensor in adapter.tensors.items() if name not in dropped}
        where = tmp_path_factory.mktemp("adapter")
        save_adapter(where, Adapter(replace(adapter.config, targets=chosen), tensors))
        return folder, where

    folder_of = cache(lambda shape: save_shape(tmp_path_factory.mktemp("shape"), shape))
    return make


@pytest.fixture
def get(build: str, native_cache: Path, adapted: Callable[..., tuple[Path, Path]]) -> Get:  # noqa: ARG001
    def load(shape: str, *, rank: int = 4, layers: tuple[int, ...] = (0, 1), sequential_size: int = 8, **settings: Any):
        folder, where = adapted(shape, rank, layers, sequential_size)
        chosen: dict[str, Any] = {"quantize": "q8", **settings}
        model = load_native(folder, native_cache, adapter=where, **chosen)
        return forward_of(model), load_adapter(where), folder

    return load


def in_4_bits(adapter: Adapter, dtype: torch.dtype = torch.float64) -> Adapter:
    """As the kernels have it."""
    tensors = {
        name: (rounded(tensor, FOUR) if name.endswith((".down", ".up")) else tensor).to(dtype)
        for name, tensor in adapter.tensors.items()
    }
    return Adapter(adapter.config, tensors)


def outputs_of(forward: Any, *, masks: int, size: int = len(PREFIXES), defers: bool = False) -> list[Output]:
    """Prefixes, read first; then the last token of each, a tree and masks off every node, in one forward."""
    prefixes = PREFIXES[:size]
    tables = [forward.cache.open() for _ in prefixes]
    forward(lay_out([make_block(0, ids[:-1], reads_logits=False) for ids in prefixes]), tables)
    for table in tables:
        forward.cache.keep(table, range(table.step_rows))
    given: dict[str, Any] = {"anchors": NODES if masks else (), "masks": masks, "defers_masks": defers}
    blocks = [make_block(len(ids) - 1, ids[-1:], TREE, layers=(1,), **given) for ids in prefixes]
    outputs = forward(lay_out(blocks), tables)
    for table in tables:
        forward.cache.free(table)
    return outputs


def path_to(node: int) -> list[int]:
    return [] if node == ROOT else [*path_to(TREE.parents[node]), TREE.tokens[node]]


def check_masks(forward: NativeForward, network: Any, adapter: Adapter, masks: int, near: float) -> None:
    block = make_block(0, [0], TREE, anchors=NODES, masks=masks)
    for ids, output in zip(PREFIXES, outputs_of(forward, masks=masks), strict=True):
        for node in NODES:
            logits, hidden = mask_row_outputs(network, adapter, ids + path_to(node), masks)
            rows = block.mask_outputs(node)
            assert deviation(output.logits_WV[rows], logits.numpy()) < near
            assert output.hidden_WC is not None
            assert deviation(output.hidden_WC[rows], hidden.numpy()) < near


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_are_near_a_naive_forward(shape: str, get: Get) -> None:
    forward, adapter, folder = get(shape)
    network = rounded_network(folder)
    for masks in (2, 5):  # more than the adapter has embeddings: the last stands for all that follow
        check_masks(forward, network, in_4_bits(adapter), masks, 4e-3)


@pytest.mark.parametrize("layers", [(1,), (0,)])
@pytest.mark.parametrize("rank", [40, 3])
def test_an_adapter_may_have_any_rank_and_leave_layers_out(rank: int, layers: tuple[int, ...], get: Get) -> None:
    forward, adapter, folder = get("llama, odd sizes", rank=rank, layers=layers)
    check_masks(forward, rounded_network(folder), in_4_bits(adapter), 3, 4e-3)


@pytest.mark.parametrize(("quantize", "activations"), [("q8", "int16"), ("q4", "int16"), ("q4", "int8")])
@pytest.mark.parametrize("shape", ["llama, odd sizes", "llama, three heads", "qwen3, small heads"])
def test_masks_leave_no_trace_in_real_rows_nor_in_each_other(
    shape: str, quantize: str, activations: str, get: Get
) -> None:
    forward, _, _ = get(shape, quantize=quantize, activations=activations)
    real = len(NODES)
    without, together, deferred = (
        outputs_of(forward, masks=masks, defers=defers) for masks, defers in ((0, False), (3, False), (3, True))
    )
    for ours, theirs, later in zip(together, without, deferred, strict=True):
        assert np.array_equal(ours.logits_WV[:real], theirs.logits_WV)
        assert np.array_equal(ours.layers_qC[1][:real], theirs.layers_qC[1])
        assert np.array_equal(later.logits_WV, theirs.logits_WV)
        assert ours.hidden_WC is not None and later.hidden_WC is not None
        assert np.array_equal(ours.hidden_WC, later.hidden_WC)
        assert np.array_equal(forward.score(later.hidden_WC[real:]), ours.logits_WV[real:])
    # Chains of one mask are the first masks of longer chains, and one sequence is the first of three.
    short, single = outputs_of(forward, masks=1), outputs_of(forward, masks=3, size=1)[0]
    for ours, theirs in zip(together, short, strict=True):
        assert np.array_equal(ours.logits_WV[real::3], theirs.logits_WV[real:])
    assert np.array_equal(together[0].logits_WV, single.logits_WV)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(("quantize", "activations"), [("q8", "int16"), ("q4", "int8")])
def test_threads_change_no_bit_of_masks(threads: int, quantize: str, activations: str, get: Get) -> None:
    one, _, _ = get("llama, odd sizes", quantize=quantize, activations=activations)
    weights = make_weights(one.weights.packed, one.weights.adapter, threads, activations)
    for masks in (1, 4, 2) * 4:  # again and again: what is not waited for shows now and then
        pair = (outputs_of(each, masks=masks) for each in (one, NativeForward(weights, 2048)))
        for ours, theirs in zip(*pair, strict=True):
            assert np.array_equal(ours.logits_WV, theirs.logits_WV)


@pytest.fixture
def gates(get: Get) -> tuple[NativeGate, TorchGate, Any]:
    """The native gate, and torch's on the very weights that the kernels have."""
    forward, adapter, folder = get("llama, odd sizes")
    checkpoint = load_tiny(folder)
    network: Any = rounded_network(folder).float()
    network.set_attn_implementation("stridelm")
    head = {name: rounded(each, FOUR) for name, each in adapter.tensors.items() if each.ndim == 2 and "head" in name}
    changed = Adapter(adapter.config, in_4_bits(adapter, torch.float32).tensors | head)
    assert forward.gate is not None and checkpoint.network is not network
    return forward.gate, attach(network, changed), network


def test_the_sequential_head_reads_as_torch_does(gates: tuple[NativeGate, TorchGate, Any]) -> None:
    ours, theirs, _ = gates
    assert (ours.k, ours.state_size) == (theirs.k, theirs.state_size) == (4, 8)
    draw = np.random.default_rng(0)
    hidden = draw.normal(size=(3, 5, 80)).astype(np.float32)
    state, torch_state = ours.start(5), theirs.start(5)
    for depth, before in enumerate(([1, 2, 3, 4, 5], [250, 0, 7, 7, 9], [8, 8, 8, 8, 259])):
        added, state = ours.read(hidden[depth], before, state)
        torch_added, torch_state = theirs.read(torch.from_numpy(hidden[depth]), before, torch_state)
        # The read matrix is in 4 bits here and in float32 there, if its names are others than above: so 2e-2.
        assert deviation(state, torch_state.numpy()) < 2e-2
        assert deviation(added, torch_added.numpy()) < 2e-2
        one, _ = ours.read(hidden[depth][:1], before[:1], ours.start(1))
        several, _ = ours.read(hidden[depth], before, ours.start(5))
        assert np.array_equal(one[0], several[0])


def test_scores_and_moves_are_those_of_torch(gates: tuple[NativeGate, TorchGate, Any]) -> None:
    ours, theirs, network = gates
    draw = np.random.default_rng(1)
    hidden, added = (draw.normal(size=(4, 80)).astype(np.float32) for _ in range(2))
    weight = network.get_input_embeddings().weight if network.config.tie_word_embeddings else theirs.output_weight_VC
    assert weight is not None
    scores = ours.score(hidden)
    assert deviation(scores, (torch.from_numpy(hidden) @ weight.t()).numpy()) < 1e-4
    tokens = np.asarray([0, 259, 17, 17, 100])
    logits = scores[:, tokens]
    moved = ours.moved(tokens, logits, added)
    expected = theirs.moved(*map(torch.from_numpy, (tokens, logits, added)))
    assert deviation(moved, expected.numpy()) < 1e-5
    assert deviation(moved, ours.score(hidden + added)[:, tokens]) < 1e-3


DRAWS = {
    "greedy": SamplingParams(),
    "biased": SamplingParams(logit_bias={3: -np.inf, 7: 2.0}),
    "sampled": SamplingParams(temperature=0.7, seed=5),
    "filtered": SamplingParams(temperature=1.3, seed=2**64 - 1, top_k=20, top_p=0.9, min_p=0.05),
    "filtered to one": SamplingParams(temperature=1.0, seed=3, top_k=1),
    "biased and sampled": SamplingParams(temperature=1.0, seed=7, top_p=0.8, logit_bias={3: -np.inf, 7: 2.0}),
}
"""Trees of all of these are grown in one call."""


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("sequential_size", [8, 0])
def test_a_tree_grown_at_once_is_the_one_grown_depth_by_depth(
    get: Get, branches: int, draws: str, used: int, sequential_size: int
) -> None:
    forward, _, _ = get("llama, odd sizes", sequential_size=sequential_size)
    gate, width, vocabulary = forward.gate, forward.width, forward.weights.vocabulary
    assert gate is not None and gate.state_size == sequential_size
    random = np.random.default_rng(0)
    logits_DV = 2 * random.normal(size=(5, vocabulary + 3)).astype(np.float32)[:, :vocabulary]
    hidden_DC = random.normal(size=(5, width)).astype(np.float32)
    ends = frozenset({int(logits_DV[used + 2].argmax())})
    drafter, sizes = MaskDrafter(gate, branches), set[int]()
    for text, choice in (([4, 9], 0), ([4, 9, 9], 0), ([4, 9], 1)):
        sequence = Sequence(text, DRAWS[draws], Autoregressive(), ends, 64, choice=choice)
        at_once, step_by_step = (Chain(logits_DV, hidden_DC, used, top=gate.top) for _ in range(2))
        for floor in (0.0, 0.01, 0.3):
            (tree,) = drafter.draft([sequence], [at_once], depth=4, floor=floor)
            (expected,) = TreeGrower.draft(drafter, [sequence], [step_by_step], depth=4, floor=floor)
            assert (tree.tokens, tree.parents, tree.sources) == (expected.tokens, expected.parents, expected.sources)
            assert tree.scores == pytest.approx(expected.scores, rel=1e-5)
            sizes.add(len(tree))
        assert at_once.states.keys() == step_by_step.states.keys() and len(at_once.states) >= 2
        for path, state_1S in at_once.states.items() if sequential_size else ():
            np.testing.assert_array_equal(state_1S, step_by_step.states[path])
        assert not at_once.candidates, "nothing was grown depth by depth"
    assert max(sizes) >= 3


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("sequential_size", [72, 0])
def test_threads_change_no_bit_of_trees(threads: int, sequential_size: int, get: Get) -> None:
    one, _, _ = get("llama, odd sizes", sequential_size=sequential_size)
    weights = make_weights(one.weights.packed, one.weights.adapter, threads, "int16")
    random = np.random.default_rng(0)
    for number in range(12):  # again and again: what is not waited for shows now and then
        logits_DV = 2 * random.normal(size=(4, one.weights.vocabulary)).astype(np.float32)
        hidden_DC = random.normal(size=(4, one.width)).astype(np.float32)
        params = SamplingParams(temperature=number % 3 / 2, top_p=0.9)
        sequence = Sequence([5] * (1 + number), params, Autoregressive(), frozenset(), 64)
        growth = Growth(sequence, 64, 1 + number % 3, 0.001)
        trees = []
        for gate in (one.gate, NativeForward(weights, 2048).gate):
            assert gate is not None
            grown = gate.grow(logits_DV, hidden_DC, None, growth)
            trees.append((grown.tree, grown.buds, grown.states_BS[: len(grown.buds)].tolist()))
        assert trees[0] == trees[1] and len(trees[0][0]) >= 1


def test_a_tree_from_rows_that_are_not_numbers_is_empty(get: Get) -> None:
    forward, _, _ = get("llama, odd sizes")
    assert forward.gate is not None
    hidden_DC = np.zeros((3, forward.width), np.float32)
    for odd in (np.nan, -np.inf):
        for params in DRAWS.values():
            chain = Chain(np.full((3, forward.weights.vocabulary), odd, np.float32), hidden_DC, top=forward.gate.top)
            sequence = Sequence([4], params, Autoregressive(), frozenset(), 64)
            (tree,) = MaskDrafter(forward.gate).draft([sequence], [chain], depth=3, floor=0.0)
            assert len(tree) == 0


@pytest.mark.parametrize("count", [1, 2, 16, 64, 259])
def test_the_likeliest_tokens_are_found(get: Get, count: int) -> None:
    forward, _, _ = get("llama, odd sizes")
    assert forward.gate is not None
    random = np.random.default_rng(count)
    for size in (count, 260, 5000, 50_001):
        for logits_V in (random.normal(size=size), random.integers(5, size=size), np.full(size, -np.inf)):
            logits_V = logits_V.astype(np.float32)
            found_N, values_N = forward.gate.top(logits_V, count)
            assert found_N.tolist() == sorted(np.argsort(-logits_V, kind="stable")[:count].tolist())
            assert np.array_equal(values_N, logits_V[found_N])
    some_V = np.where(np.arange(300) % 100 == 7, np.arange(300), np.nan).astype(np.float32)
    found_N, _ = forward.gate.top(some_V, count)
    assert len({*found_N.tolist()} - {7, 107, 207}) == max(count - 3, 0) and len({*found_N.tolist()}) == count


def test_masks_are_those_of_the_torch_backend(gates: tuple[NativeGate, TorchGate, Any], get: Get) -> None:
    _, gate, network = gates
    forward, _, _ = get("llama, odd sizes")
    expected = outputs_of(TorchForward(network, 1024, gate), masks=3)
    for ours, theirs in zip(outputs_of(forward, masks=3), expected, strict=True):
        assert deviation(ours.logits_WV, theirs.logits_WV.numpy()) < 4e-3


@pytest.mark.usefixtures("build")
def test_a_conversions_prior_takes_the_place_of_the_packages(
    native_cache: Path, adapted: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    """On either backend; what is about look-up stays the package's. An adapter without one keeps all of these."""
    model, where = adapted(SHAPES[0])
    prior = {"ease": 0.3, "scored": [0.1, 1.0, 0.5, 0.0, 0.0], "unscored": [0.2, 1.0, 0.0, 0.0]}
    own = load_adapter(where)
    save_adapter(tmp_path, replace(own, config=replace(own.config, draft_prior={"greedy": prior, "sampled": prior})))
    for folder in (where, tmp_path):
        native = load_native(model, native_cache, adapter=folder, quantize="q8")
        gates = (forward_of(native).gate, attach(load_tiny(model).network, load_adapter(folder)))
        for gate in gates:
            assert gate is not None
            plan = Planned(Cost((1, 8), (1.0, 1.1)), masks=MaskDrafter(gate, 1), k=gate.k).own_plan
            assert plan is not None
            if folder == where:
                assert plan.priors == draft_priors()
                continue
            for found, package in zip(plan.priors or (), draft_priors(), strict=True):
                assert (found.ease, found.scored, found.unscored) == (0.3, tuple(prior["scored"]), (0.2, 1.0, 0.0, 0.0))
                assert found.found == package.found and found.found_against == package.found_against


def test_mask_rows_need_an_adapter(native_cache: Path, adapted: Callable[..., tuple[Path, Path]]) -> None:
    forward = forward_of(load_native(adapted("mistral")[0], native_cache, quantize="q8"))
    with pytest.raises(AssertionError, match="adapter"):
        outputs_of(forward, masks=1)
