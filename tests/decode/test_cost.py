"""What a forward costs: measured once, kept, checked when it is taken up again, measured anew where it is off."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from assembly import assembled
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.gated import TorchGate
from stridelm.decode import cost as cost_module
from stridelm.decode.cost import Cost, load_or_measure, measure
from stridelm.settings import LoadSettings

Converted = Callable[..., tuple[Checkpoint, TorchGate]]
FLAT = Cost((1, 8), (0.5, 0.5))


@pytest.fixture
def model(converted: Converted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cost_module, "_BUDGET", 0.05)
    checkpoint, gate = converted("llama")
    return assembled(checkpoint, None, LoadSettings(cache_tokens=1024), gate)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("costs/*"))


def test_a_measured_curve_is_one(model: LanguageModel) -> None:
    cost, _ = measure(model.engine.forward)
    assert list(cost.seconds) == sorted(cost.seconds) and cost.seconds[0] > 0
    assert min(cost.masks, cost.mask_row, cost.context, cost.sequence, cost.head_row) >= 0 and cost.head > 0
    model.engine.forward.cache.check_integrity()
    assert model.engine.forward.cache.free_blocks == model.engine.forward.cache.block_count


def test_without_masks_nothing_is_said_of_them(tiny: Callable[..., Checkpoint], monkeypatch) -> None:
    monkeypatch.setattr(cost_module, "_BUDGET", 0.05)
    cost, _ = measure(assembled(tiny("llama"), None, LoadSettings(cache_tokens=1024)).engine.forward)
    assert (cost.masks, cost.mask_row, cost.head) == (0, 0, 0)


def test_it_is_kept_and_taken_up_again(model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "measure", lambda forward: (FLAT, True))
    assert load_or_measure(model.target, model.engine.forward) == FLAT
    (kept,) = files(tmp_path)
    assert kept.suffix == ".json" and json.loads(kept.read_text())["seconds"] == [0.5, 0.5]
    monkeypatch.setattr(cost_module, "measure", lambda forward: pytest.fail("measured again"))
    monkeypatch.setattr(cost_module, "_still_holds", lambda cost, forward: True)
    assert load_or_measure(model.target, model.engine.forward) == FLAT


def test_a_disturbed_measurement_is_used_but_not_kept(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_module, "measure", lambda forward: (FLAT, False))
    assert load_or_measure(model.target, model.engine.forward) == FLAT
    assert files(tmp_path) == []


@pytest.mark.parametrize("damage", ["{", "[]", '{"rows": [1]}', '{"rows": [1], "seconds": [1], "more": 2}'])
def test_a_damaged_file_is_replaced(
    damage: str, model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_module, "measure", lambda forward: (FLAT, True))
    load_or_measure(model.target, model.engine.forward)
    files(tmp_path)[0].write_text(damage)
    assert load_or_measure(model.target, model.engine.forward) == FLAT
    assert json.loads(files(tmp_path)[0].read_text())["rows"] == [1, 8]


def test_one_that_does_not_hold_any_more_is_measured_anew(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny model's forward takes a millisecond, not the hour that was kept."""
    slow = Cost((1, 8), (3600.0, 3600.0))
    monkeypatch.setattr(cost_module, "measure", lambda forward: (slow, True))
    load_or_measure(model.target, model.engine.forward)
    monkeypatch.setattr(cost_module, "measure", lambda forward: (FLAT, True))
    assert load_or_measure(model.target, model.engine.forward) == FLAT
    assert json.loads(files(tmp_path)[0].read_text())["seconds"] == [0.5, 0.5]


def test_other_weights_or_threads_have_a_curve_of_their_own(
    model: LanguageModel, tiny: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_module, "measure", lambda forward: (FLAT, True))
    load_or_measure(model.target, model.engine.forward)
    other = assembled(tiny("llama", 1), None, LoadSettings(cache_tokens=1024))
    load_or_measure(other.target, other.engine.forward)
    assert len(files(tmp_path)) == 2
