"""On a GPU: the same code, the same tokens. Skipped where there is none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import stridelm
from bench.frontier.mask_rollout import MaskRollout
from stridelm import DecodeSettings, LoadSettings, SamplingParams
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.decode.cost import measure
from stridelm.models.adapter import save_adapter
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt
from stridelm.train.rollouts import Rollouts, Text
from stridelm.train.settings import TrainSettings
from stridelm.train.trainer import Trainer
from tiny import FAMILIES, load_tiny, random_adapter

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SETTINGS = {
    "greedy": SamplingParams(max_tokens=40),
    "drawn by the device": SamplingParams(max_tokens=40, temperature=0.8, top_k=40, top_p=0.95, min_p=0.02, seed=7),
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
            folder,
            adapter=tmp_path,
            draft_model=draft,
            settings=LoadSettings(device=device, dtype="float32", cache_tokens=4096),
        )
        for device in ("cpu", "cuda")
    )
    expected = on_cpu.generate(prompts, SETTINGS[setting], decoder="autoregressive")
    for decoder in ("autoregressive", "ngram", "draft", "self", "ensemble", "auto"):
        results = on_gpu.generate(prompts, SETTINGS[setting], decoder=decoder)
        assert [result.token_ids for result in results] == [result.token_ids for result in expected]
        assert "cuda" in results[0].exact_to


@pytest.mark.parametrize("decoder", [DecodeSettings("adaptive", threshold=0.3), DecodeSettings("static", k=3)], ids=str)
def test_unverified_tokens_are_those_of_the_cpu(
    decoder: DecodeSettings, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_folder("llama")
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    on_cpu, on_gpu = (
        stridelm.load(
            str(folder), adapter=tmp_path, settings=LoadSettings(device=device, dtype="float32", cache_tokens=4096)
        ).generate(["abcabcabcabd", "x"], SamplingParams(max_tokens=40), decoder=decoder)
        for device in ("cpu", "cuda")
    )
    assert [result.token_ids for result in on_gpu] == [result.token_ids for result in on_cpu]


def test_the_cost_of_a_forward_is_measured(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    model = stridelm.load(str(folder), adapter=tmp_path, settings=LoadSettings(device="cuda", cache_tokens=4096))
    cost, _ = measure(model.engine.forward)
    assert 0 < cost(1) <= cost(32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("decoder", ["ngram", "self", "auto"])
def test_half_precision_runs(dtype: str, decoder: str, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_folder("mistral")
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    model = stridelm.load(str(folder), adapter=tmp_path, settings=LoadSettings(device="cuda", dtype=dtype))
    result = model.generate("abcabcabc", SamplingParams(max_tokens=30), decoder=decoder)
    assert len(result.token_ids) > 0
    assert result.exact == (dtype == "bfloat16"), "in bfloat16 rows do not depend on each other; float16 torch runs"


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_half_precision_is_exact(family: str, setting: str, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """Every decoder writes what plain decoding writes in bfloat16, too: not up to a near-tie, but always."""
    folder = tiny_folder(family)
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    settings = LoadSettings(device="cuda", dtype="bfloat16", cache_tokens=4096)
    model = stridelm.load(str(folder), adapter=tmp_path, settings=settings)
    prompts = ["abcabcabcabd abcabc", "The quick brown fox", "x"]
    params = SETTINGS[setting]
    expected = [model.generate(prompt, params, decoder="autoregressive").token_ids for prompt in prompts]
    for decoder in ("autoregressive", "ngram", "self", "ensemble", "auto"):
        results = model.generate(prompts, params, decoder=decoder)
        assert [result.token_ids for result in results] == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_rollouts_are_the_cpus(family: str, tiny_folder: Callable[..., Path]) -> None:
    """Greedy answers of several lengths: enough steps for each that most of them are replayed from a graph."""
    random = np.random.default_rng(0)
    prompts = [RolloutPrompt(tuple(random.integers(0, 250, 3 + 5 * index).tolist()), 40 + index) for index in range(6)]
    answers = [
        dict(RolloutEngine(load_checkpoint(str(tiny_folder(family)), settings, trainable=True), 4, 96).run(prompts))
        for settings in (LoadSettings(device="cpu"), LoadSettings(device="cuda", dtype="float32"))
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_steps_with_masks_from_a_graph_are_those_of_the_cpu(
    family: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Verified and not: the same answers in as many forwards, most of which are replayed."""
    folder = tiny_folder(family, initializer_range=0.8)
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    prompts = ["abcabcabd abc", "The quick brown fox jumps", "x", "1 2 3 4", "hello", "why so?"]
    cpu, gpu = (
        MaskRollout.load(str(folder), tmp_path, settings, 3)
        for settings in (LoadSettings(device="cpu"), LoadSettings(device="cuda", dtype="float32"))
    )
    for decoder in (
        DecodeSettings("autoregressive"),
        DecodeSettings("self"),
        DecodeSettings("self", tolerance=0.5),
        DecodeSettings("adaptive", threshold=0.2),
    ):
        assert gpu(prompts, decoder, 40) == cpu(prompts, decoder, 40), decoder


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_training_steps_from_a_graph_are_those_of_the_cpu(
    family: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Two widths of batches, each with steps enough to be captured and replayed: the same losses, step for step."""
    # Block-sparse attention takes heads of 16 and more.
    folder = str(tiny_folder(family, head_dim=16))
    settings = TrainSettings(
        k=4, rank=4, sequential_size=8, texts=2, length=256, anchors=32, steps=16, warmup=4, learning_rate=0.01
    )
    random = np.random.default_rng(0)
    texts = [
        Text(random.integers(0, 250, length, dtype=np.int32), 4) for length in (60, 100, 120, 128) + (200, 250) * 2
    ]
    trainers = [
        Trainer(
            load_checkpoint(folder, LoadSettings(device=device, dtype="float32"), trainable=True),
            Rollouts(texts, [], {}),
            settings,
            tmp_path,
            lambda entry: None,
        )
        for device in ("cpu", "cuda")
    ]
    on_cpu, on_gpu = ([float(trainer._step(step)) for step in range(settings.steps)] for trainer in trainers)
    assert len(trainers[1].update._graphs) == 2
    # After these steps the loss is a quarter lower than without them: a step that changes nothing would show.
    assert on_gpu == pytest.approx(on_cpu, rel=3e-2)
