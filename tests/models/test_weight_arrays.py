"""Safetensors as numpy arrays: the values that torch reads, and the same refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Stored
from safetensors.torch import save_file

from gguf_models import stored_as
from stridelm.models.adapter import load_adapter
from stridelm.models.builtin import builtin_adapter
from stridelm.models.fingerprint import fingerprint
from stridelm.models.gguf_content import read_content
from stridelm.models.weight_arrays import read_arrays
from stridelm.params import InputError

TENSORS = {
    "float": torch.tensor([[1.5, -2.25e-30], [3e38, 0.1]]),
    "half": torch.tensor([0.1, -65504.0, 6e-8]).half(),
    "bfloat": torch.tensor([[0.1, -3e38, 1e-40]]).bfloat16(),
}


def test_values_are_those_of_torch(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    arrays = read_arrays([tmp_path / "a.safetensors"])
    assert arrays.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert arrays[name].dtype == np.float32
        assert np.array_equal(arrays[name], tensor.float().numpy())


def test_the_built_in_adapter_is_read_alike() -> None:
    folder = builtin_adapter()
    assert folder is not None
    arrays, tensors = load_adapter(folder, read_arrays), load_adapter(folder)
    assert arrays.config == tensors.config
    assert arrays.tensors.keys() == tensors.tensors.keys()
    assert all(np.array_equal(arrays.tensors[name], tensor.float()) for name, tensor in tensors.tensors.items())


@pytest.mark.parametrize("kept", [0, 8, 60, -1])
def test_a_cut_off_file_is_refused(kept: int, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file(TENSORS, file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"a\.safetensors: cannot be read .*fetch it again"):
        read_arrays([file])


def test_other_numbers_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, dtype=torch.int64)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="numbers of kind I64"):
        read_arrays([tmp_path / "a.safetensors"])


@pytest.mark.parametrize("kind", [Stored.F32, Stored.F16, Stored.Q8_0, Stored.Q4_K])
def test_lazy_rows_and_fingerprint_are_those_of_whole_weights(kind: Stored, tmp_path: Path) -> None:
    lazy = read_content(stored_as(kind).write(tmp_path / "tiny.gguf")).weights
    whole = dict(lazy)
    assert {name: weight.shape for name, weight in whole.items()} == lazy.shapes
    for name, weight in whole.items():
        assert weight.dtype == np.float32
        rows = np.array([3, 0, len(weight) - 1])
        assert np.array_equal(lazy.rows(name, rows), weight[rows])
    assert fingerprint(lazy) == fingerprint(whole)
    assert "model.norm.weight" in lazy and "lm_head.bias" not in lazy and len(lazy) == len(whole)
