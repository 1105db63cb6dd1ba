"""bench/cpu/exact.py: which forms are compared over how many prompts, and that a difference is found."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from bench import measured
from bench.cpu import exact
from bench.cpu.exact import FORMS, Form
from native import BUILDS, built, load_native, skip_without_kernels
from native_shapes import save_shape
from stridelm.api import LanguageModel
from stridelm.backends.native.library import library
from stridelm.models.adapter import save_adapter
from stridelm.settings import LoadSettings
from tiny import load_tiny, random_adapter

TOKENS = 6


class ThisProcess:
    """In place of a pool of processes."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[[Any], Any], given: Iterable[Any]) -> Iterator[Any]:
        return map(function, given)


@pytest.fixture(scope="module")
def tiny_native(tmp_path_factory: pytest.TempPathFactory, native_cache: Path) -> LanguageModel:
    folder, adapter = save_shape(tmp_path_factory.mktemp("model"), "llama"), tmp_path_factory.mktemp("adapter")
    save_adapter(adapter, random_adapter(load_tiny(folder)))
    return load_native(folder, native_cache, adapter=adapter, quantize="q4")


@pytest.fixture
def arguments(tmp_path: Path, tiny_native: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of a run on a tiny model, in this process."""
    monkeypatch.setattr(exact, "ProcessPoolExecutor", ThisProcess)
    monkeypatch.setattr(exact, "load_form", lambda form, threads: tiny_native)
    monkeypatch.setattr(exact, "LONGEST", 200)
    prompts = [f"abc {number}" for number in (*range(5), 0)] + ["x" * 200]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": each}) for each in prompts))
    named = {"prompts": tmp_path / "prompts.jsonl", "json": tmp_path / "exact.json", "tokens": TOKENS}
    return [word for name, value in named.items() for word in (f"--{name}", str(value))]


def test_the_default_form_has_more_prompts_than_each_other(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt counts once, one that is too long not at all. The tables' readers find what they read."""
    assert exact.main([*arguments, "--count", "6", "--others", "2"]) == 0
    figures = json.loads((tmp_path / "exact.json").read_text())
    default = f"{LoadSettings().activations}, greedy"
    assert Form().name == default and set(figures) == set(FORMS)
    assert {name: entry["prompts"] for name, entry in figures.items()} == {
        name: 5 if name == default else 2 for name in FORMS
    }
    for entry in figures.values():
        assert entry["tokens"] == TOKENS * entry["prompts"] and entry["different"] == 0 < entry["forwards"]
    assert set(figures[default]) == set(measured.read("exact-auto.json")[default])
    assert f"{default}: 6 of 6 questions, 0 differ" in capsys.readouterr().err


def test_a_difference_is_counted_and_is_the_exit_status(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = exact.answer

    def wrong_once(model: LanguageModel, asked: list[exact.Asked], decoder: str) -> tuple[list[list[int]], int]:
        answers, forwards = answer(model, asked, decoder)
        for tokens, each in zip(answers, asked, strict=True):
            if decoder != "autoregressive" and each.params.seed == 1:
                tokens[-1] ^= 1
        return answers, forwards

    monkeypatch.setattr(exact, "answer", wrong_once)
    forms = {"int8, seeded": 1, "int8, seeded, trees, 8 at a time": 1, "int8, greedy": 0}
    assert exact.main([*arguments, "--others", "3", "--form", *forms]) == 1
    figures = json.loads((tmp_path / "exact.json").read_text())
    assert {name: entry["different"] for name, entry in figures.items()} == forms


@pytest.mark.parametrize("form", [each for each in FORMS.values() if not each.is_seeded], ids=lambda form: form.name)
def test_a_form_runs_on_its_build_and_activations(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels()
    with built("native"):  # which puts back what is changed within
        lanes = library().stride_lanes()
        library.cache_clear()
        monkeypatch.setattr(exact, "load", lambda settings: (settings.activations, library().stride_lanes()))
        loaded = exact.load_form.__wrapped__(form, 1)
    assert loaded == (form.activations, 8 if form.is_avx2 else lanes)
    assert BUILDS["avx2"] != BUILDS["native"]
