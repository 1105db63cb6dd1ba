"""On a GPU: the same code, the same tokens. Skipped where there is none."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import stridelm
from stridelm import LoadSettings, SamplingParams
from stridelm.model.adapter import save_adapter
from tiny import FAMILIES, load_tiny, random_adapter

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SETTINGS = {
    "greedy": SamplingParams(max_tokens=40),
    "all": SamplingParams(
        max_tokens=40, temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.1, logit_bias={70: 1.0}, seed=7,
    ),
}  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_decoders_agree_with_plain_decoding_on_the_cpu(
    family: str, setting: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder, draft = str(tiny_folder(family)), str(tiny_folder(family, seed=1))
    save_adapter(tmp_path, random_adapter(load_tiny(tiny_folder(family))))
    prompts = ["abcabcabcabd abcabc", "The quick brown fox", "x"]
    on_cpu, on_gpu = (
        stridelm.load(
            folder, adapter=tmp_path, draft_model=draft, settings=LoadSettings(device=device, cache_tokens=4096)
        )
        for device in ("cpu", "cuda")
    )
    expected = on_cpu.generate(prompts, SETTINGS[setting], decoder="autoregressive")
    for decoder in ("autoregressive", "ngram", "draft", "self"):
        results = on_gpu.generate(prompts, SETTINGS[setting], decoder=decoder)
        assert [result.token_ids for result in results] == [result.token_ids for result in expected]
        assert "cuda" in results[0].exact_to


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("decoder", ["ngram", "self"])
def test_half_precision_runs(dtype: str, decoder: str, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_folder("mistral")
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    model = stridelm.load(str(folder), adapter=tmp_path, settings=LoadSettings(device="cuda", dtype=dtype))
    result = model.generate("abcabcabc", SamplingParams(max_tokens=30), decoder=decoder)
    assert len(result.token_ids) > 0 and not result.exact
