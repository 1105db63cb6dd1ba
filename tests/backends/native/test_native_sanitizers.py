"""The kernels under GCC's sanitizers: nothing is read or written beyond its memory, and nothing undefined is done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native import BUILDS, cache_at
from native_shapes import save_shape
from stridelm.models.adapter import save_adapter
from tiny import load_tiny, random_adapter

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")
SHAPES = ["llama, odd sizes", "llama, narrow", "llama, three heads", "mistral", "qwen2", "qwen3, small heads"]
RUN = """
import sys
import numpy as np
from stridelm.layout import lay_out, make_block
from stridelm.backends.native import library as module
from stridelm.backends.native.library import library

flags, *models = [part.split("|") for part in sys.argv[1:]]
module.FLAGS, module.LINK_FLAGS = tuple(flags), ("-pthread", "-fsanitize=address,undefined")
import stridelm
from stridelm import LoadSettings
from stridelm.contracts import Greed
from stridelm.types import ROOT, DraftTree

tree = DraftTree.of((5, 6, 7, 8, 9, 10), (ROOT, 0, 1, ROOT, 3, 0), "tree")
prefixes = [[7 * at % 250 for at in range(length)] for length in (1, 16, 40)]
for folder, adapter in models:
    for quantize, activations, threads in (("q8", "int16", 1), ("q4", "int16", 3), ("q4", "int8", 2)):
        settings = LoadSettings(quantize=quantize, activations=activations, threads=threads, cache_tokens=512)
        forward = stridelm.load(folder, adapter=adapter, settings=settings).loaded.forward
        for masks in (0, 1, 5):
            anchors = range(ROOT, 6) if masks else ()
            for size in (1, 3):
                tables = [forward.cache.open() for _ in prefixes[:size]]
                starts = [0] * size
                for _ in range(2):
                    blocks = [
                        make_block(start, ids, tree, anchors=anchors, masks=masks, layers=(0, 2))
                        for start, ids in zip(starts, prefixes)
                    ]
                    outputs = forward(lay_out(blocks), tables)
                    assert all(np.isfinite(output.logits_WV).all() for output in outputs)
                    for at, table in enumerate(tables):
                        count = len(prefixes[at])
                        forward.cache.keep(table, [*range(count), count + 3, count + 4])
                        starts[at] = table.length
                if masks and size == 3:
                    rows = outputs[0].hidden_WC[-2:]
                    added, _ = forward.gate.read(rows, [0, 259], forward.gate.start(2))
                    logits = forward.score(rows)
                    forward.gate.moved(np.asarray([0, 259]), logits[:, [0, 259]], added)
                    for branches, candidates in ((1, 1), (2, 16), (3, 1000)):
                        greed = Greed(259, candidates, branches, 0.0, {0: -np.inf, 259: 1.0}, frozenset({3, 4}))
                        grown = forward.gate.grow(logits, rows, None, greed)
                        assert grown is not None and len(grown.buds) >= 1
                for table in tables:
                    forward.cache.free(table)
lanes = library().stride_lanes()
for kind in (4, 8):
    from stridelm.backends.native.quantised_matrix import pack_panels, quantise
    for outputs, inputs in ((1, 32), (17, 64), (40, 100)):
        weight = np.random.default_rng(0).normal(size=(outputs, inputs)).astype(np.float32)
        held = pack_panels(quantise(weight, kind), lanes)
        matrix = module.Matrix(held.ctypes.data, *held.shape[:2], kind)
        for rows in (1, 2, 7, 20):
            for size in (0.0, 1.0, 1e-36, 1e30, np.nan):
                x = np.full((rows, held.shape[1] * 32), size, np.float32)
                y = np.empty((rows, held.shape[0] * lanes), np.float32)
                for activations in (16, 8):
                    library().stride_product(matrix, activations, 2, x.ctypes.data, rows, y.ctypes.data)
print("done", lanes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS)
def test_sanitizers_find_nothing(build: str, tmp_path: Path, native_cache: Path) -> None:
    preloaded = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    if not all(Path(each).is_absolute() for each in preloaded):
        pytest.skip("GCC has no sanitizers here")
    flags = [flag for flag in BUILDS[build] if flag != "-O3"] + [*SANITIZERS]
    models = []
    for number, shape in enumerate(SHAPES):
        folder = save_shape(tmp_path / f"model{number}", shape)
        save_adapter(tmp_path / f"adapter{number}", random_adapter(load_tiny(folder), rank=40 if number % 2 else 4))
        models.append(f"{folder}|{tmp_path / f'adapter{number}'}")
    with cache_at(native_cache):
        environment = os.environ | {"LD_PRELOAD": " ".join(preloaded), "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", RUN, "|".join(flags), *models],
            env=environment, capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip
    assert done.returncode == 0 and "done" in done.stdout, (done.stdout + done.stderr)[-4000:]
    assert "runtime error" not in done.stderr and "AddressSanitizer" not in done.stderr, done.stderr[-4000:]
