"""The native forward against a float64 network on the very weights that the kernels have; and a row's bits, which do
not depend on the rows beside it. Both builds of the kernels."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from native import deviation, forward_of, load_native, rounded_network
from native_shapes import PREFIXES, SHAPES, save_shape
from stridelm.api import LanguageModel
from stridelm.backends.native.forward import NativeForward
from stridelm.backends.native.weights import make_weights
from stridelm.cache.kv_cache import Table
from stridelm.layout import lay_out, make_block
from stridelm.types import ROOT, Block, DraftTree, Output
from tiny import FAMILIES, save_tiny

TREE = DraftTree.of((5, 6, 7, 8, 9, 10), (ROOT, 0, 1, ROOT, 3, 0), "tree")
NODES = range(ROOT, len(TREE))
SMALL = ["llama, odd sizes", "llama, three heads", "mistral", "qwen2", "qwen3, small heads"]
"""Those that every comparison of bits runs on."""
NEAR = 5e-3
"""A key or value that falls on the other side of a boundary when it is rounded to half precision moves logits by this
much; with keys and values in float32 it was a fifth."""
Get = Callable[..., LanguageModel]


@pytest.fixture(scope="module")
def shape_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda shape: save_shape(tmp_path_factory.mktemp("shape"), shape))


@pytest.fixture
def get(build: str, native_cache: Path, shape_folder: Callable[[str], Path]) -> Get:  # noqa: ARG001
    def load(shape: str, **settings: Any) -> LanguageModel:
        chosen: dict[str, Any] = {"quantize": "q8", **settings}
        return load_native(shape_folder(shape), native_cache, **chosen)

    return load


@cache
def oracle(folder: Path, quantize: str, kv_cache: str = "float16") -> Any:
    return rounded_network(folder, quantize, kv_cache)


def naive(network: Any, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return network(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def path_to(node: int) -> list[int]:
    return [] if node == ROOT else [*path_to(TREE.parents[node]), TREE.tokens[node]]


def run(forward: NativeForward, table: Table, block: Block) -> Output:
    (output,) = forward(lay_out([block]), [table])
    return output


def read(forward: NativeForward, ids: list[int], chunk: int = 1000) -> Table:
    """A table that holds these tokens, read so many at a time."""
    table = forward.cache.open()
    for start in range(0, len(ids), chunk):
        rows = len(ids[start : start + chunk])
        run(forward, table, make_block(start, ids[start : start + chunk], reads_logits=False))
        forward.cache.keep(table, range(rows))
    return table


@pytest.mark.parametrize("quantize", ["q8", "q4"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_near_a_naive_forward(
    shape: str, quantize: str, get: Get, shape_folder: Callable[[str], Path]
) -> None:
    """A chain, then three sequences with prefixes of different lengths (one beyond the window), a tree each."""
    network = oracle(shape_folder(shape), quantize)
    forward = forward_of(get(shape, quantize=quantize, activations="int16"))
    text = PREFIXES[1] + PREFIXES[2]
    chain = run(forward, forward.cache.open(), make_block(0, text, reads_all=True))
    assert deviation(chain.logits_WV, naive(network, text)) < NEAR
    tables = [read(forward, ids[:-1]) for ids in PREFIXES]
    outputs = forward(lay_out([make_block(len(ids) - 1, ids[-1:], TREE) for ids in PREFIXES]), tables)
    for ids, output in zip(PREFIXES, outputs, strict=True):
        expected = np.stack([naive(network, ids + path_to(node))[-1] for node in NODES])
        assert expected.std() > 0.1, "a comparison of zeros would say nothing"
        assert deviation(output.logits_WV, expected) < NEAR


@pytest.mark.parametrize("shape", SMALL)
def test_8_bit_activations_are_near_enough(shape: str, get: Get, shape_folder: Callable[[str], Path]) -> None:
    network = oracle(shape_folder(shape), "q4")
    exact, quick = (forward_of(get(shape, quantize="q4", activations=kind)) for kind in ("int16", "int8"))
    ours = [
        run(each, each.cache.open(), make_block(0, PREFIXES[1], reads_all=True)).logits_WV for each in (exact, quick)
    ]
    expected = naive(network, PREFIXES[1])
    assert deviation(ours[0], expected) < NEAR < deviation(ours[1], expected) < 0.15


@pytest.mark.parametrize("shape", SMALL)
def test_a_cache_of_bytes_is_near_a_naive_forward(shape: str, get: Get, shape_folder: Callable[[str], Path]) -> None:
    """Near the network whose keys and values are bytes, too, and further from the one whose are not."""
    forward = forward_of(get(shape, kv_cache="int8"))
    text = PREFIXES[1] + PREFIXES[2]
    ours = run(forward, forward.cache.open(), make_block(0, text, reads_all=True)).logits_WV
    halves, bytes_ = (naive(oracle(shape_folder(shape), "q8", kind), text) for kind in ("float16", "int8"))
    far, near = [float(np.abs(ours - each).mean()) for each in (halves, bytes_)]
    assert near < far / 2 and far < 0.02 * float(np.abs(halves).max())


def test_what_the_settings_leave_out_has_its_default(tmp_path: Path, native_cache: Path) -> None:
    """Qwen2's own config files name no head size."""
    import json

    folder = save_tiny(tmp_path / "model", "qwen2", hidden_size=64, head_dim=16)
    file = folder / "config.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "head_dim"}))
    forward = forward_of(load_native(folder, native_cache, quantize="q8"))
    output = run(forward, forward.cache.open(), make_block(0, PREFIXES[1], reads_all=True))
    assert deviation(output.logits_WV, naive(rounded_network(folder), PREFIXES[1])) < NEAR


