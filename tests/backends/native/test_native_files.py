"""The native backend's files: damaged ones are refused or packed anew, never read beyond; and the choice of backend."""

import json
import logging
import multiprocessing
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Stored

import stridelm
from gguf_models import (
    PROMPT,
    RANDOM_KINDS,
    WHOLE_BLOCKS,
    WHOLE_SUPER_BLOCKS,
    content_of,
    cuts,
    header_places,
    load,
    logits_of,
    stored_as,
    tiny_network,
)
from native import cache_at, deviation, forward_of, load_native
from stridelm import InputError, LoadSettings
from stridelm.backends import load as backends
from stridelm.backends.common import compiler
from stridelm.backends.native.library import library
from stridelm.backends.native.load import NativeTarget
from stridelm.backends.native.packed_file import ENTRIES, WEIGHTS
from stridelm.backends.native.quantised_matrix import KINDS
from stridelm.layout import lay_out, make_block
from stridelm.settings import ModelChoice
from tiny import save_tiny


def write_gguf(path: Path, kind: Stored, family: str = "llama", *, other: dict[str, Stored] | None = None) -> Path:
    return stored_as(kind, family, other=other).write(path)


def is_native(model: stridelm.LanguageModel) -> bool:
    return isinstance(model.target, NativeTarget)


def logits(model: stridelm.LanguageModel) -> np.ndarray:
    forward = model.loaded.forward
    (output,) = forward(lay_out([make_block(0, PROMPT, reads_all=True)]), [forward.cache.open()])
    return np.asarray(output.logits_WV)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", [Stored[kind] for kind in KINDS])
def test_blocks_of_a_file_are_run_as_they_are(family: str, kind: Stored, tmp_path: Path, native_cache: Path) -> None:
    if family != "llama" and kind not in (Stored.Q4_1, Stored.Q8_0, Stored.Q4_K):
        pytest.skip("one family is enough")
    path = write_gguf(tmp_path / "tiny.gguf", kind, family)
    model = load_native(path, native_cache, backend="auto", device="cpu", activations="int16")
    assert is_native(model) and "in the file's own weights with" in model.target.description
    # Of blocks of any bytes the logits are larger, and so are their differences.
    assert deviation(logits(model), logits_of(load(path), PROMPT).numpy()) < (2e-2 if kind in RANDOM_KINDS else 5e-3)


def test_8_bit_activations_are_the_default_where_weights_have_less(tmp_path: Path, native_cache: Path) -> None:
    for kind, default in ((Stored.Q4_1, "int8"), (Stored.Q6_K, "int8"), (Stored.Q8_0, "int16")):
        path = write_gguf(tmp_path / "tiny.gguf", kind)
        model = load_native(path, native_cache)
        assert f"with {default} activations" in model.target.description
        for other in ("int8", "int16"):
            same = np.array_equal(logits(load_native(path, native_cache, activations=other)), logits(model))
            assert same == (other == default or kind == Stored.Q8_0)


MIXES = {
    "Q4_K_M": (Stored.Q4_K, {"token_embd": Stored.Q6_K, "blk.0.attn_v": Stored.Q6_K, "blk.1.ffn_down": Stored.Q6_K}),
    "rows that are no whole super-blocks": (Stored.Q5_0, {"blk.0.attn_v": Stored.Q8_0, "token_embd": Stored.Q8_0}),
    "query, key, value": (Stored.Q8_0, {"blk.0.attn_q": Stored.Q4_1, "blk.0.attn_k": Stored.Q5_1}),
    "by matrix": (Stored.Q4_1, {"token_embd": Stored.Q8_0, "blk.0.ffn_down": Stored.Q4_0}),
}


@pytest.mark.parametrize("mix", MIXES)
def test_kinds_may_be_mixed(mix: str, tmp_path: Path, native_cache: Path) -> None:
    kind, other = MIXES[mix]
    path = write_gguf(tmp_path / "mixed.gguf", kind, other={f"{name}.weight": each for name, each in other.items()})
    model = load_native(path, native_cache, activations="int16")
    assert "in the file's own weights with" in model.target.description
    assert deviation(logits(model), logits_of(load(path), PROMPT).numpy()) < 2e-2


