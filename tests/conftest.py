import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub: tests never reach out

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports kernels: they run without a GPU, slowly
from hypothesis import HealthCheck, settings

import tally
from assembly import assembled
from command_line import call as call
from counting import Conversion, convert_counting
from native import build as build
from native import kernels as kernels
from native import native_cache as native_cache
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.gated import TorchGate, attach
from stridelm.models.adapter import load_adapter
from stridelm.models.builtin import builtin_adapter
from stridelm.settings import LoadSettings
from suite import COST, LONG_FILES, TESTS, TinyFolder
from tiny import load_tiny, random_adapter, random_heads, save_assistant, save_tiny
from training import train as train
from training import whole as whole

# The same examples every time, however slow the machine: a red run must mean a change, not a new draw.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")
torch.set_num_threads(1)  # tests run in several processes


@pytest.fixture(autouse=True)
def same_cost_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the planner does must not depend on the machine that tests run on."""
    monkeypatch.setattr("stridelm.decode.table.load_or_measure", lambda target, forward: COST)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> TinyFolder:
    """The folder of a tiny random model, made once per family, seed and changes."""
    made: dict[tuple[object, ...], Path] = {}

    def get(family: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
        key = (family, seed, *sorted(changes.items()))
        if key not in made:
            made[key] = save_tiny(tmp_path_factory.mktemp(family), family, seed=seed, **changes)
        return made[key]

    return get


@pytest.fixture(scope="session")
def tiny(tiny_folder: TinyFolder) -> Callable[..., Checkpoint]:
    """A tiny model, loaded once per family and seed."""
    loaded: dict[tuple[str, int], Checkpoint] = {}

    def get(family: str = "llama", seed: int = 0) -> Checkpoint:
        if (family, seed) not in loaded:
            loaded[family, seed] = load_tiny(tiny_folder(family, seed=seed))
        return loaded[family, seed]

    return get


@pytest.fixture(scope="session")
def assistant_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random assistant for the tiny Gemma 4."""
    return save_assistant(tmp_path_factory.mktemp("assistant"))


@pytest.fixture(scope="session")
def trainable(tiny_folder: TinyFolder) -> Callable[..., Checkpoint]:
    """A tiny model with transformers' own layers, as training loads it, once per family."""
    loaded: dict[str, Checkpoint] = {}

    def get(family: str = "llama") -> Checkpoint:
        if family not in loaded:
            loaded[family] = load_checkpoint(str(tiny_folder(family)), LoadSettings(device="cpu"), trainable=True)
        return loaded[family]

    return get


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Conversion]:
    """A tiny model that can count, and its conversion: seconds of training, once per family."""
    made: dict[str, Conversion] = {}

    def get(family: str = "llama") -> Conversion:
        if family not in made:
            made[family] = convert_counting(tmp_path_factory.mktemp(f"counting-{family}"), family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def converted(tiny_folder: TinyFolder) -> Callable[..., tuple[Checkpoint, TorchGate]]:
    """A tiny model with a random adapter, loaded once per family: a network takes one adapter, once."""
    loaded: dict[str, tuple[Checkpoint, TorchGate]] = {}

    def get(family: str = "llama") -> tuple[Checkpoint, TorchGate]:
        if family not in loaded:
            checkpoint = load_tiny(tiny_folder(family))
            loaded[family] = checkpoint, attach(checkpoint.network, random_adapter(checkpoint))
        return loaded[family]

    return get


@pytest.fixture(scope="session")
def builtin_checkpoint() -> Checkpoint:
    return load_checkpoint("smollm2", LoadSettings(device="cpu"))


@pytest.fixture(scope="session")
def builtin_gate(builtin_checkpoint: Checkpoint) -> TorchGate | None:
    """The adapter that comes with the package, if it does."""
    folder = builtin_adapter()
    return None if folder is None else attach(builtin_checkpoint.network, load_adapter(folder))


@pytest.fixture
def language_model(
    converted: Callable[..., tuple[Checkpoint, TorchGate]], tiny: Callable[..., Checkpoint]
) -> LanguageModel:
    """A tiny Llama with a random adapter, and another tiny Llama as its draft model."""
    target, gate = converted("llama")
    return assembled(target, tiny("llama", 1), LoadSettings(cache_tokens=4096), gate)


@pytest.fixture(scope="module")
def roomy_model(tiny_folder: TinyFolder) -> LanguageModel:
    """A tiny Llama that has the parts for every decoder, and a context for descriptions of tools in bytes."""
    target, draft = (load_tiny(tiny_folder(seed=seed, max_position_embeddings=2048)) for seed in (0, 1))
    gate = attach(target.network, random_adapter(target))
    return assembled(target, draft, LoadSettings(cache_tokens=8192), gate, random_heads(target))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: processes that share the files then end at about the same time."""
    order = {TESTS / file: place for place, file in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # one of several processes
        output["tally"] = tally.collected()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if hasattr(node, "workeroutput"):  # it did not crash
        tally.add(node.workeroutput["tally"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what tests counted or measured."""
    for line in tally.lines():
        terminalreporter.write_line(line)
