"""The rollout engine writes what the serving engine writes, whatever stands in the places beside."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from assembly import assembled
from bench.frontier.mask_stepper import MaskStepper, Unverified, Verified
from stridelm.arrays import signed
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.params import InputError, SamplingParams
from stridelm.sampling import gumbel_of, gumbel_rows
from stridelm.settings import PLAIN, LoadSettings
from stridelm.stepper import Continuation, Stepper
from stridelm.train.dense_stepper import DenseStepper
from stridelm.train.dense_texts import DenseTexts
from stridelm.train.rollout_engine import RolloutEngine, RolloutLoop, RolloutPrompt
from stridelm.train.students.student import OutputHead, Student, read_texts
from tiny import FAMILIES, load_tiny, random_adapter

TEXTS = ["abc", "The quick brown fox", "x", "counting 1 2 3 4 5 6 7", "zz top", "again and again"]


@pytest.mark.parametrize("family", FAMILIES)
def test_same_answers_as_the_serving_engine(family: str, tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder(family)
    model = assembled(load_tiny(folder), None, LoadSettings(cache_tokens=4096))
    trainable = load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True)
    prompts = [
        RolloutPrompt(tuple(model.encode(text, raw=True)), 8 + 5 * index, temperature=0.8 * (index % 2), seed=index)
        for index, text in enumerate(TEXTS)
    ]
    expected = [
        model.generate(
            text,
            SamplingParams(max_tokens=prompt.max_tokens, temperature=prompt.temperature, seed=prompt.seed),
            decoder=PLAIN,
            raw=True,
        ).token_ids
        for text, prompt in zip(TEXTS, prompts, strict=True)
    ]
    for places in (1, 3, 8):
        answers = dict(RolloutEngine(trainable, places, 80).run(prompts))
        assert [tuple(answers[index]) for index in range(len(TEXTS))] == expected


@pytest.fixture
def checkpoint(tiny_folder: Callable[..., Path]) -> Checkpoint:
    """One whose answers are not one token over and over."""
    folder = tiny_folder("llama", initializer_range=0.8)
    return load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True)


def prompts_of(count: int, *, temperature: float = 0.0) -> list[RolloutPrompt]:
    """Of one token, with nothing to read before the first step, and of more."""
    random = np.random.default_rng(0)
    return [
        RolloutPrompt(
            tuple(random.integers(0, 250, 1 + 4 * (index % 4)).tolist()), 3 + 5 * (index % 3), temperature, index
        )
        for index in range(count)
    ]


Steps = Callable[[Checkpoint, DenseTexts], Stepper]


def with_masks(rule: Verified | Unverified) -> Steps:
    def make(checkpoint: Checkpoint, texts: DenseTexts) -> Stepper:
        student = Student.of(checkpoint.network, random_adapter(checkpoint))
        return MaskStepper(texts, student, student.masks, rule, checkpoint.eos_ids)

    return make


def plain(checkpoint: Checkpoint, texts: DenseTexts) -> Stepper:
    return DenseStepper(texts, checkpoint.eos_ids)


def ahead(checkpoint: Checkpoint, texts: DenseTexts) -> Stepper:
    """The host is a step behind, as on a GPU."""
    stepper = DenseStepper(texts, checkpoint.eos_ids)
    stepper.max_in_flight = 2
    return stepper


STEPS: dict[str, Steps] = {
    "plain": plain,
    "ahead": ahead,
    "verified": with_masks(Verified()),
    "tolerant": with_masks(Verified(0.9)),
    "unverified": with_masks(Unverified(0.2)),
}
WIDTH = 40


def loop_of(checkpoint: Checkpoint, places: int, steps: str = "plain") -> RolloutLoop:
    texts = DenseTexts(checkpoint.network, places, WIDTH + 8)
    return RolloutLoop(STEPS[steps](checkpoint, texts), texts, checkpoint.eos_ids, WIDTH)


def answers_of(loop: RolloutLoop, prompts: list[RolloutPrompt]) -> dict[int, tuple[list[int], int]]:
    return {answer.index: (answer.tokens, answer.steps) for answer in loop.run(prompts)}


@pytest.mark.parametrize("steps", STEPS)
def test_a_run_that_is_left_leaves_the_next_one_whole(steps: str, checkpoint: Checkpoint) -> None:
    """Answers and steps are those of each prompt alone, also behind a run that nobody read to its end."""
    prompts = prompts_of(9)
    expected = {index: answers_of(loop_of(checkpoint, 1, steps), [prompt])[0] for index, prompt in enumerate(prompts)}
    loop = loop_of(checkpoint, 3, steps)
    for _ in loop.run(prompts[::-1]):
        break
    assert loop.loop.free_places() == [0, 1, 2] and not loop.loop.in_flight
    assert answers_of(loop, prompts) == expected


def test_steps_are_counted(checkpoint: Checkpoint) -> None:
    prompts = prompts_of(6)
    one_each, verified = (answers_of(loop_of(checkpoint, 4, steps), prompts) for steps in ("plain", "verified"))
    assert all(steps == len(tokens) for tokens, steps in one_each.values())
    assert {index: tokens for index, (tokens, _) in verified.items()} == {
        index: tokens for index, (tokens, _) in one_each.items()
    }
    assert sum(steps for _, steps in verified.values()) <= sum(steps for _, steps in one_each.values())


def test_sampled_answers_are_the_same_while_the_host_is_behind(checkpoint: Checkpoint) -> None:
    prompts = prompts_of(9, temperature=1.0)
    assert answers_of(loop_of(checkpoint, 3, "ahead"), prompts) == answers_of(loop_of(checkpoint, 1), prompts)


def test_what_a_stepper_does_not_obey_is_refused(checkpoint: Checkpoint) -> None:
    loop = loop_of(checkpoint, 2, "verified")
    with pytest.raises(InputError, match="prompt 1 sets temperature"):
        next(loop.run([RolloutPrompt((1, 2), 4), RolloutPrompt((1, 2), 4, temperature=0.5)]))
    with pytest.raises(InputError, match="a place holds 40"):
        next(loop.run([RolloutPrompt((1, 2), WIDTH)]))
    assert len(answers_of(loop, [RolloutPrompt((1, 2), 4)])) == 1


@pytest.mark.parametrize("steps", ["plain", "verified", "tolerant"])
def test_confidence_is_the_models_own_probability(steps: str, checkpoint: Checkpoint) -> None:
    texts = DenseTexts(checkpoint.network, 2, WIDTH)
    stepper = STEPS[steps](checkpoint, texts)
    tokens = [5, 60, 7]
    stepper.begin(1, Continuation(len(tokens) - 1, tokens[-1], 20, texts.read({1: tokens[:-1]})[1]))
    written: list[int] = []
    confidence: list[float] = []
    while len(written) < 20 and not set(written) & checkpoint.eos_ids:
        stepper.launch()
        nothing, emitted = stepper.collect()
        assert not nothing.tokens and len(emitted.tokens) <= 1 + len(emitted.drafts) <= 1 + stepper.drafts
        written += emitted.tokens
        confidence += emitted.confidence
    stepper.launch()
    assert not any(emitted.tokens for emitted in stepper.collect()), "the text has ended"
    with torch.inference_mode():
        _, hidden_NC = read_texts(checkpoint.network, torch.tensor([[*tokens, *written]]))
        likely_NV = OutputHead(checkpoint.network)(hidden_NC).softmax(dim=-1)
    own = likely_NV[torch.arange(len(written)) + len(tokens) - 1, torch.tensor(written)]
    assert confidence == pytest.approx(own.tolist(), rel=1e-3)


@pytest.mark.parametrize("steps", STEPS)
def test_seconds_of_a_step_are_measured_on_free_places(steps: str, checkpoint: Checkpoint) -> None:
    loop, prompts = loop_of(checkpoint, 3, steps), prompts_of(4)
    assert loop.loop.stepper.seconds and loop.loop.stepper.seconds > 0
    assert answers_of(loop, prompts) == answers_of(loop_of(checkpoint, 3, steps), prompts)


def test_noise_of_many_rows_is_that_of_each() -> None:
    seeds, positions, choices = [0, 5, 2**53 - 1, 2**64 - 1], torch.tensor([7, 0, 4000, 1]), torch.tensor([0, 3, 0, 1])
    rows = gumbel_rows(torch.tensor([signed(seed) for seed in seeds]), positions, 50, choices)
    for row, (seed, position, choice) in enumerate(zip(seeds, positions.tolist(), choices.tolist(), strict=True)):
        assert torch.equal(rows[row], gumbel_of(torch.arange(50), seed, choice, position))
