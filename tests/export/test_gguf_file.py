"""GGUF files that we write: read back they are the same model and the same tokenizer, and all else is refused."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Stored
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from gguf_models import MODELS, assert_same_logits, load
from gguf_written import CHAT, ENDS, LLAMA_3, SYNTHETIC, kinds_of, network_of, tokenizer_of
from stridelm.export.gguf_file import write_gguf
from stridelm.models import builtin
from stridelm.models.gguf import read_gguf
from stridelm.params import InputError
from tiny import FAMILIES


def written(
    file: Path, network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None = None, **more: Any
) -> Path:
    write_gguf(file, network, tokenizer or tokenizer_of(), more.pop("eos_ids", ENDS), name="tiny", **more)
    return file


@pytest.mark.parametrize(("family", "changes"), MODELS)
def test_what_is_written_is_read_again_to_the_last_bit(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    network = network_of(family, **changes)
    file = written(tmp_path / "new" / "tiny.gguf", network)
    state = dict(network.state_dict())
    if network.config.get_text_config().tie_word_embeddings:
        del state["lm_head.weight"]
    found = read_gguf(file)
    assert found.weights.keys() == state.keys()
    assert all(torch.equal(found.weights[name], tensor) for name, tensor in state.items())
    assert kinds_of(file) == {"F32"}
    assert_same_logits(load(file), network)
    assert [path.name for path in file.parent.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe"])
def test_the_tokenizer_gives_the_ids_of_llama_cpp(pre: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(pre, bos_token="<tool>")
    found = read_gguf(written(tmp_path / "tiny.gguf", network_of(), tokenizer))
    for case in SYNTHETIC["cases"][pre]:
        if case["parse_special"]:
            assert found.tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
    fields = gguf.GGUFReader(tmp_path / "tiny.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == pre
    assert fields["tokenizer.ggml.token_type"].contents() == [*SYNTHETIC["token_type"], 5, 5, 5]
    assert found.tokenizer.bos_token == "<tool>" and found.tokenizer.chat_template == CHAT


@pytest.mark.parametrize(("pre", "number"), [("qwen2", r"\p{N}"), ("llama-bpe", r"\p{N}{1,3}")])
def test_the_usual_spelling_of_a_pre_tokenizer_is_known(pre: str, number: str, tmp_path: Path) -> None:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ).replace("NUMBER", number)
    parts = [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ]
    tokenizer = tokenizer_of(pre_tokenizers.Sequence(parts), ignore_merges=pre == "llama-bpe")
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    file = written(tmp_path / "tiny.gguf", network_of(), tokenizer)
    assert gguf.GGUFReader(file).fields["tokenizer.ggml.pre"].contents() == pre


@pytest.mark.parametrize("kind", [Stored.Q8_0, Stored.F16, Stored.BF16])
def test_a_matrix_is_stored_in_the_smallest_type_that_loses_nothing(kind: Stored, tmp_path: Path) -> None:
    network = network_of(intermediate_size=64)
    for parameter in network.parameters():
        if parameter.ndim == 2:
            parameter.mul_(1e5 if kind is Stored.BF16 else 1)  # beyond the range of F16
            parameter.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(parameter.numpy(), kind), kind)))
    file = written(tmp_path / "tiny.gguf", network)
    assert kinds_of(file) == {kind.name}
    found = read_gguf(file)
    assert all(torch.equal(found.weights[name], network.state_dict()[name]) for name in found.weights)


def test_eight_bits_are_taken_where_asked_for(tmp_path: Path) -> None:
    network = network_of()  # its feed-forward layers are 48 wide, which is no multiple of a block
    exact, small = (written(tmp_path / name, network, storage=name) for name in ("exact", "q8_0"))
    assert kinds_of(small) == {"Q8_0", "F32"}
    found, whole = read_gguf(small).weights, read_gguf(exact).weights
    for name, tensor in whole.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=float(tensor.abs().max()) / 127)
    assert small.stat().st_size < exact.stat().st_size


def test_stretched_positions_are_written_as_factors(tmp_path: Path) -> None:
    """llama.cpp's test of it is in test_llama_cpp.py."""
    network = network_of(rope_parameters=LLAMA_3)
    (factors,) = (
        torch.from_numpy(tensor.data.copy())
        for tensor in gguf.GGUFReader(written(tmp_path / "tiny.gguf", network)).tensors
        if tensor.name == "rope_freqs.weight"
    )
    plain = 50_000.0 ** -(torch.arange(0, 8, 2) / 8)
    rotary: Any = network.get_submodule("model.rotary_emb")
    torch.testing.assert_close(plain / factors, rotary.inv_freq)
    assert (float(factors[0]), float(factors[-1])) == pytest.approx((1, 8))


