"""The passes of training: what texts and chains of masks say equals naive forwards, and gradients go where they may."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from reference import mask_row_outputs
from stridelm import InputError
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.layout import lay_out, make_block, visible
from stridelm.models.adapter import Adapter
from stridelm.models.mask_token import MASK_TOKEN
from stridelm.train.rollouts import Rollouts, Text
from stridelm.train.settings import TrainSettings
from stridelm.train.students.passes import ChainPass, TextPass
from stridelm.train.students.student import OutputHead, Student, mask_token, read_texts
from stridelm.train.trainer import Trainer
from stridelm.types import ROOT, DraftTree
from tiny import FAMILIES, byte_tokenizer, plain_network, random_adapter, trained

Trainable = Callable[..., Checkpoint]
MASKS = 4
LENGTHS = (30, 17, 4)
ANCHORS_BA = torch.tensor([[0, 9, 13, 29], [2, 2, 11, 16], [0, 1, 2, 3]])
"""Of texts of these lengths: first and last tokens, one twice, some more than a window of 12 behind."""
WINDOWS = [None, 1, 3, 12]


def texts() -> torch.Tensor:
    """Padded behind."""
    ids_BT = torch.randint(0, 250, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate(LENGTHS):
        ids_BT[row, length:] = 0
    return ids_BT


def with_random_weights(network: Any) -> Student:
    """A student all of whose parts matter: at first, some are zero."""
    student = Student(network, 4, MASKS, 8)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trained(student):
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=random))
    return student


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_say_what_the_model_says(family: str, trainable: Trainable) -> None:
    network = trainable(family).network
    ids_BT = texts()
    _, hidden = read_texts(network, ids_BT)
    logits_BTV = OutputHead(network)(hidden).view(*ids_BT.shape, -1)
    plain = plain_network(trainable(family).name)
    for row, length in enumerate(LENGTHS):
        expected = plain(ids_BT[row : row + 1, :length], use_cache=False).logits[0]
        torch.testing.assert_close(logits_BTV[row, :length], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_chains_say_what_naive_forwards_say(family: str, trainable: Trainable) -> None:
    checkpoint = trainable(family)
    adapter = random_adapter(checkpoint, masks=MASKS, tail_heads=0)
    ids_BT = texts()
    pass_, _ = read_texts(checkpoint.network, ids_BT)
    outputs_XKC = Student.of(checkpoint.network, adapter).outputs(ChainPass(pass_, ANCHORS_BA, MASKS))
    logits_XKV = OutputHead(checkpoint.network)(outputs_XKC)
    for chain, anchor in enumerate(ANCHORS_BA.flatten().tolist()):
        text = ids_BT[chain // ANCHORS_BA.shape[1], : anchor + 1].tolist()
        logits, hidden = mask_row_outputs(plain_network(checkpoint.name), adapter, text, MASKS)
        torch.testing.assert_close(outputs_XKC[chain], hidden, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(logits_XKV[chain], logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_chain_row_sees_its_ancestors(window: int | None) -> None:
    """The rule, row by row, against the layout of the same tree as a block of a decoding step."""
    width = max(LENGTHS)
    chains = ChainPass(TextPass(len(LENGTHS), width), ANCHORS_BA, MASKS)
    text_chain = DraftTree.chain([0] * (width - 1), "text")
    for text, anchors_A in enumerate(ANCHORS_BA):
        block = make_block(0, [0], text_chain, anchors=[anchor + ROOT for anchor in anchors_A.tolist()], masks=MASKS)
        rows = lay_out([block])
        sees = visible(0, rows.ancestors[0], rows.positions_Q, window)
        assert sees is not None
        assert np.array_equal(rows.positions_Q[width:], chains.positions[text].flatten().numpy())
        row = torch.arange(len(anchors_A) * MASKS)[:, None]
        column = torch.arange(len(block))[None]
        ours = chains.rule(window)(torch.tensor(text), torch.tensor(0), row, column)
        assert np.array_equal(ours.numpy(), np.roll(sees[width:], -width, axis=1)), "its columns: masks, then the text"


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3", "mixtral"])
@torch.no_grad()
def test_block_sparse_attention_says_the_same(
    family: str, trainable: Trainable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU compiles, as it is."""
    network = trainable(family).network
    student = with_random_weights(network)
    pass_, _ = read_texts(network, texts())
    expected = student.outputs(ChainPass(pass_, ANCHORS_BA, MASKS))
    calls: list[object] = []

    def uncompiled(*rows: Any, **how: Any) -> Any:
        calls.append(how)
        return flex_attention(*rows, **how)

    monkeypatch.setattr("stridelm.train.students.passes._is_block_sparse", lambda query: True)
    monkeypatch.setattr("stridelm.train.students.passes._flex", lambda: uncompiled)
    outputs = student.outputs(ChainPass(pass_, ANCHORS_BA, MASKS))
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)
    assert len(calls) == 2, "one per layer"


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_all_that_is_trained_and_nothing_else(family: str, trainable: Trainable) -> None:
    checkpoint = trainable(family)
    student = with_random_weights(checkpoint.network)
    pass_, _ = read_texts(checkpoint.network, texts())
    outputs_XKC = student.outputs(ChainPass(pass_, ANCHORS_BA, MASKS))
    assert student.sequential is not None
    (outputs_XKC + student.sequential.along(outputs_XKC, outputs_XKC)).square().sum().backward()
    reached = {name for name, each in student.named_parameters() if each.grad is not None and each.grad.abs().sum() > 0}
    low_rank = {f"network.{target}.{part}" for target in student.targets for part in ("down", "up")}
    head = {f"sequential.{name}" for name, _ in student.sequential.named_parameters()}
    assert reached == {"mask_embedding", *low_rank, *head}
    assert all(parameter.grad is None for parameter in checkpoint.network.parameters())


