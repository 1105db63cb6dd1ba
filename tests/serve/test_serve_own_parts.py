"""Heads and draft models that come with a model: loaded when a request asks for them, not before, and once."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from asking import CHAT, TEXT, chat, make_context, serving, text
from assembly import assembled
from native import skip_without_kernels
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.models.builtin import builtin_heads
from stridelm.models.preview import heads_k
from stridelm.models.target import Draft, OwnHeads
from stridelm.serve.status import decoders
from stridelm.settings import LoadSettings
from tiny import random_heads

BODIES: dict[str, Callable[..., dict[str, Any]]] = {CHAT: chat, TEXT: lambda **fields: text("hello", **fields)}


@pytest.fixture
def loaded() -> list[str]:
    """What was loaded so far."""
    return []


@pytest.fixture
def model(tiny: Callable[..., Checkpoint], loaded: list[str]) -> LanguageModel:
    target = tiny("llama")
    given = assembled(target, tiny("llama", 1), LoadSettings(cache_tokens=4096), None, random_heads(target)).loaded
    draft, heads = given.draft, given.heads
    assert draft is not None and heads is not None

    @cache
    def load_draft() -> Draft:
        loaded.append("draft")
        return draft

    @cache
    def load_heads() -> Any:
        loaded.append("heads")
        return heads

    own = replace(given, draft=None, heads=None, own_draft=load_draft, own_heads=OwnHeads(heads.k, load_heads))
    return LanguageModel(own, LoadSettings(cache_tokens=4096))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("decoder", ["heads", "draft"])
def test_they_are_loaded_when_they_are_asked_for(
    decoder: str, path: str, model: LanguageModel, loaded: list[str]
) -> None:
    model.warm_up()
    with serving(make_context(model)) as client:
        assert {"heads", "draft"} <= set(decoders(model))
        assert client.post(path, json=BODIES[path](max_tokens=8)).status_code == 200
        assert loaded == []
        plain = client.post(path, json=BODIES[path](max_tokens=8, stride={"decoder": "autoregressive"})).json()
        for _ in range(2):
            reply = client.post(path, json=BODIES[path](max_tokens=8, stride={"decoder": decoder}))
            assert reply.status_code == 200, reply.text
            assert reply.json()["choices"] == plain["choices"]
    assert loaded == [decoder]


def test_what_heads_say_of_themselves_is_their_k(model: LanguageModel) -> None:
    folder = builtin_heads()
    if folder is None:
        pytest.skip("this checkout has no heads")
    from stridelm.backends.torch.heads import load_heads

    assert heads_k(folder) == load_heads(folder)[1].k
    assert model.check("heads").decoder == "heads"


SERVER = """
import sys
from stridelm.api import LanguageModel
from stridelm.settings import LoadSettings, ModelChoice
model = LanguageModel.load(ModelChoice(settings=LoadSettings(backend="native", threads=1, cache_tokens=512)))
model.warm_up()
assert "torch" not in sys.modules, "what a server loads needs no torch"
assert model.generate("Hi", decoder="heads").token_ids == model.generate("Hi", decoder="autoregressive").token_ids
assert "torch" in sys.modules
"""


@pytest.mark.usefixtures("builtin_checkpoint")
def test_a_server_of_the_built_in_model_needs_no_torch(tmp_path: Path) -> None:
    skip_without_kernels()
    packed = [sys.executable, "-c", "import stridelm; stridelm.load()"]  # packing needs it, once
    subprocess.run(packed, check=True, cwd=tmp_path)
    subprocess.run([sys.executable, "-c", SERVER], check=True, cwd=tmp_path)
