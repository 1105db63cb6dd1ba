"""A model is loaded onto the GPU backend when its kernels pass a trial: the public way in, as on a GPU."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from interpreted import DEVICE
from stridelm import LoadSettings, SamplingParams, load
from stridelm.api import LanguageModel
from stridelm.backends.gpu.forward import GpuForward
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.models.adapter import save_adapter
from tiny import load_tiny, random_adapter

PARAMS = SamplingParams(max_tokens=6)


@pytest.fixture
def load_tiny_model(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., LanguageModel]:
    """Kernels run in the interpreter here, which counts as a GPU: transformers' layers stay as they are."""
    monkeypatch.setattr("stridelm.backends.torch.checkpoint.best_storage", lambda device, dtype: None)
    monkeypatch.setattr("stridelm.backends.gpu.load.has_kernels", lambda device: True)
    monkeypatch.setattr("stridelm.backends.common.step_seconds._TRIALS", 1)

    def get(family: str, masks: int = 0) -> LanguageModel:
        folder = tiny_folder(family, num_hidden_layers=1)
        if masks:
            save_adapter(tmp_path, random_adapter(load_tiny(folder), masks=masks))
        settings = LoadSettings(device=DEVICE, backend="torch", cache_tokens=1024)
        return load(str(folder), adapter=tmp_path if masks else None, settings=settings)

    return get


@pytest.mark.parametrize(("family", "masks"), [("llama", 2), ("mistral", 0)])
def test_what_passes_the_trial_runs_there(
    family: str, masks: int, load_tiny_model: Callable[..., LanguageModel], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = load_tiny_model(family, masks)
    assert isinstance(model.engine.forward, GpuForward) and not caplog.records
    plain = model.generate("abcabc", PARAMS, decoder="autoregressive")
    assert model.generate("abcabc", PARAMS, decoder="self" if masks else "auto").token_ids == plain.token_ids


def test_what_fails_the_trial_is_left_to_torch(
    load_tiny_model: Callable[..., LanguageModel], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stridelm.backends.gpu.load.distance", lambda expected, actual: 1.0)
    with caplog.at_level(logging.WARNING):
        model = load_tiny_model("llama")
    assert isinstance(model.engine.forward, TorchForward)
    assert "give other logits" in caplog.text


@pytest.mark.parametrize(("family", "dtype"), [("qwen3", torch.bfloat16), ("gemma2", torch.float32)])
def test_halves_are_taken_where_they_are_exact(
    family: str, dtype: torch.dtype, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, settings = str(tiny_folder(family)), LoadSettings(device="cpu")
    assert load_checkpoint(folder, settings).network.dtype == torch.float32
    monkeypatch.setattr("stridelm.backends.torch.checkpoint.best_storage", lambda device, dtype: None)
    monkeypatch.setattr("stridelm.backends.torch.checkpoint.has_kernels", lambda device: True)
    assert load_checkpoint(folder, settings).network.dtype == dtype
    assert load_checkpoint(folder, settings, trainable=True).network.dtype == torch.float32


def test_halves_that_would_not_be_exact_are_left(
    load_tiny_model: Callable[..., LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for the kernels' sake; when these fail, torch runs the model in float32."""
    monkeypatch.setattr("stridelm.backends.torch.checkpoint.has_kernels", lambda device: True)
    monkeypatch.setattr("stridelm.backends.gpu.load.distance", lambda expected, actual: 1.0)
    model = load_tiny_model("llama")
    assert isinstance(model.engine.forward, TorchForward)
    assert model.generate("abc", PARAMS).exact and "float32" in model.generate("abc", PARAMS).exact_to
