"""Without torch and transformers: GGUF files are packed and run, adapters included, and all else is refused in one
sentence.

Here the two are hidden from a process; tests/install has an environment that lacks them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Stored

import stridelm
from gguf_models import WHOLE_BLOCKS, stored_as
from native import load_native
from stridelm import InputError, SamplingParams
from stridelm.light import LEFT_OUT, install_command
from stridelm.models.adapter import save_adapter
from stridelm.models.gguf import read_gguf
from stridelm.models.gguf_content import read_content
from stridelm.models.tokenizer import Tokenizer
from suite import TinyFolder
from tiny import load_tiny, random_adapter, save_tiny

LINES = ["it's 12345, and\n\n  more", "abcab! <spare>", "Grüße, 数 <|end|> 'LL"]
PROGRAM = """
import json, sys
sys.modules.update({name: None for name in ("torch", "transformers")})
import stridelm
from stridelm import LoadSettings, SamplingParams
model, adapter = sys.argv[1:]
settings = LoadSettings(backend="auto", device="cpu", cache_tokens=2048, threads=1)
loaded = stridelm.load(model, adapter=adapter or None, settings=settings)
result = loaded.generate("ab", SamplingParams(max_tokens=16), decoder="self" if adapter else "autoregressive")
print(json.dumps([result.token_ids, loaded.target.fingerprint, loaded.target.description, result.backend]))
"""


def run_light(model: Path, adapter: Path | None, cache: Path) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), str(adapter or "")],
        env={"PYTHONPATH": ":".join(sys.path), "XDG_CACHE_HOME": str(cache), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("has_adapter", [False, True])
def test_a_file_is_packed_and_run_as_it_is_with_torch(
    has_adapter: bool, tmp_path: Path, native_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = stored_as(Stored.Q4_1).write(tmp_path / "tiny.gguf")
    folder = None
    if has_adapter:
        folder = tmp_path / "adapter"
        save_adapter(folder, random_adapter(load_tiny(save_tiny(tmp_path / "base", "llama", **WHOLE_BLOCKS))))
    model = load_native(path, native_cache, adapter=folder, backend="auto", device="cpu")
    result = model.generate("ab", SamplingParams(max_tokens=16), decoder="self" if has_adapter else "autoregressive")
    other = tmp_path_factory.mktemp("light")
    (other / "stridelm" / "models").mkdir(parents=True)
    (other / "stridelm" / "models" / "native").symlink_to(native_cache / "stridelm" / "models" / "native")
    assert run_light(path, folder, other) == [
        list(result.token_ids), read_gguf_fingerprint(path), model.target.description, "native"
    ]  # fmt: skip


def read_gguf_fingerprint(path: Path) -> str:
    from stridelm.models.fingerprint import fingerprint

    return fingerprint(read_gguf(path).weights)


@pytest.mark.parametrize("kind", [Stored.Q8_0, Stored.Q4_0])
def test_the_tokenizer_is_that_of_transformers(kind: Stored, tmp_path: Path) -> None:
    path = stored_as(kind).write(tmp_path / "tiny.gguf")
    ours, theirs = read_content(path).tokenizer, read_gguf(path).tokenizer
    ours.save(tmp_path)
    for tokenizer in (ours, Tokenizer.from_folder(tmp_path)):
        assert [tokenizer.encode(line) for line in LINES] == [theirs.encode(line) for line in LINES]
        assert tokenizer.get_vocab() == theirs.get_vocab()
        assert tokenizer.special_tokens_map == theirs.special_tokens_map
        assert tokenizer.chat_template == theirs.chat_template
        assert {token: str(added) for token, added in tokenizer.added_tokens_decoder.items()} == {
            token: str(added) for token, added in theirs.added_tokens_decoder.items()
        }


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two are not installed, as far as loading can tell."""
    for name in ("stridelm.backends.load.is_light", "stridelm.backends.native.model_source.is_light"):
        monkeypatch.setattr(name, lambda: True)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("settings", [{}, {"quantize": "q8"}, {"backend": "torch"}])
def test_a_folder_or_a_hub_id_names_what_to_install(settings: dict[str, Any], tiny_folder: TinyFolder) -> None:
    for model in (str(tiny_folder()), "Qwen/Qwen3-0.6B"):
        with pytest.raises(InputError) as refusal:
            stridelm.load(model, settings=stridelm.LoadSettings(device="cpu", **settings))
        message = str(refusal.value)
        assert message.startswith(model) and "pip install 'stridelm-light[torch]'" in message
        assert all(name in message for name in (*LEFT_OUT, ".gguf files"))


@pytest.mark.usefixtures("light")
def test_an_extra_is_asked_for_where_this_package_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("serve") == f"pip install -e '{Path(__file__).parents[3]}[serve]'"
    assert install_command("serve", tmp_path) == "pip install 'stridelm[serve]'"
    monkeypatch.setattr("stridelm.light.LEFT_OUT", ("no_such_package",))
    assert install_command("serve", tmp_path) == "pip install 'stridelm-light[serve]'"


def test_a_missing_model_is_missing_first() -> None:
    for model, said in (("nope", "there is no model 'nope'"), ("nope.gguf", "no such file"), ("/a/b", "no model")):
        with pytest.raises(InputError, match=said):
            stridelm.load(model)


@pytest.mark.usefixtures("light")
def test_what_torch_would_run_as_it_is_gets_8_bits(
    tmp_path: Path, native_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored_as(Stored.F16).write(tmp_path / "tiny.gguf")
    model = load_native(path, native_cache, backend="auto", device="cpu")
    assert model.target.device == "CPU" and "F16 requantised to 8 bits" in capsys.readouterr().err
