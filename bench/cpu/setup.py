"""The peers of bench/cpu/run.py: where they are, and how they are fetched and built. `python bench/cpu/run.py --setup`.

Everything lies below ~/.cache/stridelm/peers. llama.cpp comes as source, in the npm package of node-llama-cpp, and is
built here for this very processor; OpenVINO GenAI comes from PyPI into a virtual environment of its own.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from stridelm.models import builtin
from stridelm.params import InputError

HERE = Path(__file__).parents[1]
OPENVINO = (
    "openvino-genai==2026.4.1.0",
    "openvino==2026.4.1",
    "openvino-tokenizers==2026.4.1.0",
    "numpy==2.4.6",
)
LLAMA_PACKAGE = "node-llama-cpp@3.22.1"
LLAMA_SHA256 = "a0d9dd80eacd2ab1cfe71aee57ac8a806487fd70b3d2a38fbec637752d9e5c5f"
LLAMA_RELEASE = "v0.5.0"
LLAMA_BUNDLE = "package/llama/gitRelease.bundle"
LLAMA_DRIVER = HERE / "peers" / "llama_driver.cpp"
LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
)
LLAMA_TARGETS = ("llama", "llama-common", "llama-bench")
"""The last is llama.cpp's own benchmark: with it anyone can see that our driver does not slow it down."""


def peers_folder() -> Path:
    return builtin.cache_folder().parent / "peers"


def openvino_python() -> Path:
    return _openvino_folder() / "bin" / "python"


def llama_driver() -> Path:
    """Named after its source and llama.cpp's release: an older one is not taken for it."""
    digest = hashlib.sha256(LLAMA_DRIVER.read_bytes()).hexdigest()[:12]
    return _llama_folder() / f"llama_driver-{digest}"


def llama_quantize() -> Path:
    """llama.cpp's own quantiser; built when it is not there yet, which needs the rest of llama.cpp to be."""
    program = _llama_libraries() / "llama-quantize"
    if not program.exists():
        _run(["nice", "cmake", "--build", str(_llama_folder() / "build"), "--target", program.name])
    return program


def builtin_gguf() -> Path:
    """The built-in model's GGUF file; fetched when it is not there yet."""
    return builtin.ensure_builtin() / builtin.GGUF_NAME


def set_up() -> None:
    """Whatever is not there yet; takes some minutes, most of them llama.cpp's."""
    print(f"model: {builtin_gguf()}")
    for name, finished, make in (
        ("openvino", openvino_python(), _set_up_openvino),
        ("llama.cpp", _llama_libraries() / LLAMA_TARGETS[-1], _set_up_llama),
        ("llama.cpp's driver", llama_driver(), _compile_driver),
    ):
        if not finished.exists():
            make()
        print(f"{name}: {finished}", flush=True)


def _openvino_folder() -> Path:
    return peers_folder() / f"openvino-{OPENVINO[0].partition('==')[2]}"


def _llama_folder() -> Path:
    return peers_folder() / f"llama.cpp-{LLAMA_RELEASE}"


def _llama_libraries() -> Path:
    return _llama_folder() / "build" / "bin"


def _set_up_openvino() -> None:
    folder = _openvino_folder()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(openvino_python()), "-m", "pip", "install", "--quiet", *OPENVINO])
    except InputError:
        shutil.rmtree(folder, ignore_errors=True)  # half a set-up must not pass for a whole one
        raise


def _set_up_llama() -> None:
    """What an interrupted set-up has built already is not built again."""
    folder = _llama_folder()
    source, build = folder / "source", folder / "build"
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as working:
            _run(["npm", "pack", "--silent", LLAMA_PACKAGE], Path(working))
            package = next(Path(working).glob("*.tgz"))
            _check(package, LLAMA_SHA256)
            with tarfile.open(package) as archive:
                archive.extract(LLAMA_BUNDLE, working, filter="data")
            cloned = Path(working) / "source"
            _run(["git", "clone", "--quiet", str(Path(working) / LLAMA_BUNDLE), str(cloned)])
            cloned.rename(source)
    _run(["cmake", "-S", str(source), "-B", str(build), *LLAMA_OPTIONS])
    jobs = str(os.cpu_count() or 1)
    _run(["nice", "cmake", "--build", str(build), "--parallel", jobs, "--target", *LLAMA_TARGETS])


def _compile_driver() -> None:
    source, libraries = _llama_folder() / "source", _llama_libraries()
    includes = [f"-I{source / each}" for each in ("include", "common", "ggml/include", "vendor")]
    links = [str(libraries / f"lib{each}.so") for each in ("llama-common", "llama", "ggml", "ggml-base")]
    command = ["c++", "-std=c++17", "-O3", "-march=native", *includes, str(LLAMA_DRIVER), *links]
    _run([*command, f"-Wl,-rpath,{libraries}", "-o", str(llama_driver())])


def _check(file: Path, expected: str) -> None:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != expected:
        raise InputError(f"{file.name}: its SHA-256 is {digest}, not {expected}; check your package index")


def _run(command: list[str], folder: Path | None = None) -> None:
    print("$", " ".join(command), flush=True)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InputError(f"{command[0]} is not installed: it is needed to set the peers up") from error
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise InputError(f"{command[0]} ended with status {done.returncode}:\n{said}")