def test_gate_and_up_of_two_kinds_are_quantised_again(
    tmp_path: Path, native_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "mixed.gguf", Stored.Q8_0, other={"blk.1.ffn_up.weight": Stored.Q4_1})
    model = load_native(path, native_cache, activations="int16")
    said = "gate and up of 1 layers, which differ in kind, requantised to 8 bits"
    assert capsys.readouterr().err.count(said) == 1 and said in model.target.description
    assert deviation(logits(model), logits_of(load(path), PROMPT).numpy()) < 5e-2


@pytest.mark.parametrize("kind", [Stored.Q2_K, Stored.IQ2_XXS])
def test_kinds_without_a_kernel_are_quantised_again(
    kind: Stored, tmp_path: Path, native_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", Stored.Q6_K, other={"blk.1.ffn_down.weight": kind})
    model = load_native(path, native_cache, backend="auto", device="cpu", activations="int16")
    said = f"{kind.name} requantised to 8 bits"
    assert capsys.readouterr().err.count(said) == 1 and said in model.target.description
    assert deviation(logits(model), logits_of(load(path), PROMPT).numpy()) < 5e-2


@pytest.mark.parametrize("kind", [Stored.F16, Stored.BF16, Stored.F32])
def test_what_is_not_quantised_goes_to_torch_unless_native_is_asked_for(
    kind: Stored, tmp_path: Path, native_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", Stored.Q8_0, other={"blk.1.ffn_down.weight": kind})
    assert not is_native(load_native(path, native_cache, backend="auto", device="cpu"))
    model = load_native(path, native_cache)
    assert is_native(model) and f"{kind.name} requantised to 8 bits" in model.target.description
    assert not is_native(load_native(path, native_cache, backend="auto", device="cpu")), "now that it is packed"
    assert capsys.readouterr().err.count("requantised") == 1
    assert deviation(logits(model), logits_of(load(path), PROMPT).numpy()) < 0.05


def test_packing_never_holds_the_weights_in_float32(tmp_path: Path, native_cache: Path) -> None:
    content = content_of(tiny_network("llama", **WHOLE_SUPER_BLOCKS, num_hidden_layers=20))
    content.stored = {name: Stored.Q4_K for name, array in content.tensors.items() if array.ndim == 2}
    path = content.write(tmp_path / "tiny.gguf")
    whole = sum(array.nbytes for array in content.tensors.values())
    tracemalloc.start()
    try:
        load_native(path, native_cache, cache_tokens=256)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < whole / 2, (peak, whole)


LOAD = """
import sys
from stridelm import InputError, LoadSettings, SamplingParams, load
for path in sys.argv[1:]:
    try:
        model = load(path, settings=LoadSettings(backend="native", cache_tokens=256, threads=1))
        model.generate("Hello", SamplingParams(max_tokens=4), raw=True)
        print("ran")
    except InputError as error:
        assert "\\n" not in str(error)
        print("refused")
"""


def loaded_elsewhere(paths: list[Path]) -> list[str]:
    """Each file loaded in a process of its own kind, so that a crash is seen and not died of."""
    command = [sys.executable, "-W", "ignore", "-c", LOAD, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.split()
    assert len(said) == len(paths)
    return said


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_damaged_files_are_refused_or_run(seed: int, tmp_path: Path, native_cache: Path) -> None:
    """Cut off at many places, and with bytes flipped in settings, tensor descriptions and blocks."""
    chance, paths = random.Random(seed), []
    content = stored_as((Stored.Q4_0, Stored.Q4_K, Stored.Q8_0, Stored.Q6_K, Stored.Q4_1, Stored.Q5_K)[seed % 6])
    whole = content.write(tmp_path / "whole.gguf")
    data, places = whole.read_bytes(), header_places(whole)
    ends = [*cuts(content, tmp_path / "cuts.gguf").values()] if seed == 0 else []
    ends += [chance.randrange(len(data) - 64) for _ in range(6)]
    for end in ends:
        paths.append(tmp_path / f"cut-{len(paths)}.gguf")
        paths[-1].write_bytes(data[:end])
    cut = len(paths)
    for _ in range(24):
        damaged = bytearray(data)
        for place in chance.choices(places, k=chance.choice([1, 1, 2, 8])):
            damaged[place] = chance.randrange(256)
        for place in chance.choices(range(places[-1], len(data)), k=chance.choice([0, 50])):
            damaged[place] = chance.randrange(256)
        paths.append(tmp_path / f"flipped-{len(paths)}.gguf")
        paths[-1].write_bytes(damaged)
    with cache_at(native_cache):
        said = loaded_elsewhere([*paths, whole])
    assert said[:cut] == ["refused"] * cut
    assert said[-1] == "ran" and {"ran", "refused"} == set(said)


def edit(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / ENTRIES
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def edit_entry(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        entries = json.loads((folder / ENTRIES).read_text())["entries"]
        edit(entries=entries | {"0.down": entries["0.down"] | changes})(folder)

    return change


def cut_weights(folder: Path, end: int) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:end])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "half of the weights": lambda folder: cut_weights(folder, (folder / WEIGHTS).stat().st_size // 2),
    "a byte too few": lambda folder: cut_weights(folder, -1),
    "no byte of them": lambda folder: cut_weights(folder, 0),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "no description": lambda folder: (folder / ENTRIES).unlink(),
    "no JSON": lambda folder: (folder / ENTRIES).write_text("{"),
    "not text": lambda folder: (folder / ENTRIES).write_bytes(b"\xff\x00"),
    "a list": lambda folder: (folder / ENTRIES).write_text("[]"),
    "a number": lambda folder: (folder / ENTRIES).write_text("1"),
    "an offset beyond": edit_entry(offset=2**40),
    "an offset before": edit_entry(offset=-4096),
    "too many panels": edit_entry(panels=2**50),
    "more outputs than panels": edit_entry(outputs=10_000),
    "half a group": edit_entry(groups=1.5),
    "a kind that there is not": edit_entry(kind=99),
    "part of a block": edit_entry(kind=14, groups=3, panels=1),
    "groups in words": edit_entry(groups="two"),
    "entries in a list": edit(entries=[]),
    "entries that are none": edit(entries={"0.down": 3}),
    "other lanes": edit(lanes=4),
    "another version": edit(version=0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_packed_files_are_made_anew(
    damage: str, tmp_path: Path, native_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny(tmp_path / "model", **WHOLE_BLOCKS)
    expected = logits(load_native(model, native_cache, quantize="q8"))
    assert "packing" in capsys.readouterr().err
    load_native(model, native_cache, quantize="q8")
    assert "packing" not in capsys.readouterr().err
    (folder,) = [
        file.parent
        for file in (native_cache / "stridelm" / "models" / "packed").glob(f"*/{ENTRIES}")
        if file.stat().st_mtime_ns >= (model / "config.json").stat().st_mtime_ns
    ]
    DAMAGES[damage](folder)
    assert np.array_equal(logits(load_native(model, native_cache, quantize="q8")), expected)
    assert "packing" in capsys.readouterr().err
    load_native(model, native_cache, quantize="q8")
    assert "packing" not in capsys.readouterr().err


def test_a_changed_model_is_packed_anew(tmp_path: Path, native_cache: Path) -> None:
    folder = save_tiny(tmp_path / "model", **WHOLE_BLOCKS)
    before = logits(load_native(folder, native_cache, quantize="q8"))
    save_tiny(folder, seed=1, **WHOLE_BLOCKS)
    assert not np.allclose(logits(load_native(folder, native_cache, quantize="q8")), before)


def _pack_at_once(model: str, cache: str, start: Any) -> None:
    start.wait()
    forward = forward_of(load_native(model, Path(cache), quantize="q8"))
    assert forward.weights.packed.notes["drift"]["int16"]["largest"] >= 0


@pytest.mark.slow
def test_two_processes_pack_at_once(tmp_path: Path, native_cache: Path) -> None:
    folder = save_tiny(tmp_path / "model", **WHOLE_BLOCKS)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    each = [context.Process(target=_pack_at_once, args=(str(folder), str(native_cache), start)) for _ in range(2)]
    for process in each:
        process.start()
    for process in each:
        process.join(240)
    assert [process.exitcode for process in each] == [0, 0]
    assert not list((native_cache / "stridelm" / "models" / "packed").glob(".working-*"))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoadSettings], str]:
    """Which backend is asked to load something."""
    from stridelm.backends import network
    from stridelm.backends.native import load as native

    for module, name in ((native, "native"), (network, "torch")):
        monkeypatch.setattr(module, "load_model", lambda choice, name=name: name)
    monkeypatch.setattr(backends, "_with_torch_drafters", lambda loaded, *_: loaded)
    return lambda settings: str(backends.load_model(ModelChoice("any", settings=settings)))


def test_which_backend_is_chosen(chosen: Callable[[LoadSettings], str]) -> None:
    assert chosen(LoadSettings(device="cpu")) == "native"
    assert chosen(LoadSettings(device="cpu", activations="int16")) == "native"
    for settings in (
        LoadSettings(backend="torch"),
        LoadSettings(dtype="bfloat16"),
        LoadSettings(device="cuda"),
        LoadSettings(device="cpu", dtype="float16"),
    ):
        assert chosen(settings) == "torch"
    for settings in (
        LoadSettings(backend="torch", activations="int16"),
        LoadSettings(device="cuda", activations="int16"),
    ):
        with pytest.raises(InputError, match="activations"):
            chosen(settings)
    with pytest.raises(InputError, match="kv_cache is a matter of the native backend"):
        chosen(LoadSettings(backend="torch", kv_cache="int8"))
    for asked in (LoadSettings(backend="native"), LoadSettings(quantize="q8")):
        for settings, said in ((replace(asked, device="cuda"), "CPU"), (replace(asked, dtype="bfloat16"), "dtype")):
            with pytest.raises(InputError, match=said):
                chosen(settings)


@pytest.mark.parametrize("lack", ["compiler", "AVX2"])
def test_without_kernels_torch_serves(
    lack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", Stored.Q8_0)
    if lack == "compiler":
        monkeypatch.setenv("CXX", "/nowhere/g++")
    else:
        monkeypatch.setattr(compiler, "processor_features", lambda: frozenset({"fpu", "sse2", "avx"}))
    library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="stridelm"):
            model = load_native(path, tmp_path / "empty", backend="auto", device="cpu")
        assert not is_native(model) and "torch serves, which is slower" in caplog.text
        assert ("/nowhere/g++" if lack == "compiler" else "no avx2, f16c, fma") in caplog.text
        with pytest.raises(InputError, match="the native backend cannot be used"):
            load_native(path, tmp_path / "empty")
        with pytest.raises(InputError, match="activations"):
            load_native(path, tmp_path / "empty", backend="auto", device="cpu", activations="int16")
    finally:
        library.cache_clear()


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("llama", {"head_dim": 8}, "multiple of 16"),
        ("llama", {"head_dim": 16, "hidden_act": "gelu"}, "gelu"),
        ("llama", {"head_dim": 16, "attention_bias": True}, "bias"),
        ("gemma2", {"head_dim": 16}, "gemma2"),
    ],
)
def test_what_the_kernels_do_not_do_is_refused(
    family: str, changes: dict[str, Any], said: str, tmp_path: Path, native_cache: Path
) -> None:
    folder = save_tiny(tmp_path / "model", family, **changes)
    with pytest.raises(InputError, match=f"the native backend .*{said}"):
        load_native(folder, native_cache, quantize="q8")
    assert torch.is_tensor(load_native(folder, native_cache, backend="auto", device="cpu").loaded.forward.zeros(1))


def test_weights_that_are_not_quantised_stay_with_torch(tmp_path: Path, native_cache: Path) -> None:
    folder = save_tiny(tmp_path / "model", **WHOLE_BLOCKS)
    assert not is_native(load_native(folder, native_cache, backend="auto", device="cpu"))
    with pytest.raises(InputError, match="--quantize q8"):
        load_native(folder, native_cache)
