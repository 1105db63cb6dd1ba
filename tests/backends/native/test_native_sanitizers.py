"""The kernels under GCC's sanitizers: nothing is read or written beyond its memory, nothing undefined is done, and no
thread reads or writes what another is writing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from native import BUILDS, built, cache_at, changed_source, load_native
from native_shapes import save_shape
from stridelm.backends.common.compiler import compiled
from stridelm.backends.native.library import SOURCE
from stridelm.models.adapter import save_adapter
from tiny import load_tiny, random_adapter

EVERY_KERNEL = Path(__file__).with_name("every_kernel.py")
SHAPES = ["llama, odd sizes", "llama, narrow", "llama, three heads", "mistral", "qwen2", "qwen3, small heads"]
FORMS = (
    {"quantize": "q8", "activations": "int16"},
    {"quantize": "q4", "activations": "int16"},
    {"quantize": "q4", "activations": "int8", "kv_cache": "int8"},
)
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
THREADS = ("-fsanitize=thread",)
CLOCK = "using Clock = std::chrono::steady_clock;"
CLOCKS = {
    "no thread is given up": "return {};",
    "threads are given up": "static std::atomic<int> calls{0}; return time_point(std::chrono::milliseconds(calls++));",
}
"""What the team's clock says. By the real one, threads that a sanitizer slows down are soon given up, and most of what
follows is run by one thread alone."""
BARRIERS = {
    "forward.h": "wait_for_all(layer.gate_up, kGatePanels, low_rank(number, &Adapter::gate_up));",
    "sequential.h": "    Team::instance().wait(thread, threads);\n    const Share",
}
"""Where threads wait for each other."""

UNSHUFFLED = ("setarch", "-R")
"""Addresses are not drawn at random: if they are, from a wide range, GCC's thread sanitizer finds its own taken."""
Models = list[tuple[str, str]]


@pytest.fixture(scope="module")
def save_models(tmp_path_factory: pytest.TempPathFactory, native_cache: Path) -> Callable[[str], Models]:
    """Models and adapters, packed for a build: the process under a sanitizer has no need of torch."""
    models: Models = []
    for number, shape in enumerate(SHAPES):
        folder, adapter = save_shape(tmp_path_factory.mktemp("model"), shape), tmp_path_factory.mktemp("adapter")
        save_adapter(adapter, random_adapter(load_tiny(folder), rank=40 if number % 2 else 4))
        models.append((str(folder), str(adapter)))

    def save(build: str) -> Models:
        with built(build):
            for folder, adapter in models:
                for quantize in ("q8", "q4"):
                    load_native(folder, native_cache, adapter=Path(adapter), quantize=quantize)
        return models

    return save


def run_sanitized(
    build: str, models: Models, cache: Path, sanitizer: tuple[str, ...], threads: tuple[int, ...], source: Path = SOURCE
) -> subprocess.CompletedProcess[str]:
    """Every kernel, on a number of threads for each of `FORMS`."""
    names = ["libtsan.so"] if sanitizer == THREADS else ["libasan.so", "libubsan.so"]
    preloaded = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in (*names, "libstdc++.so.6")
    ]
    if not all(Path(each).is_absolute() for each in preloaded):
        pytest.skip("GCC has no sanitizers here")
    flags = (*(flag for flag in BUILDS[build] if flag != "-O3"), *sanitizer, "-g", "-O1")
    link_flags = ("-pthread", sanitizer[0])
    forms = [form | {"threads": count} for form, count in zip(FORMS, threads, strict=True)]
    given = {"source": str(source), "flags": flags, "link_flags": link_flags, "forms": forms, "models": models}
    with cache_at(cache):
        compiled(source, flags, link_flags)  # here: a compiler under a sanitizer takes its time
        environment = os.environ | {
            "LD_PRELOAD": " ".join(preloaded),
            "ASAN_OPTIONS": "detect_leaks=0",
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",  # Python and numpy: they would seem to race
        }
        return subprocess.run(
            [*UNSHUFFLED, sys.executable, "-W", "ignore", str(EVERY_KERNEL), json.dumps(given)],
            env=environment, capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip


def with_clock(says: str) -> tuple[str, str]:
    return CLOCK, f"struct Clock : std::chrono::steady_clock {{ static time_point now() {{ {says} }} }};"


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS)
def test_nothing_is_wrong_with_memory(build: str, save_models: Callable[[str], Models], native_cache: Path) -> None:
    done = run_sanitized(build, save_models(build), native_cache, MEMORY, threads=(1, 3, 2))
    assert done.returncode == 0 and "done" in done.stdout, (done.stdout + done.stderr)[-4000:]
    assert "runtime error" not in done.stderr and "AddressSanitizer" not in done.stderr, done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("build", BUILDS)
def test_threads_do_not_race(
    build: str, clock: str, tmp_path: Path, save_models: Callable[[str], Models], native_cache: Path
) -> None:
    source = changed_source(tmp_path / "native", {"team.h": with_clock(CLOCKS[clock])})
    done = run_sanitized(build, save_models(build), native_cache, THREADS, threads=(2, 3, 2), source=source)
    assert done.returncode == 0 and "done" in done.stdout, (done.stdout + done.stderr)[-4000:]
    assert "ThreadSanitizer" not in done.stderr, done.stderr[:8000]


@pytest.mark.slow
@pytest.mark.parametrize("file", BARRIERS)
def test_a_missing_barrier_is_reported(
    file: str, tmp_path: Path, save_models: Callable[[str], Models], native_cache: Path
) -> None:
    barrier = BARRIERS[file]
    changes = {"team.h": with_clock(CLOCKS["no thread is given up"])}
    changes[file] = (barrier, "const Share" if barrier.endswith("Share") else "")
    source = changed_source(tmp_path / "native", changes)
    done = run_sanitized("native", save_models("native")[:1], native_cache, THREADS, (2, 3, 2), source)
    assert "ThreadSanitizer: data race" in done.stderr and file in done.stderr, (done.stdout + done.stderr)[-4000:]
