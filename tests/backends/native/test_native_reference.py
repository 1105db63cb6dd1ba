"""The float32 logits that drift is measured from: transformers' own, family by family."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Stored

from gguf_models import MODELS, PROMPT, content_of, tiny_network
from native import deviation
from native_shapes import PREFIXES, SHAPES, save_shape
from stridelm.backends.native.reference import reference_logits
from stridelm.models.find import read_folder
from stridelm.models.gguf_content import read_content
from tiny import plain_network, save_tiny


def of_folder(folder: Path, ids: list[int]) -> np.ndarray:
    stored = read_folder(folder)
    return reference_logits(stored.config, stored.weights, ids)


def expected(folder: Path, ids: list[int]) -> np.ndarray:
    return plain_network(str(folder))(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_what_transformers_computes(shape: str, tmp_path: Path) -> None:
    folder = save_shape(tmp_path / "model", shape)
    assert deviation(of_folder(folder, PREFIXES[1]), expected(folder, PREFIXES[1])) < 1e-5


def test_windows_are_kept(tmp_path: Path) -> None:
    folders = [
        save_tiny(tmp_path / str(window), "mistral", hidden_size=64, head_dim=32, sliding_window=window)
        for window in (7, None)
    ]
    windowed, whole = (of_folder(folder, PREFIXES[1]) for folder in folders)
    assert deviation(windowed, expected(folders[0], PREFIXES[1])) < 1e-5
    assert deviation(windowed, whole) > 1e-2


@pytest.mark.parametrize(("family", "changes"), MODELS)
def test_a_gguf_file_gives_the_same(family: str, changes: dict, tmp_path: Path) -> None:
    network = tiny_network(family, **changes)
    found = read_content(content_of(network).write(tmp_path / "tiny.gguf"))
    with torch.inference_mode():
        theirs = network(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0].numpy()
    assert deviation(reference_logits(found.config, found.weights, PROMPT), theirs) < 1e-5


def test_half_precision_is_widened_first(tmp_path: Path) -> None:
    network = tiny_network("llama", intermediate_size=64)
    content = content_of(network)
    content.stored = {name: Stored.F16 for name, array in content.tensors.items() if array.ndim == 2}
    found = read_content(content.write(tmp_path / "tiny.gguf"))
    stored = {name: torch.from_numpy(array) for name, array in found.weights.items()}
    halves = {name: tensor.half() if tensor.ndim == 2 else tensor for name, tensor in stored.items()}
    ours = reference_logits(found.config, halves, PROMPT)
    assert np.array_equal(ours, reference_logits(found.config, found.weights, PROMPT))
