"""The other objectives against loops written out: the critic, given answers, whole models, draft models."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_objective import BATCH, distill, tensors
from transformers import AutoModelForCausalLM

from reference import mask_row_outputs
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.train.objective import ChainObjective, RowObjective
from stridelm.train.settings import TrainSettings
from stridelm.train.students.full_student import FullStudent
from stridelm.train.students.small_students import DraftStudent, HeadsStudent
from stridelm.train.students.student import Student
from tiny import plain_network

Trainable = Callable[..., Checkpoint]
K = 4
FAMILIES = ("llama", "mistral", "gemma3")


def stirred(student: Any) -> Any:
    """With random changes to all that is trained: at first some of it is zero, or the teacher's own."""
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return student


def eager(network: Any) -> Any:
    """A network's weights in one as transformers makes it, with transformers' own attention."""
    config = copy.deepcopy(network.config)  # it would be told of the other attention
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    plain.load_state_dict(network.state_dict())
    return plain


def logarithms(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(dim=-1)


def apart(said_V: torch.Tensor, teacher_V: torch.Tensor, labels: str) -> float:
    if labels == "hard":
        return -float(said_V[int(teacher_V.argmax())])
    return float((teacher_V.exp() * (teacher_V - said_V[: len(teacher_V)])).sum())


def anchors() -> list[tuple[torch.Tensor, int, int]]:
    """Every chain's text, its length and its anchor."""
    return [
        (torch.from_numpy(BATCH.ids_BT[text, :length]), int(length), int(anchor))
        for text, length in enumerate(BATCH.lengths_B)
        for anchor in BATCH.anchors_BA[text]
    ]


@torch.no_grad()
def critic(network: Any, prefix: torch.Tensor, proposed: list[int]) -> torch.Tensor:
    """What the teacher says behind the student's proposals: one plain forward."""
    ids = torch.cat([prefix, torch.tensor(proposed, dtype=torch.int64)])
    return logarithms(network(ids[None], use_cache=False).logits[0, -1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("labels", ["hard", "soft"])
@pytest.mark.parametrize("sequential_size", [0, 6])
def test_the_critic_of_a_gated_student(family: str, labels: str, sequential_size: int, trainable: Trainable) -> None:
    settings = TrainSettings(
        k=K,
        rank=3,
        objective="online",
        labels=labels,
        sequential_size=sequential_size,
        tail_heads=0,
        depth_decay=0.8,
    )
    loss = distill(trainable(family), settings)
    checkpoint, student = trainable(family), loss.student
    network = plain_network(checkpoint.name)
    adapter = student.adapter(checkpoint.name, checkpoint.fingerprint, checkpoint.tokenizer)
    embedding, total, weights = network.get_input_embeddings(), 0.0, 0.0
    with torch.no_grad():
        for ids, length, anchor in anchors():
            prefix = ids[: anchor + 1]
            _, hidden = mask_row_outputs(network, adapter, prefix.tolist(), settings.masks)
            proposed = [int(critic(network, prefix, []).argmax())]
            state = torch.zeros(1, sequential_size)
            for depth in range(1, K):
                outputs = {1.0: hidden[depth - 1]}
                if student.sequential is not None:
                    before = embedding(torch.tensor(proposed[-1]))[None]
                    added, state = student.sequential(hidden[depth - 1][None], before, state)
                    outputs = {1.0: hidden[depth - 1] + added[0], settings.plain_weight: hidden[depth - 1]}
                said = {share: logarithms(network.lm_head(output)) for share, output in outputs.items()}
                if anchor + depth < length - 1:
                    judged = critic(network, prefix, proposed)
                    weight = settings.depth_decay ** (depth - 1)
                    total += weight * sum(share * apart(each, judged, labels) for share, each in said.items())
                    weights += weight
                proposed.append(int(said[1.0].argmax()))
        found = float(loss(*tensors(loss.inputs(BATCH, 0))))
    assert found == pytest.approx(total / weights, rel=1e-4)


FULL: list[dict[str, Any]] = [
    {"objective": "online"},
    {"objective": "online", "labels": "soft"},
    {"objective": "ground-truth"},
    {"objective": "distill"},
    {"objective": "distill", "labels": "hard"},
]


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3"])
@pytest.mark.parametrize("asked", FULL, ids=str)
def test_a_whole_model(asked: dict[str, Any], family: str, trainable: Trainable) -> None:
    """A chain of masks behind a prefix is a text like any other: transformers runs it as one."""
    settings = TrainSettings(mode="full", k=K, depth_decay=0.8, **asked)
    checkpoint = trainable(family)
    student = stirred(FullStudent(checkpoint.network, checkpoint.tokenizer, settings.masks))
    objective = ChainObjective(checkpoint.network, student, settings)
    teacher, own, labels = plain_network(checkpoint.name), eager(student.network), settings.labels_used
    assert student.token is not None
    total = weights = 0.0
    with torch.no_grad():
        for ids, length, anchor in anchors():
            prefix = ids[: anchor + 1]
            masked = torch.cat([prefix, torch.full((settings.masks,), student.token[1])])
            said_SV = logarithms(own(masked[None], use_cache=False).logits[0, anchor:])
            proposed = said_SV.argmax(dim=-1).tolist()
            for depth in range(K):
                if anchor + depth >= length - 1:
                    continue
                if labels == "text":
                    found = -float(said_SV[depth, int(ids[anchor + depth + 1])])
                else:
                    read = (
                        proposed[:depth]
                        if settings.objective == "online"
                        else ids[anchor + 1 : anchor + 1 + depth].tolist()
                    )
                    found = apart(said_SV[depth], critic(teacher, prefix, read), labels)
                weight = settings.depth_decay ** max(depth - 1, 0)
                total, weights = total + weight * found, weights + weight
        loss = objective(*tensors(objective.inputs(BATCH, 0)))
    assert float(loss) == pytest.approx(total / weights, rel=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_gradient_reaches_every_weight_of_a_whole_model(family: str, trainable: Trainable) -> None:
    """Against plain autograd: the output matrix, tied to the embedding or not, learns through a path of its own."""
    settings = TrainSettings(mode="full", objective="ground-truth", k=2)
    checkpoint = trainable(family)
    student = stirred(FullStudent(checkpoint.network, checkpoint.tokenizer, 1))
    objective = ChainObjective(checkpoint.network, student, settings)
    loss = objective(*tensors(objective.inputs(BATCH, 0)))
    loss.backward()
    own = eager(student.network).requires_grad_(True)
    assert student.token is not None
    pieces: list[torch.Tensor] = []
    for ids, length, anchor in anchors():
        masked = torch.cat([ids[: anchor + 1], torch.tensor([student.token[1]])])
        said_SV = own(masked[None], use_cache=False).logits[0, anchor:].log_softmax(dim=-1)
        pieces += [-said_SV[depth, ids[anchor + depth + 1]] for depth in range(2) if anchor + depth < length - 1]
    torch.stack(pieces).mean().backward()
    theirs = dict(own.named_parameters())
    for name, parameter in student.network.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-5, msg=name)


def test_heads_learn_the_tokens_ahead(trainable: Trainable) -> None:
    """The sum over k of -log P(token n + k), as a mean over those that are there."""
    settings = TrainSettings(mode="heads", heads=3, depth_decay=1.0)
    checkpoint = trainable("gemma2")
    student = stirred(HeadsStudent(checkpoint.network, 3, 16))
    objective = ChainObjective(checkpoint.network, student, settings)
    network, total, count = plain_network(checkpoint.name), 0.0, 0
    cap = network.config.final_logit_softcapping
    with torch.no_grad():
        for ids, length, anchor in anchors():
            hidden = network.model(ids[None, : anchor + 1], use_cache=False).last_hidden_state[0, -1]
            for number in range(1, 4):
                inner = student.heads.up_HSC[number - 1] @ hidden
                moved = hidden + student.heads.down_HCS[number - 1] @ torch.nn.functional.silu(inner)
                if anchor + number + 1 < length:
                    said_V = logarithms(cap * torch.tanh(network.lm_head(moved) / cap))
                    total, count = total - float(said_V[int(ids[anchor + number + 1])]), count + 1
        loss = objective(*tensors(objective.inputs(BATCH, 0)))
    assert float(loss) == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize("labels", ["soft", "hard", "text"])
def test_a_draft_model_learns_from_its_teacher(labels: str, trainable: Trainable) -> None:
    settings = TrainSettings(mode="draft", layers=1, labels=labels)
    checkpoint = trainable("mistral")
    student = stirred(DraftStudent(checkpoint.network, 1))
    objective = RowObjective(checkpoint.network, student, settings)
    teacher, own = plain_network(checkpoint.name), eager(student.network)
    found: list[float] = []
    with torch.no_grad():
        for text, length in enumerate(BATCH.lengths_B):
            ids = torch.from_numpy(BATCH.ids_BT[text, :length])
            taught, said = (logarithms(network(ids[None], use_cache=False).logits[0]) for network in (teacher, own))
            for place in range(BATCH.prompts_B[text] - 1, length - 1):
                if labels == "text":
                    found.append(-float(said[place, int(ids[place + 1])]))
                else:
                    found.append(apart(said[place], taught[place], labels))
        loss = objective(*tensors(objective.inputs(BATCH, 0)))
    assert float(loss) == pytest.approx(np.mean(found), rel=1e-4)


def test_what_a_student_without_a_gate_reads_passes_through_it(trainable: Trainable) -> None:
    """Its real rows are those of the base with the adapter merged."""
    checkpoint = trainable("llama")
    student = stirred(Student(checkpoint.network, 3, 2, 0, is_gated=False))
    settings = TrainSettings(gate="none", k=3, objective="distill")
    objective = ChainObjective(checkpoint.network, student, settings)
    assert objective.first == 0
    ids_BT, anchors_BA, _ = tensors(objective.inputs(BATCH, 0))
    slots_XSC = student.slots(ids_BT, anchors_BA, None, None)
    merged = eager(checkpoint.network)
    with torch.no_grad():
        for target in student.targets:
            layer: Any = student.network.get_submodule(target)
            merged.get_submodule(target).weight += layer.up @ layer.down
        expected = merged.model(ids_BT[:1], use_cache=False).last_hidden_state[0, anchors_BA[0]]
    torch.testing.assert_close(slots_XSC[: anchors_BA.shape[1], 0], expected, rtol=1e-3, atol=1e-4)