def alone(forward: NativeForward, ids: list[int]) -> np.ndarray:
    """The last logits of a text that is read one token at a time, as plain decoding does."""
    table = read(forward, ids[:-1], chunk=1)
    logits = run(forward, table, make_block(len(ids) - 1, ids[-1:])).logits_WV[0]
    forward.cache.free(table)
    return logits


@pytest.mark.parametrize(
    ("quantize", "activations", "kv_cache"),
    [("q8", "int16", "float16"), ("q4", "int16", "float16"), ("q4", "int8", "float16"), ("q4", "int8", "int8")],
)
@pytest.mark.parametrize("shape", SMALL)
def test_a_rows_bits_are_those_of_plain_decoding(
    shape: str, quantize: str, activations: str, kv_cache: str, get: Get
) -> None:
    """Whether a row is run alone, in a chain, in a tree or beside other sequences, after a prompt in chunks, and
    behind rows that were moved."""
    forward = forward_of(get(shape, quantize=quantize, activations=activations, kv_cache=kv_cache))
    texts = [ids + path_to(node) for ids in PREFIXES for node in NODES]
    expected = np.stack([alone(forward, text) for text in texts]).reshape(len(PREFIXES), len(NODES), -1)
    # What the steps above left in the workspace must not matter: the second time it is that of other rows.
    for chunk in (7, 1000):
        tables = [read(forward, ids[:-1], chunk) for ids in PREFIXES]
        for ids, table, theirs in zip(PREFIXES, tables, expected, strict=True):
            output = run(forward, table, make_block(len(ids) - 1, ids[-1:], TREE))
            assert np.array_equal(output.logits_WV, theirs)
            forward.cache.truncate(table, len(ids) - 1)
        outputs = forward(lay_out([make_block(len(ids) - 1, ids[-1:], TREE) for ids in PREFIXES]), tables)
        assert np.array_equal(np.stack([output.logits_WV for output in outputs]), expected)
        for table, ids in zip(tables, PREFIXES, strict=True):
            forward.cache.keep(table, [0, 4, 5])  # the second branch: its rows are moved up
            row = run(forward, table, make_block(len(ids) + 2, [11]))
            assert np.array_equal(row.logits_WV[0], alone(forward, [*ids, *path_to(4), 11]))
            forward.cache.free(table)
    whole = [run(forward, forward.cache.open(), make_block(0, ids, TREE)).logits_WV for ids in PREFIXES]
    assert np.array_equal(np.stack(whole), expected)


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("shape", ["llama, odd sizes", "llama, three heads", "qwen3, small heads"])
def test_threads_change_no_bit(shape: str, threads: int, get: Get) -> None:
    one = forward_of(get(shape))
    weights = make_weights(one.weights.packed, None, threads, "int16")
    blocks = [make_block(0, ids, TREE, layers=(0, 1, 2)) for ids in PREFIXES]
    for size in (1, 3):
        ours, theirs = (
            each(lay_out(blocks[:size]), [each.cache.open() for _ in blocks[:size]])
            for each in (NativeForward(weights, 2048), one)
        )
        for left, right in zip(ours, theirs, strict=True):
            assert np.array_equal(left.logits_WV, right.logits_WV)
            assert all(np.array_equal(left.layers_qC[layer], right.layers_qC[layer]) for layer in (0, 1, 2))