def test_the_base_models_weights_are_held_once(trainable: Trainable) -> None:
    network = trainable("mixtral").network
    held = {id(tensor) for tensor in (*network.parameters(), *network.buffers())}
    student = Student(network, 4, MASKS, 8)
    own = {id(parameter) for parameter in trained(student)}
    assert {id(tensor) for tensor in (*student.parameters(), *student.buffers())} == held | own


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])
def test_training_leaves_the_base_model_as_it_is(family: str, trainable: Trainable, tmp_path: Path) -> None:
    checkpoint = trainable(family)
    ids_BT = texts()
    weights = {name: weight.clone() for name, weight in checkpoint.network.state_dict().items()}
    _, said = read_texts(checkpoint.network, ids_BT)
    settings = TrainSettings(k=3, rank=2, sequential_size=4, texts=2, length=16, anchors=4, steps=3, warmup=0)
    rollouts = Rollouts([Text(row.numpy(), 2) for row in ids_BT], [], {})
    trainer = Trainer(checkpoint, rollouts, settings, tmp_path, lambda entry: None)
    before = {name: parameter.detach().clone() for name, parameter in trainer.parameters.items()}
    for step in range(settings.steps):
        trainer._step(step)
    assert all(not torch.equal(before[name], parameter) for name, parameter in trainer.parameters.items())
    after = checkpoint.network.state_dict()
    assert after.keys() == weights.keys() and all(torch.equal(after[name], weights[name]) for name in weights)
    assert torch.equal(read_texts(checkpoint.network, ids_BT)[1], said)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_student_goes_to_disk_and_back(family: str, trainable: Trainable) -> None:
    checkpoint = trainable(family)
    student = with_random_weights(checkpoint.network)
    adapter = student.adapter(checkpoint.name, checkpoint.fingerprint, checkpoint.tokenizer)
    again = Student.of(checkpoint.network, adapter)
    for (name, ours), (other, theirs) in zip(student.named_parameters(), again.named_parameters(), strict=True):
        assert name == other and torch.equal(ours, theirs)
    assert not trained(again)
    assert bool(adapter.config.unadapted) == (family in ("mixtral", "qwen3_moe", "gpt_oss"))


def test_an_untrained_mask_is_the_mean_of_the_embeddings(trainable: Trainable) -> None:
    """As layers read them: Gemma's come out larger than they are stored."""
    for family in ("llama", "gemma2", "gemma3"):
        network: Any = trainable(family).network
        student = Student(network, 4, MASKS, 8)
        mean_C = network.get_input_embeddings()(torch.arange(260)).mean(dim=0)
        torch.testing.assert_close(student.mask_embedding.detach(), mean_C.expand(MASKS, -1))


