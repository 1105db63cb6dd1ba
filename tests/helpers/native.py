"""The native backend for tests: both builds of the kernels, and tiny models packed in a folder of their own."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.models.llama.modeling_llama import eager_attention_forward

import stridelm
from stridelm.api import LanguageModel
from stridelm.backends.common.compiler import CannotCompile, compiled
from stridelm.backends.native import library as library_module
from stridelm.backends.native.forward import NativeForward
from stridelm.backends.native.library import AVX2_FLAGS, FLAGS, LINK_FLAGS, SOURCE, bind, library
from stridelm.backends.native.quantised_matrix import EIGHT, FOUR, quantise
from stridelm.models.builtin import cache_folder
from stridelm.settings import LoadSettings
from tiny import plain_network

BUILDS = {"native": FLAGS, "avx2": AVX2_FLAGS}
"""For this processor, and for one that has nothing beyond AVX2: 16 and 8 lanes, where this one has AVX-512."""


def skip_without_kernels() -> None:
    try:
        library()
    except CannotCompile as error:
        pytest.skip(str(error))


@contextmanager
def built(build: str) -> Iterator[None]:
    """Within, the backend runs this build. Models that were loaded here must not run outside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_module, "FLAGS", BUILDS[build])
        library.cache_clear()
        try:
            yield
        finally:
            library.cache_clear()


@pytest.fixture(scope="session")
def native_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for packed models; what is compiled lies where it always does, and is not compiled again."""
    skip_without_kernels()
    folder = tmp_path_factory.mktemp("cache")
    (folder / "stridelm" / "models").mkdir(parents=True)
    (folder / "stridelm" / "models" / "native").symlink_to(cache_folder() / "native")
    return folder


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, native_cache: Path) -> Iterator[str]:  # noqa: ARG001  # skips
    with built(request.param):
        yield request.param


@pytest.fixture(scope="session", params=BUILDS)
def kernels(request: pytest.FixtureRequest) -> Any:
    """The C interface of either build."""
    skip_without_kernels()
    return bind(compiled(SOURCE, BUILDS[request.param], LINK_FLAGS))


@contextmanager
def cache_at(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(folder))
        yield


def load_native(
    model: Path | str,
    cache: Path,
    *,
    adapter: Path | None = None,
    draft_model: Path | None = None,
    heads: Path | None = None,
    **settings: Any,
) -> LanguageModel:
    chosen = LoadSettings(**{"backend": "native", "cache_tokens": 2048, "threads": 1} | settings)
    with cache_at(cache):
        return stridelm.load(str(model), adapter=adapter, draft_model=draft_model, heads=heads, settings=chosen)


def forward_of(model: LanguageModel) -> NativeForward:
    assert isinstance(model.loaded.forward, NativeForward)
    return model.loaded.forward


def changed_source(folder: Path, changes: dict[str, tuple[str, str]]) -> Path:
    """A copy of the kernels, with one passage of some files replaced by another."""
    shutil.copytree(SOURCE.parent, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, (before, after) in changes.items():
        text = (folder / name).read_text()
        assert text.count(before) == 1, f"{name} has changed: {before}"
        (folder / name).write_text(text.replace(before, after))
    return folder / SOURCE.name


def rounded(weight: torch.Tensor, kind: int) -> torch.Tensor:
    """A matrix as the kernels have it."""
    return torch.from_numpy(quantise(weight.float().numpy(), kind).dequantise()[:, : weight.shape[1]])


def _attend_to_halves(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **named: Any
) -> Any:
    """Attention over keys and values as the kernels store them."""
    return eager_attention_forward(module, query, key.half().to(key), value.half().to(value), *rest, **named)


def _as_bytes(vectors: torch.Tensor) -> torch.Tensor:
    scale = vectors.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / 127
    return (vectors / scale).round() * scale


def _attend_to_bytes(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **named: Any
) -> Any:
    return eager_attention_forward(module, query, _as_bytes(key), _as_bytes(value), *rest, **named)


_KV_CACHES = {"float16": "keys and values in half precision", "int8": "keys and values as bytes"}
for _numbers, _attend in (("float16", _attend_to_halves), ("int8", _attend_to_bytes)):
    AttentionInterface.register(_KV_CACHES[_numbers], _attend)
    AttentionMaskInterface.register(_KV_CACHES[_numbers], eager_mask)


def rounded_network(folder: Path, quantize: str = "q8", kv_cache: str = "float16") -> Any:
    """A float64 network on the very weights that the kernels have, with keys and values as they store them: what is
    left between the two is the rounding of activations."""
    source = plain_network(str(folder))
    with torch.random.fork_rng():
        network: Any = type(source)(deepcopy(source.config)).eval().requires_grad_(False)
    network.load_state_dict(source.state_dict())
    for name, parameter in network.named_parameters():
        if parameter.ndim == 2:
            edge = name.startswith(("model.embed_tokens", "lm_head"))
            parameter.copy_(rounded(parameter, EIGHT if edge or quantize == "q8" else FOUR))
    network.set_attn_implementation(_KV_CACHES[kv_cache])
    return network.double()


def deviation(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest of what is expected."""
    assert np.isfinite(actual).all()
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