@pytest.mark.parametrize("add", [True, False])
def test_a_beginning_is_added_where_the_tokenizer_adds_one(add: bool, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(bos_token="<tool>")
    if add:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<tool> $A", special_tokens=[("<tool>", 1)]
        )
    found = read_gguf(written(tmp_path / "tiny.gguf", network_of(), tokenizer)).tokenizer
    assert found.encode("it's") == tokenizer.encode("it's")
    assert (found.encode("it's")[0] == 1) == add


def test_all_ends_of_an_answer_are_named_the_tokenizers_own_first(tmp_path: Path) -> None:
    ends = frozenset({2, 0, 1})
    file = written(tmp_path / "tiny.gguf", network_of(), eos_ids=ends)
    assert read_gguf(file).eos_ids == ends
    assert gguf.GGUFReader(file).fields["tokenizer.ggml.eos_token_id"].contents() == 0


class Case:
    """What is refused, and what is said of it."""

    def __init__(
        self,
        said: str,
        network: Callable[[], PreTrainedModel] = network_of,
        tokenizer: Callable[[], PreTrainedTokenizerFast] = tokenizer_of,
        **more: Any,
    ) -> None:
        self.said, self.network, self.tokenizer, self.more = said, network, tokenizer, more


def _with(change: Callable[[Tokenizer], object], **settings: Any) -> PreTrainedTokenizerFast:
    tokenizer = tokenizer_of(**settings)
    change(tokenizer.backend_tokenizer)
    return tokenizer


def _set(**parts: Any) -> Callable[[Tokenizer], object]:
    return lambda backend: [setattr(backend, name, part) for name, part in parts.items()]


def _family(name: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    config = type(FAMILIES[name])(**FAMILIES[name].to_dict() | changes)
    return lambda: AutoModelForCausalLM.from_config(config, dtype=torch.float32)


REFUSED = {
    "family": Case("gemma3_text models cannot be written", _family("gemma3")),
    "rope": Case(
        "'yarn'",
        _family("llama", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}),
    ),
    "activation": Case("'gelu'", _family("llama", hidden_act="gelu")),
    "window": Case(
        "sliding windows",
        _family(
            "qwen2", use_sliding_window=True, sliding_window=8, layer_types=["full_attention", "sliding_attention"]
        ),
    ),
    "words": Case("none of smollm, gpt-2", tokenizer=lambda: tokenizer_of(pre_tokenizers.Whitespace())),
    "whole words": Case("'smollm', but takes whole words", tokenizer=lambda: tokenizer_of(ignore_merges=True)),
    "normalizer": Case("(Lowercase)", tokenizer=lambda: _with(_set(normalizer=normalizers.Lowercase()))),
    "model": Case("WordLevel", tokenizer=lambda: _with(_set(model=models.WordLevel({"<eos>": 0}, unk_token="<eos>")))),
    "merges": Case(
        "has no merges",
        tokenizer=lambda: _with(
            _set(model=models.BPE(vocab={token: n for n, token in enumerate(SYNTHETIC["tokens"])}, merges=[]))
        ),
    ),
    "spaces": Case(
        "'<wide>' takes spaces",
        tokenizer=lambda: _with(lambda backend: backend.add_tokens([AddedToken("<wide>", lstrip=True)])),
    ),
    "ends": Case("4 tokens end an answer", eos_ids=frozenset(range(4))),
    "around": Case(
        "more around a text",
        tokenizer=lambda: _with(
            _set(post_processor=processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 0)]))
        ),
    ),
    "size": Case("the model has 260 tokens only", _family("llama", pad_token_id=0, eos_token_id=0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_would_read_otherwise_is_refused(name: str, tmp_path: Path) -> None:
    case = REFUSED[name]
    with pytest.raises(InputError) as refused:
        written(tmp_path / "tiny.gguf", case.network(), case.tokenizer(), **case.more)
    assert case.said in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        written(file, network_of())
    assert file.read_text() == "precious"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", fail)
    with pytest.raises(InputError, match="No space left"):
        written(tmp_path / "tiny.gguf", network_of())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_built_in_model_written_anew_says_what_its_own_file_says(tmp_path: Path) -> None:
    folder = builtin.ensure_builtin()
    network = AutoModelForCausalLM.from_pretrained(folder)
    new = tmp_path / "new.gguf"
    write_gguf(new, network, AutoTokenizer.from_pretrained(folder), frozenset({2}), name=builtin.NAME)
    ours, theirs = (gguf.GGUFReader(file) for file in (new, folder / builtin.GGUF_NAME))
    compared = [name for name in theirs.fields if name.startswith(("tokenizer.", "llama."))]
    assert len(compared) > 20
    for name in compared:
        assert ours.fields[name].contents() == theirs.fields[name].contents(), name
    stored = {tensor.name: tensor for tensor in ours.tensors}
    assert stored.keys() == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        found, expected = (gguf.dequantize(each.data, each.tensor_type) for each in (stored[tensor.name], tensor))
        assert (found == expected).all(), tensor.name
