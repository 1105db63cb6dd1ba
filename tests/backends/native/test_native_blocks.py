"""GGUF files of K-quants and 5-bit kinds on the native backend: all decoders write what plain decoding writes, with an
adapter and without, and a row's logits do not depend on the rows beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Stored

from exactness import PROMPTS, answers
from gguf_models import PROMPT, WHOLE_SUPER_BLOCKS, stored_as
from native import forward_of, load_native
from stridelm.api import LanguageModel
from stridelm.layout import lay_out, make_block
from stridelm.models.adapter import save_adapter
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings
from tiny import load_tiny, random_adapter, save_tiny

SETTINGS = (SamplingParams(max_tokens=32), SamplingParams(max_tokens=32, temperature=0.8, top_p=0.95, seed=11))
DECODERS = ("ngram", "self", "auto")
FILES = {
    "Q4_K_M": (Stored.Q4_K, {"token_embd": Stored.Q6_K, "blk.0.attn_v": Stored.Q6_K, "blk.1.ffn_down": Stored.Q6_K}),
    "Q5_K": (Stored.Q5_K, {"token_embd": Stored.Q6_K}),
    "Q6_K": (Stored.Q6_K, {}),
    "Q5_0": (Stored.Q5_0, {"blk.1.attn_v": Stored.Q8_0, "blk.1.ffn_down": Stored.Q6_K}),
}
FORMS: list[Any] = [("Q4_K_M", "int8"), ("Q4_K_M", "int16"), ("Q5_K", "int8"), ("Q6_K", "int8"), ("Q5_0", "int8")]
FORMS += [pytest.param((file, "int16"), marks=pytest.mark.slow) for file in ("Q5_K", "Q6_K", "Q5_0")]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    base = save_tiny(tmp_path_factory.mktemp("base"), "llama", **WHOLE_SUPER_BLOCKS)
    save_adapter(folder, random_adapter(load_tiny(base)))
    return folder


@pytest.fixture(params=FORMS, ids=" ".join)
def model(
    request: pytest.FixtureRequest,
    build: str,  # noqa: ARG001
    native_cache: Path,
    adapter: Path,
    tmp_path: Path,
) -> LanguageModel:
    file, activations = request.param
    kind, other = FILES[file]
    content = stored_as(kind, other={f"{name}.weight": each for name, each in other.items()})
    path = content.write(tmp_path / "tiny.gguf")
    return load_native(path, native_cache, adapter=adapter, activations=activations)


def test_decoders_write_what_plain_decoding_writes(model: LanguageModel) -> None:
    prompts = [model.encode(text, raw=True) for text in PROMPTS]
    plain = model._policy(DecodeSettings("autoregressive"))
    for params in SETTINGS:
        expected = [answers(model, plain, [ids], params)[0] for ids in prompts]
        assert any(len(tokens) == params.max_tokens for tokens in expected)
        for decoder in DECODERS:
            policy = model._policy(model.check(decoder))
            assert answers(model, policy, prompts, params) == expected, decoder
            assert answers(model, policy, prompts[:1], params) == expected[:1], decoder


def test_a_rows_logits_do_not_depend_on_the_rows_beside_it(model: LanguageModel) -> None:
    """A text read at once, and token by token."""
    forward = forward_of(model)
    (whole,) = forward(lay_out([make_block(0, PROMPT, reads_all=True)]), [forward.cache.open()])
    table = forward.cache.open()
    for at, token in enumerate(PROMPT):
        (output,) = forward(lay_out([make_block(at, [token])]), [table])
        forward.cache.keep(table, [0])
        assert np.array_equal(output.logits_WV[0], whole.logits_WV[at])
