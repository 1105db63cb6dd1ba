"""Weights that are dequantised when they are asked for: the same numbers, rows and fingerprint as if all were there."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Stored

from gguf_models import stored_as
from stridelm.models.fingerprint import fingerprint
from stridelm.models.gguf_content import read_content


@pytest.mark.parametrize("kind", [Stored.F32, Stored.F16, Stored.Q8_0, Stored.Q4_K])
def test_rows_and_fingerprint_are_those_of_whole_weights(kind: Stored, tmp_path: Path) -> None:
    lazy = read_content(stored_as(kind).write(tmp_path / "tiny.gguf")).weights
    whole = dict(lazy)
    for name, weight in whole.items():
        assert weight.dtype == np.float32 and weight.shape == lazy.shape(name)
        rows = np.array([3, 0, len(weight) - 1])
        assert weight.ndim == 1 or np.array_equal(lazy.rows(name, rows), weight[rows])
    assert fingerprint(lazy) == fingerprint(whole)
    assert "model.norm.weight" in lazy and "lm_head.bias" not in lazy and len(lazy) == len(whole)
