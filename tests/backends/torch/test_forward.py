"""The packed forward against separate, naive forwards of transformers' own model; what is not supported is refused."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BloomConfig,
    FalconH1Config,
    Llama4Config,
    MambaConfig,
    PreTrainedConfig,
    Qwen3NextConfig,
)

from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.linear import PackedLinear, PanelLinear, TransposedLinear, store_linears
from stridelm.backends.torch.llama_layer import LlamaLayer, fuse_layers
from stridelm.backends.torch.trial import check_logits, own_logits
from stridelm.layout import lay_out, make_block
from stridelm.models.support import UnsupportedModel, check_config
from stridelm.types import ROOT, DraftTree
from tiny import FAMILIES, byte_tokenizer, load_tiny

TREE = DraftTree.of((5, 6, 7, 8, 9, 10), (ROOT, 0, 1, ROOT, 3, 0), "tree")


def plain_network(folder: Path) -> nn.Module:
    """The model as transformers makes it, with attention written out: its fused one ignores soft caps."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def naive(network: nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


def path_to(tree: DraftTree, node: int) -> list[int]:
    return [] if node == ROOT else [*path_to(tree, tree.parents[node]), tree.tokens[node]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_blocks_logits_equal_naive_forwards(
    family: str, tiny: Callable[..., Checkpoint], tiny_folder: Callable[..., Path]
) -> None:
    """Three sequences with prefixes of different lengths (one beyond the window), a tree each, in one forward."""
    network = plain_network(tiny_folder(family))
    forward = TorchForward(tiny(family).network, 512)
    generator = random.Random(1)
    prefixes = [[generator.randrange(250) for _ in range(length)] for length in (3, 30, 17)]
    tables = [forward.cache.open() for _ in prefixes]
    forward(lay_out([make_block(0, ids[:-1], reads_logits=False) for ids in prefixes]), tables)
    for table in tables:
        forward.cache.keep(table, range(table.step_rows))
    outputs = forward(lay_out([make_block(len(ids) - 1, ids[-1:], TREE) for ids in prefixes]), tables)
    for ids, output in zip(prefixes, outputs, strict=True):
        assert output.hidden_WC is None
        for node in range(ROOT, len(TREE)):
            expected = naive(network, ids + path_to(TREE, node))
            torch.testing.assert_close(output.logits_WV[node + 1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_after_a_branch_is_kept_the_text_goes_on_from_it(
    family: str, tiny: Callable[..., Checkpoint], tiny_folder: Callable[..., Path]
) -> None:
    network = plain_network(tiny_folder(family))
    forward = TorchForward(tiny(family).network, 512)
    table = forward.cache.open()
    ids = list(range(20, 45))
    forward(lay_out([make_block(0, ids, TREE)]), [table])
    branch = [3, 4]  # the second child of the root and its child
    forward.cache.keep(table, [*range(len(ids)), *(len(ids) + node for node in branch)])
    ids += [TREE.tokens[node] for node in branch]
    (output,) = forward(lay_out([make_block(len(ids), [77])]), [table])
    torch.testing.assert_close(output.logits_WV[0], naive(network, [*ids, 77]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("storage", [PanelLinear, TransposedLinear, PackedLinear])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_stored_layers_compute_the_same(family: str, storage: type, tiny_folder: Callable[..., Path]) -> None:
    """All ways to store weights, whichever this machine prefers."""
    network = AutoModelForCausalLM.from_pretrained(
        tiny_folder(family), dtype=torch.float32, attn_implementation="stridelm"
    ).eval()
    expected = own_logits(network)
    fuse_layers(network, storage)
    assert any(isinstance(module, LlamaLayer) for module in network.modules()) == (family in ("llama", "qwen2"))
    store_linears(network, storage)
    assert not any(isinstance(module, nn.Linear) for module in network.modules())
    check_logits(network, expected)


@pytest.mark.parametrize("storage", [PanelLinear, TransposedLinear, PackedLinear])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 33])
@pytest.mark.parametrize("has_bias", [True, False])
def test_stored_linears_equal_plain_ones(storage: type, rows: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(24, size, bias=has_bias) for size in (16, 8, 40)]
    x = torch.randn(1, rows, 24)
    expected = torch.cat([linear(x) for linear in linears], dim=-1)
    torch.testing.assert_close(storage(linears)(x), expected, rtol=1e-5, atol=1e-5)


def test_layers_that_share_a_product_tell_inputs_apart() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(4, size) for size in (6, 2, 2))

    plain, stored = Attention(), Attention()
    stored.load_state_dict(plain.state_dict())
    assert store_linears(stored, TransposedLinear) == 3
    one, two = torch.randn(1, 2, 4), torch.randn(1, 2, 4)
    for name, x in (
        ("q_proj", one),
        ("k_proj", two),
        ("v_proj", two),
        ("k_proj", one),
        ("v_proj", one),
        ("q_proj", two),
    ):
        torch.testing.assert_close(getattr(stored, name)(x), getattr(plain, name)(x))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [2.0] * 4,
                                 "short_factor": [1.0] * 4, "original_max_position_embeddings": 64}}, "longrope",
        ),
        ({"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"attention_chunk_size": 8}, "attention_chunk_size"),
        ({"alibi": True}, "alibi"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"use_bidirectional_attention": True}, "bidirectional"),
    ],
)  # fmt: skip
def test_what_attention_does_not_do_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    changed = FAMILIES["llama"].__class__(**FAMILIES["llama"].to_dict())
    for name, value in changes.items():
        setattr(changed, name, value)
    with pytest.raises(UnsupportedModel, match=named):
        check_config(changed)


