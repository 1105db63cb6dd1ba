"""The objective: the loss against two loops written out, its gradient against plain autograd, and that it is learnt."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from counting import Conversion
from reference import mask_row_outputs
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.train.batches import Batch
from stridelm.train.objective import ChainObjective
from stridelm.train.settings import TrainSettings
from stridelm.train.students.student import Student
from tiny import plain_network, trained

Trainable = Callable[..., Checkpoint]
VOCABULARY = 260
BATCH = Batch(
    np.random.default_rng(0).integers(0, 250, (2, 20)),
    np.array([20, 11]),
    np.array([[0, 5, 16, 17], [3, 3, 7, 8]]),
    np.array([1, 4]),
)
"""Some chains reach beyond the end of their text."""
SETTINGS: dict[str, dict[str, Any]] = {
    "head": {"sequential_size": 6},
    "tail heads": {"sequential_size": 6, "tail_heads": 2, "tail_size": 5},
    "no head": {"sequential_size": 0},
    "only with the head": {"sequential_size": 6, "plain_weight": 0.0},
    "all depths alike": {"sequential_size": 6, "plain_weight": 2.0, "depth_decay": 1.0},
    "random k": {"sequential_size": 6, "depth_decay": 0.5, "random_k": True},
}


def settings_of(name: str = "head") -> TrainSettings:
    given: dict[str, Any] = {"tail_heads": 0} | SETTINGS[name]
    return TrainSettings(k=5, rank=3, **given)


def distill(checkpoint: Checkpoint, settings: TrainSettings) -> ChainObjective:
    """With a student all of whose parts matter: at first, some are zero."""
    student = Student(
        checkpoint.network, settings.rank, settings.masks, settings.state_size,
        tail_heads=settings.tail, tail_size=settings.tail_size,
    )  # fmt: skip
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in trained(student):
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=random))
    return ChainObjective(checkpoint.network, student, settings)


def tensors(inputs: tuple[np.ndarray, ...]) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in inputs]


def naive_loss(checkpoint: Checkpoint, student: Student, settings: TrainSettings, longest_BA: np.ndarray) -> float:
    """Chain by chain, depth by depth, with a forward for each chain and no cache."""
    network, total, weights = plain_network(checkpoint.name), 0.0, 0.0
    adapter = student.adapter(checkpoint.name, checkpoint.fingerprint, checkpoint.tokenizer)
    embedding, cap = network.get_input_embeddings(), getattr(network.config, "final_logit_softcapping", None)

    def logarithms(hidden_C: torch.Tensor) -> torch.Tensor:
        logits = network.lm_head(hidden_C).double()
        return (logits if cap is None else cap * torch.tanh(logits / cap)).log_softmax(dim=-1)

    for text, length in enumerate(BATCH.lengths_B):
        ids = torch.from_numpy(BATCH.ids_BT[text, :length])
        teacher = network(ids[None], use_cache=False).logits[0].double().log_softmax(dim=-1)
        for anchor, longest in zip(BATCH.anchors_BA[text], longest_BA[text], strict=True):
            _, hidden = mask_row_outputs(network, adapter, ids[: anchor + 1].tolist(), settings.masks)
            if student.tail is not None:
                hidden = torch.cat([hidden, student.tail(hidden[-1:])[0]])
            head, state = student.sequential, torch.zeros(1, settings.state_size)
            for depth in range(1, longest + 1):
                place = anchor + depth
                if place + 1 >= length:
                    break
                plain = logarithms(hidden[depth - 1])
                apart = (teacher[place].exp() * (teacher[place] - plain)).sum()
                if head is not None:
                    added, state = head(hidden[depth - 1][None], embedding(ids[place])[None], state)
                    moved = logarithms(hidden[depth - 1] + added[0])
                    apart = (teacher[place].exp() * (teacher[place] - moved)).sum() + settings.plain_weight * apart
                weight = settings.depth_decay ** (depth - 1)
                total, weights = total + weight * float(apart), weights + weight
    return total / weights


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_loss_equals_two_loops_written_out(family: str, name: str, trainable: Trainable) -> None:
    settings = settings_of(name)
    loss = distill(trainable(family), settings)
    inputs = tensors(loss.inputs(BATCH, 3))
    # How deep each chain goes is drawn; that it is drawn well is another test's.
    drawn_BA = (inputs[2] > 0).sum(dim=-1).numpy()
    longest_BA = drawn_BA if settings.random_k else np.full_like(drawn_BA, settings.drafts)
    with torch.no_grad():
        expected = naive_loss(trainable(family), loss.student, settings, longest_BA)
        assert float(loss(*inputs)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["head", "no head"])
def test_parts_have_the_gradient_of_the_whole(name: str, trainable: Trainable, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = distill(trainable("gemma2"), settings_of(name))
    inputs = tensors(loss.inputs(BATCH, 0))
    parameters = trained(loss.student)

    def loss_and_gradients() -> tuple[torch.Tensor, ...]:
        value = 3 * loss(*inputs)
        return value.detach(), *torch.autograd.grad(value, parameters)

    divided: list[tuple[torch.Tensor, ...]] = []
    for rows in (1, 7, 1000):
        monkeypatch.setattr("stridelm.train.loss.CHUNK_LOGITS", rows * VOCABULARY)
        divided.append(loss_and_gradients())
    monkeypatch.setattr(
        "stridelm.train.loss._ChunkedLoss.apply",
        lambda apart, targets, weights, shares, head, *judged: apart(head, targets, weights, shares, *judged),
    )
    for parts in divided:
        for ours, theirs in zip(parts, loss_and_gradients(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_sum_to_one_and_fall_with_the_depth(name: str, trainable: Trainable) -> None:
    settings = settings_of(name)
    weights_XK = distill(trainable(), settings)._weights(BATCH, 5).reshape(-1, settings.drafts)
    assert weights_XK.sum() == pytest.approx(1)
    assert (weights_XK[:, 0] == weights_XK.max()).all(), "every chain has a first mask that counts"
    ahead, behind = weights_XK[:, :-1], weights_XK[:, 1:]
    np.testing.assert_allclose(behind[behind > 0], settings.depth_decay * ahead[behind > 0], rtol=1e-5)
    beyond = (
        BATCH.anchors_BA.reshape(-1, 1) + np.arange(1, settings.drafts + 1) + 1
        >= np.repeat(BATCH.lengths_B, 4)[:, None]
    )
    assert not weights_XK[beyond].any()
    assert settings.random_k or weights_XK[~beyond].all()


def test_random_k_cuts_chains_anew_in_every_step(trainable: Trainable) -> None:
    settings = TrainSettings(k=5, tail_heads=0, random_k=True, seed=3)
    loss = distill(trainable(), settings)
    batch = Batch(np.zeros((2, 64), dtype=np.int64), np.full(2, 64), np.full((2, 10), 8), np.full(2, 4))
    steps = [loss._weights(batch, step).reshape(20, -1) > 0 for step in range(400)]
    for depths in steps:
        assert (depths == depths[0]).all(), "all chains of a step alike"
        assert not (~depths[0, :-1] & depths[0, 1:]).any(), "what is left of a chain is its beginning"
    counts = np.bincount([depths[0].sum() for depths in steps], minlength=5)
    assert counts[0] == 0 and counts[1:].min() > 60, "uniform from one mask to all four"
    assert np.array_equal(loss._weights(batch, 7), loss._weights(batch, 7))


def test_it_is_learnt(counting: Callable[..., Conversion]) -> None:
    entries = counting().entries
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    first, last = (entry for entry in entries if "acceptance" in entry)
    assert losses[-1] < losses[0] / 3
    assert first["tokens_per_forward"] < 1.3 and last["tokens_per_forward"] > 1.8
    assert min(last["acceptance"]) > 0.5