def test_beside_other_work_no_bit_changes(get: Get) -> None:
    """Threads may leave in the middle of a forward, and come back after some."""
    one = forward_of(get("llama, odd sizes"))
    two = NativeForward(make_weights(one.weights.packed, None, 2, "int16"), 2048)
    rows = lay_out([make_block(0, PREFIXES[1], TREE)])
    (expected,) = one(rows, [one.cache.open()])
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        for _ in range(200):
            table = two.cache.open()
            (found,) = two(rows, [table])
            assert np.array_equal(found.logits_WV, expected.logits_WV)
            two.cache.free(table)
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize("shape", ["llama, odd sizes", "mistral"])
def test_a_prefix_may_be_shared_and_scattered(shape: str, get: Get, shape_folder: Callable[[str], Path]) -> None:
    forward = forward_of(get(shape, cache_tokens=16 * 11))
    cache, prefix = forward.cache, PREFIXES[1][:32]
    first = read(forward, prefix)
    cache.publish(first, prefix)
    fillers = [cache.open(16) for _ in range(6)]
    for filler in fillers[::2]:
        cache.free(filler)
    # Too little is free for a copy: the blocks are shared, and what follows lies in the gaps.
    ids = [prefix + [50 + number] * 20 for number in range(2)]
    tables = [cache.adopt(text) for text in ids]
    assert all(table.length == 32 and table.blocks[:2] == first.blocks for table in tables)
    outputs = forward(lay_out([make_block(32, text[32:], TREE) for text in ids]), tables)
    cache.check_integrity()
    assert not all(table.is_run for table in tables)
    network = oracle(shape_folder(shape), "q8")
    fresh = forward.with_cache(2048)
    for text, output in zip(ids, outputs, strict=True):
        expected = np.stack([naive(network, text + path_to(node))[-1] for node in NODES])
        assert deviation(output.logits_WV, expected) < NEAR
        assert np.array_equal(output.logits_WV, np.stack([alone(fresh, text + path_to(node)) for node in NODES]))


@pytest.mark.parametrize("shape", ["llama, odd sizes", "qwen3"])
def test_a_known_prefix_is_copied_without_a_change(shape: str, get: Get) -> None:
    forward = forward_of(get(shape))
    table = read(forward, PREFIXES[1])
    forward.cache.publish(table, PREFIXES[1])
    copy = forward.cache.adopt(PREFIXES[1])
    assert copy.length == 32 and not set(copy.blocks) & set(table.blocks)
    output = run(forward, copy, make_block(32, PREFIXES[1][32:], TREE))
    expected = run(forward.with_cache(512), Table(), make_block(0, PREFIXES[1], TREE)).logits_WV
    assert np.array_equal(output.logits_WV, expected)


@pytest.mark.parametrize("shape", ["llama, odd sizes", "mistral", "qwen3"])
def test_what_layers_read(shape: str, get: Get, shape_folder: Callable[[str], Path]) -> None:
    """For drafters that read features: near the network's own, and in bits the same whatever is beside a row."""
    forward = forward_of(get(shape))
    layers = tuple(range(forward.layers + 1))
    ids = PREFIXES[1]
    output = run(forward, forward.cache.open(), make_block(0, ids, TREE, layers=layers))
    for node in NODES:
        text, row = ids + path_to(node), len(ids) + node
        with torch.inference_mode():
            states = (
                oracle(shape_folder(shape), "q8")
                .model(input_ids=torch.tensor([text]), use_cache=False, output_hidden_states=True)
                .hidden_states
            )
        # The last one is behind the last norm, as the output head reads it.
        for layer in layers:
            assert deviation(output.layers_qC[layer][row], states[layer][0, -1].numpy()) < NEAR
        single = run(forward, forward.cache.open(), make_block(0, text, layers=layers))
        for layer in layers:
            assert np.array_equal(output.layers_qC[layer][row], single.layers_qC[layer][-1])
    assert np.array_equal(forward.score(output.layers_qC[forward.layers][-1:])[0], output.logits_WV[-1])


def test_only_some_rows_are_wanted_or_ask_for_layers(get: Get) -> None:
    """Rows of one sequence may want all, of another none: each gets its own."""
    forward = forward_of(get("llama, odd sizes"))
    blocks = [
        make_block(0, PREFIXES[0], reads_logits=False),
        make_block(0, PREFIXES[1], reads_all=True, layers=(1,)),
        replace(make_block(0, PREFIXES[2], TREE), wanted=(3, 20)),
    ]
    outputs = forward(lay_out(blocks), [forward.cache.open() for _ in blocks])
    assert outputs[0].logits_WV.shape == (0, 260)
    expected = [run(forward, forward.cache.open(), block) for block in blocks]
    for ours, theirs in zip(outputs, expected, strict=True):
        assert np.array_equal(ours.logits_WV, theirs.logits_WV)
    assert np.array_equal(outputs[1].layers_qC[1], expected[1].layers_qC[1])


def test_families_are_those_that_are_compared() -> None:
    from stridelm.backends.native.model_source import FAMILIES as NATIVE

    assert {family for family, _ in SHAPES.values()} == set(NATIVE) <= set(FAMILIES)