def test_a_window_that_attention_is_not_told_of_is_refused(tiny_folder: Callable[..., Path]) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_folder("llama"), attn_implementation="stridelm").eval()
    expected = own_logits(network)
    network.config.sliding_window = 8  # Llama's attention does not pass one on
    with pytest.raises(UnsupportedModel, match="sliding window"):
        check_logits(network, expected)


def test_other_logits_are_refused(tiny_folder: Callable[..., Path]) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_folder("llama"), attn_implementation="stridelm").eval()
    with pytest.raises(UnsupportedModel, match="other logits"):
        check_logits(network, own_logits(network) * 1.05)


NOT_SUPPORTED = {
    "recurrent": MambaConfig(vocab_size=260, hidden_size=16, num_hidden_layers=2, state_size=4),
    "attention of its own": BloomConfig(vocab_size=260, hidden_size=16, n_layer=2, n_head=2),
    "positions that cannot be given": BartConfig(
        vocab_size=260, d_model=16, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=16, encoder_layers=1,
        encoder_attention_heads=2, encoder_ffn_dim=16, is_encoder_decoder=False, is_decoder=True,
        max_position_embeddings=64, pad_token_id=1, init_std=0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_SUPPORTED)
def test_models_that_would_run_wrongly_are_refused(what: str, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(NOT_SUPPORTED[what]).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel):
        load_tiny(tmp_path)


RECURRENT = [
    MambaConfig(vocab_size=260, hidden_size=16, num_hidden_layers=2, state_size=4),
    Qwen3NextConfig(vocab_size=260, hidden_size=16, num_hidden_layers=4),
    FalconH1Config(vocab_size=260, hidden_size=16, num_hidden_layers=2),
]


@pytest.mark.parametrize("config", RECURRENT, ids=lambda config: config.model_type)
def test_recurrent_and_hybrid_models_are_refused_by_name(config: PreTrainedConfig) -> None:
    with pytest.raises(UnsupportedModel, match=f"{config.model_type} keeps a recurrent state"):
        check_config(config)


def test_settings_of_a_nested_config_are_looked_at() -> None:
    nested = Llama4Config(text_config={"layer_types": ["chunked_attention", "full_attention"], "num_hidden_layers": 2})
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        check_config(nested)
