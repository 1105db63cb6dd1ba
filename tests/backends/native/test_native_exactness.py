"""Multi-token decoding on the native backend equals its plain decoding, token for token, with no near-tie to excuse."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stridelm
from exactness import BUILTIN_PROMPTS, EXACT, PROMPTS, VARIED_PROMPTS, answers
from native import forward_of, load_native, skip_without_kernels
from stridelm.api import LanguageModel
from stridelm.backends.torch.heads import save_heads
from stridelm.contracts import Policy
from stridelm.layout import lay_out, make_block
from stridelm.models.adapter import save_adapter
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings, LoadSettings
from tiny import heads_config, load_tiny, random_adapter, random_heads, save_tiny

SETTINGS = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=0.8, top_p=0.95, seed=11),
    "all": SamplingParams(
        temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.1, logit_bias={70: 1.0}, seed=7,
    ),
}  # fmt: skip
KINDS = {
    "q8": ("q8", "int16", "float16"),
    "q4": ("q4", "int16", "float16"),
    "q4, int8": ("q4", "int8", "float16"),
    "q4, int8, int8 cache": ("q4", "int8", "int8"),
}
SHAPE: dict[str, Any] = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 100}
BENCH_PROMPTS = Path(__file__).parent.parent.parent.parent / "bench" / "prompts"
MANY, FEWER, LENGTH = 500, 64, 128


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model, and what there is to decode it with."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("model", "draft_model", "adapter", "heads")}
    save_tiny(made["model"], **SHAPE)
    save_tiny(made["draft_model"], seed=1, **SHAPE)
    checkpoint = load_tiny(made["model"])
    save_adapter(made["adapter"], random_adapter(checkpoint))
    heads = random_heads(checkpoint)
    save_heads(made["heads"], heads_config(checkpoint, heads), heads)
    return made


# 4 bits with 16-bit rows are in the forward's own tests, too.
@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.slow) if kind == "q4" else kind for kind in KINDS])
def tiny_model(
    request: pytest.FixtureRequest,
    build: str,  # noqa: ARG001
    native_cache: Path,
    folders: dict[str, Path],
) -> LanguageModel:
    quantize, activations, kv_cache = KINDS[request.param]
    given = {name: folders[name] for name in ("draft_model", "adapter", "heads")}
    return load_native(
        folders["model"], native_cache, quantize=quantize, activations=activations, kv_cache=kv_cache, **given
    )


def check(model: LanguageModel, prompts: list[list[int]], params: SamplingParams, *, alone: int) -> None:
    """All decoders on all prompts as a batch, and on so many of them by themselves."""
    plain = model._policy(DecodeSettings("autoregressive"))
    expected = [answers(model, plain, [ids], params)[0] for ids in prompts]
    assert any(len(tokens) == params.max_tokens for tokens in expected)
    for decoder in EXACT:
        policy = model._policy(model.check(decoder))
        assert answers(model, policy, prompts, params) == expected, decoder
        for ids, tokens in list(zip(prompts, expected, strict=True))[:alone]:
            assert answers(model, policy, [ids], params) == [tokens], decoder


@pytest.mark.parametrize("setting", SETTINGS)
def test_tiny(setting: str, tiny_model: LanguageModel) -> None:
    prompts = [tiny_model.encode(text, raw=True) for text in PROMPTS]
    check(tiny_model, prompts, replace(SETTINGS[setting], max_tokens=40), alone=2)


def test_results_say_that_they_are_exact(tiny_model: LanguageModel) -> None:
    result = tiny_model.generate(PROMPTS[0], SamplingParams(max_tokens=8), raw=True, decoder="self")
    assert result.exact and "from float32) on cpu" in result.exact_to


def test_plain_decoding_equals_a_loop_without_a_cache(tiny_model: LanguageModel) -> None:
    """A fresh forward over the whole text for every token, and the likeliest one taken."""
    plain = tiny_model._policy(DecodeSettings("autoregressive"))
    params = SamplingParams(max_tokens=24)
    forward = forward_of(tiny_model).with_cache(512)
    for text in PROMPTS:
        prompt = tiny_model.encode(text, raw=True)
        ids: list[int] = list(prompt)
        while len(ids) < len(prompt) + 24 and not tiny_model.target.eos_ids & set(ids[len(prompt) :]):
            table = forward.cache.open()
            (output,) = forward(lay_out([make_block(0, ids)]), [table])
            forward.cache.free(table)
            ids.append(int(np.argmax(output.logits_WV[0])))
        assert answers(tiny_model, plain, [prompt], params) == [ids[len(prompt) :]]


@pytest.fixture(scope="module", params=["int16", "int8"])
def builtin_native(request: pytest.FixtureRequest) -> LanguageModel:
    skip_without_kernels()
    settings = LoadSettings(backend="native", cache_tokens=16384, threads=1, activations=request.param)
    return stridelm.load(settings=settings)


@pytest.mark.parametrize("setting", ["greedy", "all"])
def test_builtin(setting: str, builtin_native: LanguageModel) -> None:
    prompts = [builtin_native.encode(text) for text in BUILTIN_PROMPTS]
    check(builtin_native, prompts, replace(SETTINGS[setting], max_tokens=16), alone=1)


def many_prompts() -> Iterator[str]:
    """Questions of the benches where they are there, then ones made of templates."""
    yield from VARIED_PROMPTS
    for name, key in (("kinds", "prompt"), ("gsm8k_heldout", "question")):
        file = BENCH_PROMPTS / f"{name}.jsonl"
        if file.is_file():
            yield from (json.loads(line)[key] for line in file.read_text().splitlines())
    things = ("a lighthouse", "rain", "the number 7", "bread", "an old clock", "chess", "Paris", "a lost dog", "maps")
    tasks = (
        "Tell me about {}.",
        "Write two lines of verse about {}.",
        "List five facts about {}.",
        "Explain {} to me.",
        "Ask me three questions about {}.",
        "Translate to French: I like {}.",
        "Write a function named after {}.",
    )
    for number in range(MANY):
        yield f"({number}) " + tasks[number % len(tasks)].format(things[number // len(tasks) % len(things)])


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["greedy", "seeded"])
def test_builtin_at_length(
    setting: str, builtin_native: LanguageModel, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bar: the same tokens on 500 prompts of 128 tokens, by `auto` one at a time and by `self` in batches; on fewer
    in each form that is not the default."""
    params = replace(SETTINGS[setting], max_tokens=LENGTH)
    is_default = setting == "greedy" and builtin_native.settings.activations == LoadSettings().activations
    count = MANY if is_default else FEWER
    chosen: dict[str, str] = {}
    for text in many_prompts():
        if len(chosen) < count and len(builtin_native.encode(text)) < 900:
            chosen.setdefault(text, text)
    prompts = [builtin_native.encode(text) for text in chosen]
    assert len(prompts) == count
    plain, auto, own = (builtin_native._policy(DecodeSettings(name)) for name in ("autoregressive", "auto", "self"))
    compared, different, tokens = 0, [], 0

    def run(policy: Policy, part: list[list[int]]) -> list[list[int]]:
        # Without an end: what a model goes on with behind its answer is a text as good as any.
        return answers(builtin_native, policy, part, params, frozenset())

    for first in range(0, count, 5):
        batch = prompts[first : first + 5]
        expected = run(plain, batch)
        ways = {"auto": [run(auto, [ids])[0] for ids in batch], "self, batched": run(own, batch)}
        for way, found in ways.items():
            different += [(way, first + at) for at in range(len(batch)) if found[at] != expected[at]]
        compared, tokens = compared + len(batch), tokens + sum(map(len, expected))
    with capsys.disabled():
        print(f"\n{request.node.name}: {compared} prompts, {tokens} tokens, {len(different)} differences")
    assert not different and tokens == count * LENGTH
