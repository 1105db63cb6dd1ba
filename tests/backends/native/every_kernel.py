"""Runs every kernel on models that are packed already: a script for a process of its own, under a sanitizer.

    python every_kernel.py '{"source": ..., "flags": [...], "link_flags": [...], "forms": [...], "models": [...]}'

A form is `LoadSettings` by name; a model its folder and that of its adapter.
"""

import json
import sys
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

import stridelm
from stridelm import LoadSettings
from stridelm.backends.native import library as library_module
from stridelm.backends.native.block_matrix import BITS, block_bytes, groups_of
from stridelm.backends.native.library import library
from stridelm.backends.native.quantised_matrix import pack_panels, quantise
from stridelm.contracts import Growth
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Cost
from stridelm.decode.draft_prior import draft_priors
from stridelm.layout import lay_out, make_block
from stridelm.params import SamplingParams
from stridelm.stepper import PLAIN_PLAN, Continuation, OwnPlan
from stridelm.types import ROOT, DraftTree, Sequence

TREE = DraftTree.of((5, 6, 7, 8, 9, 10), (ROOT, 0, 1, ROOT, 3, 0), "tree")
PREFIXES = [[7 * at % 250 for at in range(length)] for length in (1, 16, 40)]


def main(given: dict[str, Any]) -> None:
    library_module.SOURCE = Path(given["source"])
    library_module.FLAGS, library_module.LINK_FLAGS = tuple(given["flags"]), tuple(given["link_flags"])
    for folder, adapter in given["models"]:
        for form in given["forms"]:
            settings = LoadSettings(**form, cache_tokens=1024)
            forward = stridelm.load(folder, adapter=adapter, settings=settings).loaded.forward
            # Two callers at once, as when a server's worker runs while a model is loaded and timed.
            second = Thread(target=run_steps, args=(forward.with_cache(1024), (0, 5)))
            second.start()
            run_steps(forward, (0, 1, 5))
            for head_row in (0.0, 1.0):
                run_own_steps(forward, head_row)
            second.join()
    run_products()
    run_draws()
    print("done", library().stride_lanes())


def run_steps(forward: Any, masks_in_turn: tuple[int, ...]) -> None:
    for masks in masks_in_turn:
        anchors = range(ROOT, 6) if masks else ()
        for size in (1, 3):
            tables = [forward.cache.open() for _ in PREFIXES[:size]]
            starts, outputs = [0] * size, []
            for _ in range(2):
                blocks = [
                    make_block(start, ids, TREE, anchors=anchors, masks=masks, layers=(0, 2))
                    for start, ids in zip(starts, PREFIXES, strict=False)
                ]
                outputs = forward(lay_out(blocks), tables)
                assert all(np.isfinite(output.logits_WV).all() for output in outputs)
                for at, table in enumerate(tables):
                    count = len(PREFIXES[at])
                    forward.cache.keep(table, [*range(count), count + 3, count + 4])
                    starts[at] = table.length
            if masks and size == 3:
                draft(forward, outputs[0].hidden_WC[-2:])
            for table in tables:
                forward.cache.free(table)


def run_own_steps(forward: Any, head_row: float) -> None:
    """Whole steps of several texts: greedy and sampled, with drafts of all kinds and without. `head_row`: cost of the
    output head on a row; if it is high, masks' logits are computed late."""
    # Beside such forwards, what lies around them is nothing, however slow sanitizers make it.
    cost = Cost((1, 64), (1000.0, 1000.0), head_row=1000 * head_row)
    plans = [PLAIN_PLAN, *(OwnPlan(5, 24, branches, 8, 8, cost, draft_priors()) for branches in (1, 3))]
    kinds = [SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=1.0, top_p=0.9, seed=1)]
    stepper = forward.stepper(0, 8, frozenset({3}))
    tables = []
    for place, (plan, params) in enumerate(product(plans, kinds)):
        text = [*PREFIXES[1 + place % 2], 9, 7, 9, 7, 9]
        tables.append(forward.cache.open(len(text) + 40 + stepper.rows))
        forward(lay_out([make_block(0, text[:-1], reads_logits=False)]), tables[-1:])
        forward.cache.keep(tables[-1], range(len(text) - 1))
        begun = Continuation(
            len(text) - 1, text[-1], 40, tables[-1].blocks, params, 1, place, text, len(text), text[::2], plan
        )
        stepper.begin(place, begun)
    drafted = 0
    for number in range(30):
        stepper.launch()
        drafted += sum(len(emitted.drafts) for emitted in stepper.collect())
        if number == 20:
            stepper.end(1)
    assert drafted > 30
    stepper.forget()
    for table in tables:
        forward.cache.free(table)


