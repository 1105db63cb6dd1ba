"""The GPU backend's forward against torch's, on tiny models of every family that it takes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interpreted import DEVICE, FAMILIES, load_gpu
from stridelm.backends.gpu.layers import Layers
from stridelm.backends.gpu.layout import chain_of, runs_of, spans_for
from stridelm.backends.gpu.weights import is_supported
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.gated import attach
from stridelm.layout import lay_out, lineage, make_block
from stridelm.settings import LoadSettings
from stridelm.types import ROOT, Block, DraftTree
from tiny import load_tiny, random_adapter

TREE = DraftTree.of([5, 6, 7, 8, 9], [ROOT, 0, 0, ROOT, 3], "x")
PROMPT = list(range(1, 24))


@pytest.mark.parametrize(
    ("family", "merges"),
    [*((family, True) for family in FAMILIES if family != "llama"), ("qwen2", False)],
    ids=lambda each: str(each),
)
def test_it_says_what_torch_says(family: str, merges: bool, tiny_folder: Callable[..., Path]) -> None:
    """A prompt, a plain step, trees with masks off several nodes, and two texts at once, over a cache that keeps what
    the steps before have left. The adapter is merged into weights for mask rows, or runs beside them. A Llama is a
    Qwen 2 without biases; its texts are compared in test_gpu_stepper.py."""
    folder = tiny_folder(family)
    adapter = random_adapter(load_tiny(folder))
    _, ours = load_gpu(folder, adapter, merges=merges)
    assert ours.weights.is_merged == merges
    network = load_checkpoint(str(folder), LoadSettings(device=DEVICE, dtype="float32"), trainable=True).network
    torchs = TorchForward(network, 1024, attach(network, adapter))
    tables = [[forward.cache.open() for _ in range(2)] for forward in (ours, torchs)]
    steps: list[tuple[list[Block], list[list[int]]]] = [
        ([make_block(0, PROMPT), make_block(0, [9])], [list(range(len(PROMPT))), [0]]),
        ([make_block(23, [3, 4], TREE, anchors=[ROOT, 0, 2, 4], masks=3), make_block(1, [4])], [[0, 1, 2, 4], [0]]),
        ([make_block(27, [9]), make_block(2, [1], TREE, anchors=[3], masks=2)], [[0], [0]]),
    ]
    for blocks, kept in steps:
        rows = lay_out(blocks)
        for mine, others in zip(ours(rows, tables[0]), torchs(rows, tables[1]), strict=True):
            assert torch.allclose(mine.logits_WV, others.logits_WV, atol=1e-4)
            if others.hidden_WC is not None:
                assert mine.hidden_WC is not None
                assert torch.allclose(mine.hidden_WC, others.hidden_WC, atol=1e-4)
        for forward, own in zip((ours, torchs), tables, strict=True):
            for table, path in zip(own, kept, strict=True):
                forward.cache.keep(table, path)
            forward.cache.check_integrity()


@pytest.mark.parametrize("merges", [True, False], ids=["merged", "low-rank"])
def test_a_rows_bits_do_not_depend_on_its_block(merges: bool, tiny_folder: Callable[..., Path]) -> None:
    """A path of a tree, alone and among other branches and masks, and the same tokens one by one: not almost equal."""
    folder = tiny_folder("mistral")
    prompt = PROMPT[:14]  # longer than the window; the rows behind it reach into the next block of the cache
    _, forward = load_gpu(folder, random_adapter(load_tiny(folder)), merges=merges)

    def after_prompt(*blocks: Block) -> list[torch.Tensor]:
        table = forward.cache.open()
        said: list[torch.Tensor] = []
        for block in (make_block(0, prompt), *blocks):
            (output,) = forward(lay_out([block]), [table])
            forward.cache.keep(table, range(block.pending))
            said.append(output.logits_WV)
        forward.cache.free(table)
        return said[1:]

    (in_tree,) = after_prompt(make_block(14, [3], TREE, anchors=[ROOT, 2], masks=3))
    (in_chain,) = after_prompt(make_block(14, [3], DraftTree.chain([8, 9], "x")))
    one_by_one = after_prompt(make_block(14, [3]), make_block(15, [8]), make_block(16, [9]))
    for row, node in enumerate((0, 4, 5)):
        assert torch.equal(in_tree[node], in_chain[row])
        assert torch.equal(in_tree[node], one_by_one[row][0])


def test_masks_behind_a_tile_of_real_rows_get_their_parts(tiny_folder: Callable[..., Path]) -> None:
    """The first tile has no masks: nobody computes low-rank parts for it, and nobody waits for them."""
    folder = tiny_folder("llama")
    adapter = random_adapter(load_tiny(folder))
    _, ours = load_gpu(folder, adapter, merges=False)
    network = load_checkpoint(str(folder), LoadSettings(device=DEVICE, dtype="float32"), trainable=True).network
    torchs = TorchForward(network, 1024, attach(network, adapter))
    rows = lay_out([make_block(0, [token % 50 for token in range(70)], anchors=[ROOT], masks=3)])
    mine, others = (forward(rows, [forward.cache.open()])[0] for forward in (ours, torchs))
    assert torch.allclose(mine.logits_WV, others.logits_WV, atol=1e-4)


def test_a_heads_parts_are_the_whole(tiny_folder: Callable[..., Path]) -> None:
    """Wide heads are computed by several programs."""
    folder = tiny_folder("llama", head_dim=64)
    rows = lay_out([make_block(0, PROMPT)])
    said: list[torch.Tensor] = []
    for narrowest, programs in ((65, 1), (64, 2)):
        _, forward = load_gpu(folder)
        forward.run_layers = Layers(forward.weights, forward.memory, wide_head=narrowest)
        assert forward.run_layers.split == programs
        said.append(forward(rows, [forward.cache.open()])[0].logits_WV)
    assert torch.allclose(said[0], said[1], atol=1e-5)


def test_layers_inputs_are_those_of_torch(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama")
    _, ours = load_gpu(folder)
    torchs = TorchForward(
        load_checkpoint(str(folder), LoadSettings(device=DEVICE, dtype="float32"), trainable=True).network, 1024
    )
    rows = lay_out([make_block(0, PROMPT, layers=(0, 1, 2))])
    mine, others = (forward(rows, [forward.cache.open()])[0] for forward in (ours, torchs))
    assert sorted(mine.layers_qC) == [0, 1, 2]
    for layer, read_qC in others.layers_qC.items():
        assert torch.allclose(mine.layers_qC[layer], read_qC, atol=1e-4)


def test_long_steps_attend_in_parts(tiny_folder: Callable[..., Path]) -> None:
    """Whose ends cut through runs of rows that attend together."""
    folder = tiny_folder("llama")
    _, forward = load_gpu(folder)
    rows = lay_out([make_block(0, PROMPT[:5], reads_all=True), make_block(0, PROMPT[:16], reads_all=True)])
    whole = forward(rows, [forward.cache.open(), forward.cache.open()])
    floats = 8 * forward.weights.query_heads * forward.weights.head_size * spans_for(16)
    forward.run_layers.max_span_floats = floats
    in_parts = forward(rows, [forward.cache.open(), forward.cache.open()])
    for one, other in zip(whole, in_parts, strict=True):
        assert torch.equal(one.logits_WV, other.logits_WV)


def test_who_asks_for_hidden_states_leaves_nothing_behind(tiny_folder: Callable[..., Path]) -> None:
    """A graph's output is read from where it lies, not from where a step that was not captured put its own."""
    _, forward = load_gpu(tiny_folder("llama"))

    def say(tokens: list[int], which: tuple[int, ...] = ()) -> torch.Tensor:
        table = forward.cache.open()
        (output,) = forward(lay_out([make_block(0, tokens, layers=which)]), [table])
        forward.cache.free(table)
        return output.logits_WV

    say([1, 2, 3])
    ((shape, captured),) = forward._scores.items()
    say([3, 2, 1], (1,))
    assert forward._scores[shape] is captured


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "mixtral", "qwen3_moe", "gpt_oss"])
def test_other_families_are_left_to_torch(family: str, tiny_folder: Callable[..., Path]) -> None:
    assert not is_supported(load_tiny(tiny_folder(family)).network, None)


PARENTS = st.lists(st.integers(0, 40), min_size=1, max_size=40).map(
    lambda drawn: [ROOT, *(each % (row + 1) for row, each in enumerate(drawn[1:]))]
)


@given(PARENTS, st.integers(1, 6))
def test_runs_are_chains_that_cover_all_rows(parents: list[int], longest: int) -> None:
    first, lengths = runs_of(np.array(parents), longest)
    covered = [row for begin, count in zip(first, lengths, strict=True) for row in range(begin, begin + count)]
    assert covered == list(range(len(parents)))
    assert all(1 <= count <= longest for count in lengths)
    for begin, count in zip(first, lengths, strict=True):
        assert all(parents[row] == row - 1 for row in range(begin + 1, begin + count))


@given(PARENTS)
def test_a_chain_is_seen_by_all_who_lie_beyond_it(parents: list[int]) -> None:
    chain = chain_of(np.array(parents))
    sees, depths = lineage(parents)
    assert chain >= 1
    assert (depths[:chain] == np.arange(chain)).all()
    assert sees[chain:, :chain].all()
