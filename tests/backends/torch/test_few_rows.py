"""Products of a few rows in C++: right, and the same bits however many rows there are; without a compiler, torch's."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from stridelm.backends.torch import few_rows
from stridelm.backends.torch.few_rows import LowRankSum, PanelProduct, library
from stridelm.backends.torch.linear import PanelLinear, best_storage

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler, or not an x86 processor with AVX2")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 31), (24, 32), (24, 33), (48, 100), (576, 960)])
def test_products_are_right_and_rows_do_not_see_each_other(inputs: int, outputs: int, threads: int) -> None:
    torch.set_num_threads(threads)
    random = torch.Generator().manual_seed(inputs)
    weight, x = torch.randn(outputs, inputs, generator=random), torch.randn(40, inputs, generator=random)
    product = PanelProduct(weight)
    whole = product(x, outputs)
    torch.testing.assert_close(whole, (x.double() @ weight.double().T).float(), rtol=1e-5, atol=1e-4)
    for rows in (1, 2, 5, 6, 7, 11, 12, 13, 25):
        for first in (0, 40 - rows):
            assert torch.equal(product(x[first : first + rows], outputs), whole[first : first + rows])
    torch.set_num_threads(1)


def test_a_matrix_behind_another_starts_a_panel_of_its_own() -> None:
    first, second, x = torch.randn(40, 24), torch.randn(5, 24), torch.randn(3, 24)
    both = PanelProduct(first, second)
    y = both(x, both.outputs)
    torch.testing.assert_close(y[:, :40], x @ first.T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y[:, both.starts[1] :], x @ second.T, rtol=1e-5, atol=1e-5)
    assert torch.equal(both(x, 40), y[:, :40])


@pytest.mark.parametrize("masks", [[0], [2, 3, 4], [0, 3, 6], list(range(7))])
def test_low_rank_parts_are_added_to_their_columns_and_rows_alone(masks: list[int]) -> None:
    linears = [nn.Linear(24, size) for size in (16, 40)]
    downs, ups = [torch.randn(5, 24) for _ in linears], [torch.randn(size, 5) for size in (16, 40)]
    x = torch.randn(7, 24)
    stored = PanelLinear(linears)
    plain = stored(x)
    starts = stored.stack(downs)
    y = stored.stacked(x)
    assert torch.equal(y[:, :56], plain) and torch.equal(stored(x), plain)
    LowRankSum(ups, [0, 16], starts)(y, torch.tensor(masks))
    expected = plain.clone()
    expected[masks] += torch.cat([x[masks] @ down.T @ up.T for down, up in zip(downs, ups, strict=True)], dim=1)
    torch.testing.assert_close(y[:, :56], expected, rtol=1e-4, atol=1e-4)
    real = [row for row in range(7) if row not in masks]
    assert torch.equal(y[real, :56], plain[real])


def test_the_weight_comes_back_as_it_was() -> None:
    linears = [nn.Linear(24, size) for size in (16, 41)]
    stored = PanelLinear(linears)
    stored.stack([torch.randn(5, 24)])
    assert torch.equal(stored.weight, torch.cat([linear.weight for linear in linears]))


@pytest.fixture
def asked_anew() -> Iterator[None]:
    few_rows.library.cache_clear()
    yield
    few_rows.library.cache_clear()


@pytest.mark.usefixtures("asked_anew")
def test_without_a_compiler_torch_serves_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("stridelm.backends.common.compiler.shutil.which", lambda name: None)
    assert best_storage(torch.device("cpu"), torch.float32) is not PanelLinear
    assert "no C++ compiler" in caplog.text


@pytest.mark.usefixtures("asked_anew")
def test_a_compiler_that_fails_is_not_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    assert library() is None
    assert "cannot be used" in caplog.text
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.usefixtures("asked_anew")
def test_what_was_compiled_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library() is not None
    (made,) = tmp_path.rglob("*.so")
    few_rows.library.cache_clear()
    monkeypatch.setattr("stridelm.backends.common.compiler._run", lambda *command: pytest.fail("compiled again"))
    assert library() is not None
    assert list(made.parent.iterdir()) == [made]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not here")
def test_no_openmp_library_of_its_own() -> None:
    """It must be torch's: two pools of threads would fight for the cores."""
    assert library() is not None
    needed = subprocess.run(["readelf", "-d", library()._name], capture_output=True, text=True, check=True).stdout  # type: ignore[union-attr]
    assert "gomp" not in needed
