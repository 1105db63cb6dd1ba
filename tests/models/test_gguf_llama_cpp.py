"""Small files of every architecture give llama.cpp's own logits, and every kind of blocks its own values."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Stored

from gguf_compared import our_logits, with_half_gelu
from gguf_models import load
from gguf_recorded import RECORDED, RECORDED_FILES, SCALES, VOCABULARY, random_blocks, values_digest
from stridelm.models.gguf_content import read_content
from stridelm.models.gguf_format.table import ARCHITECTURES

LOGITS = np.load(RECORDED)
CLOSE = 1e-4
"""What the order of float32 sums may change; logits have a standard deviation of 2."""
HALF_STEP = 5e-3
"""The same where values are rounded to half precision on the way: some of them to the other neighbour."""


def recorded(name: str) -> torch.Tensor:
    expected = torch.from_numpy(LOGITS[name])
    assert expected.std() > 1.5  # so that the tolerance says something
    return expected


@pytest.mark.parametrize("blocks", [False, True], ids=["float32", "K-quants"])
@pytest.mark.parametrize("name", RECORDED_FILES)
def test_logits_are_llama_cpps(name: str, blocks: bool, tmp_path: Path) -> None:
    """For K-quants: those of llama.cpp's own dequantised weights."""
    file = RECORDED_FILES[name].file(blocks=blocks)
    assert file.digest == LOGITS[f"{name}: digests"][int(blocks)], "not the file that was recorded: record it anew"
    checkpoint = load(file.write(tmp_path / "small.gguf"))
    expected = recorded(f"{name}: {'K in F32' if blocks else 'F32'}")
    is_gemma = name.startswith("gemma")
    difference = (our_logits(with_half_gelu(checkpoint) if is_gemma else checkpoint) - expected).abs()
    assert difference.max() <= (HALF_STEP if is_gemma else CLOSE)
    assert difference.median() <= CLOSE


def test_every_architecture_is_recorded() -> None:
    assert {made.architecture for made in RECORDED_FILES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.name)
def test_blocks_have_ggmls_values_to_the_bit(kind: Stored, tmp_path: Path) -> None:
    file = RECORDED_FILES["llama"].file(blocks=True)
    count = VOCABULARY * 256 // GGML_QUANT_SIZES[kind][0]
    blocks = random_blocks(kind, count, np.random.RandomState(int(kind)))
    file.tensors["output.weight"] = blocks.reshape(VOCABULARY, -1), kind
    values = read_content(file.write(tmp_path / "small.gguf")).weights["lm_head.weight"]
    assert values.std() > 0
    assert values_digest(values) == LOGITS[f"values: {kind.name}"]