def draft(forward: Any, rows: np.ndarray) -> None:
    """From the hidden states of two masks."""
    added, _ = forward.gate.read(rows, [0, 259], forward.gate.start(2))
    logits = forward.score(rows)
    forward.gate.moved(np.asarray([0, 259]), logits[:, [0, 259]], added)
    for temperature, branches, candidates in ((0.0, 1, 1), (0.7, 2, 16), (1.0, 3, 1000)):
        params = SamplingParams(temperature=temperature, top_p=0.9, logit_bias={0: -np.inf, 259: 1.0})
        sequence = Sequence([7, 259], params, Autoregressive(), frozenset({3, 4}), 64)
        growth = Growth(sequence, candidates, branches, 0.0)
        grown = forward.gate.grow(logits, rows, None, growth)
        assert grown is not None and len(grown.buds) >= 1


def run_products() -> None:
    lanes = library().stride_lanes()
    for kind in (4, 8):
        for outputs, inputs in ((1, 32), (17, 64), (40, 100)):
            weight = np.random.default_rng(0).normal(size=(outputs, inputs)).astype(np.float32)
            held = pack_panels(quantise(weight, kind), lanes)
            matrix = library_module.Matrix(held.ctypes.data, *held.shape[:2], kind)
            for rows in (1, 2, 7, 20):
                for size in (0.0, 1.0, 1e-36, 1e30, np.nan):
                    x = np.full((rows, held.shape[1] * 32), size, np.float32)
                    y = np.empty((rows, held.shape[0] * lanes), np.float32)
                    for activations in (16, 8):
                        library().stride_product(matrix, activations, 2, x.ctypes.data, rows, y.ctypes.data)
    run_blocks()


def run_blocks() -> None:
    """Any bytes will do, in memory of exactly their size."""
    lanes, random = library().stride_lanes(), np.random.default_rng(0)
    for kind, panels, groups in product(BITS, (1, 3), (8, 24)):
        held = random.integers(0, 256, panels * groups // groups_of(kind) * block_bytes(kind, lanes), np.uint8)
        matrix = library_module.Matrix(held.ctypes.data, panels, groups, kind)
        for rows in (1, 2, 7, 20):
            x = random.normal(size=(rows, groups * 32)).astype(np.float32)
            y = np.empty((rows, panels * lanes), np.float32)
            for activations in (16, 8):
                library().stride_product(matrix, activations, 2, x.ctypes.data, rows, y.ctypes.data)
        outputs = np.arange(panels * lanes)
        weights = np.empty((len(outputs), groups * 32), np.float32)
        library().stride_unpack(matrix, outputs.ctypes.data, len(outputs), weights.ctypes.data)


def run_draws() -> None:
    random = np.random.default_rng(0)
    for size in (1, 15, 17, 600, 5001):
        for row in (
            random.normal(size=size),
            random.integers(3, size=size),
            np.full(size, -np.inf),
            np.full(size, np.nan),
        ):
            logits_V, tokens_N, scores_N = row.astype(np.float32), np.arange(size), np.empty(size)
            for rules in (
                (0.0, 1.0, 0.0, 0),
                (0.7, 1.0, 0.0, 0),
                (1.0, 0.9, 0.0, 0),
                (1.0, 0.5, 0.1, 40),
                (9.0, 1, 0, 1),
            ):
                given, first = library_module.DrawRules(*rules, 2**63 + size), logits_V.ctypes.data
                drawn = library().stride_draw(first, size, given, size)
                assert (drawn == -1) == (row == -np.inf).all() and drawn < size
                library().stride_perturb(tokens_N.ctypes.data, first, size, given, size, scores_N.ctypes.data)
                assert (scores_N > -np.inf).any() == np.isfinite(row).any() or rules[0] == 0
            for count in {1, min(16, size), size}:
                places_N = np.empty(count, np.int64)
                library().stride_top(first, size, count, places_N.ctypes.data)
                assert len({*places_N.tolist()}) == count


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