def test_without_a_gate_one_embedding_serves_all_depths(trainable: Trainable) -> None:
    """On disk every depth has a row; rows that differ, as older files have them, are kept apart."""
    checkpoint = trainable("llama")
    student = Student(checkpoint.network, 4, MASKS, 0, is_gated=False)
    assert len(student.mask_embedding) == 1 and len(student.mask_rows()) == MASKS
    adapter = student.adapter(checkpoint.name, checkpoint.fingerprint, checkpoint.tokenizer)
    assert torch.equal(adapter.mask_embedding, student.mask_embedding.detach().expand(MASKS, -1))
    assert torch.equal(Student.of(checkpoint.network, adapter).mask_rows(), student.mask_rows())
    apart = {**adapter.tensors, "mask_embedding": torch.randn(adapter.mask_embedding.shape)}
    older = Student.of(checkpoint.network, Adapter(adapter.config, apart, is_gated=False))
    assert torch.equal(older.mask_rows(), apart["mask_embedding"])


def test_an_adapter_with_other_layers_is_refused(trainable: Trainable) -> None:
    adapter = random_adapter(trainable("qwen3"))
    fewer = replace(adapter.config, targets=adapter.config.targets[:-1])
    with pytest.raises(InputError, match=re.escape(adapter.config.targets[-1])):
        Student.of(trainable("qwen3").network, Adapter(fewer, adapter.tensors))


def test_a_student_goes_on_from_an_adapter_of_smaller_rank(trainable: Trainable) -> None:
    """What it has more changes nothing yet, and is trained from then on: only its second factors are zero."""
    checkpoint = trainable("llama")
    first = Student(checkpoint.network, 2, MASKS, 8)
    with torch.no_grad():
        for parameter in (each for each in first.parameters() if each.requires_grad):
            parameter.normal_(std=0.1)
    adapter = first.adapter(checkpoint.name, checkpoint.fingerprint, checkpoint.tokenizer)
    student = Student(checkpoint.network, 5, MASKS, 8, tail_heads=2, tail_size=4)
    student.continue_from(adapter)
    for target in student.targets:
        layer: Any = student.network.get_submodule(target)
        down, up = adapter.low_rank(target)
        torch.testing.assert_close(layer.up @ layer.down, up @ down)
        assert layer.down[2:].abs().min() > 0
    assert torch.equal(student.mask_embedding, adapter.mask_embedding)
    assert student.sequential is not None and first.sequential is not None
    for name, tensor in first.sequential.state_dict().items():
        assert torch.equal(student.sequential.state_dict()[name], tensor)


def test_an_adapter_of_another_shape_is_refused(trainable: Trainable) -> None:
    adapter = random_adapter(trainable("llama"))
    target = adapter.config.targets[0]
    down, up = adapter.low_rank(target)
    wider = adapter.tensors | {f"{target}.down": torch.cat([down, down], dim=1), f"{target}.up": up}
    with pytest.raises(InputError, match=f"{re.escape(target)} takes {2 * down.shape[1]} values"):
        Student.of(trainable("llama").network, Adapter(adapter.config, wider))


def test_the_order_of_an_adapters_layers_does_not_matter(trainable: Trainable) -> None:
    adapter = random_adapter(trainable("qwen3"))
    turned = replace(adapter.config, targets=adapter.config.targets[::-1])
    Student.of(trainable("qwen3").network, Adapter(turned, adapter.tensors))


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ((), (MASK_TOKEN, 257)),
        (("<a>",), (MASK_TOKEN, 258)),
        (("<a>", "<|reserved_7|>", "<unused_1>"), ("<|reserved_7|>", 258)),
        (("<a>", "<b>", "<c>"), (MASK_TOKEN, 260)),
        (("<a>", "<b>", "<c>", "<reserved>"), (MASK_TOKEN, 261)),
    ],
    ids=["a slot without a name", "the first of them", "an unused name", "none", "an unused name beyond the model's"],
)
def test_the_mask_token_takes_a_slot_that_no_text_uses(extra: tuple[str, ...], expected: tuple[str, int]) -> None:
    assert mask_token(byte_tokenizer(extra), 260) == expected
