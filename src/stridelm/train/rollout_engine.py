"""The engine for rollouts: thousands of answers at once, made for throughput, not latency.

The serving engine plans each sequence individually; here everything has a fixed shape. A stepper has B places, each
with its own part of a KV cache, and the loop is the one used for serving (`device_loop`). When texts have finished, the
next prompts are read together into their places. Tokens are drawn by `stridelm.sampling`, so an answer is the same as
the serving engine's answer with the same seed.

If the GPU kernels support the model, the steps are those of serving (`backends.gpu.stepper`); otherwise they run
through transformers' layers (`dense_stepper`).
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from stridelm.backends.common.trial import TRIAL_TOKENS
from stridelm.backends.gpu.load import stacked
from stridelm.backends.gpu.weights import Weights
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.engine.device_loop import DeviceLoop
from stridelm.engine.step_kind import StepKind
from stridelm.params import InputError, SamplingParams
from stridelm.stepper import Continuation, Stepper
from stridelm.train.dense_stepper import DenseStepper
from stridelm.train.dense_texts import DenseTexts

_ADMITTED_SHARE = 8
"""Prompts are read once 1/8 of the places is free: reading fewer at a time would interrupt the others too often."""


@dataclass(frozen=True, slots=True)
class RolloutPrompt:
    """A prompt, and how one answer to it is drawn."""

    tokens: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed)


@dataclass(eq=False, slots=True)
class Rollout:
    """One answer, as far as it is generated."""

    index: int
    """The prompt's index among the prompts of the run."""
    prompt: RolloutPrompt
    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    """Number of forward passes so far."""

    @property
    def room(self) -> int:
        return self.prompt.max_tokens - len(self.tokens)


class PromptReader(Protocol):
    """Reads prompts into the cache of a stepper, in which each place has its own part."""

    def read(self, prompts: Mapping[int, Items[int]]) -> Mapping[int, Items[int]]:
        """Read tokens, perhaps none, into these free places. Returns each place's blocks, in the form of
        `Continuation.blocks`. Takes effect after the steps that were launched before."""
        ...


class RolloutLoop:
    """Runs prompts at the places of a stepper until all are answered. One run at a time."""

    def __init__(self, stepper: Stepper, reader: PromptReader, ends: frozenset[int], width: int) -> None:
        """`ends`: tokens that end an answer; `width`: maximum number of tokens of a prompt and its answer."""
        self.reader, self.ends, self.width = reader, ends, width
        self.loop: DeviceLoop[Rollout, None] = DeviceLoop(stepper)
        self._kind = StepKind.of(stepper)

    def run(self, prompts: Iterable[RolloutPrompt]) -> Generator[Rollout, None, None]:
        """All answers, in the order in which they are finished. If the caller stops early, all places are freed."""
        assert not any(self.loop.texts), "another run is under way"
        waiting = deque(Rollout(index, prompt) for index, prompt in enumerate(prompts))
        for answer in waiting:
            self._check(answer)
        try:
            while waiting or any(self.loop.texts):
                self._admit(waiting)
                self.loop.launch(None)
                for place, answer, emitted in self.loop.collect().texts:
                    assert emitted.tokens, "a text that goes on got nothing"
                    answer.tokens.extend(emitted.tokens)
                    answer.steps += 1
                    if answer.tokens[-1] in self.ends or answer.room == 0:
                        self.loop.end(place)
                        yield answer
        finally:
            self.loop.forget()

    def _check(self, answer: Rollout) -> None:
        """Refuse a prompt whose settings the stepper would ignore, or which is too long for a place."""
        prompt = answer.prompt
        if not prompt.tokens:
            raise InputError(f"prompt {answer.index} is empty: give it a token")
        if ignored := self._kind.ignored(prompt.params):
            names = ", ".join(ignored)
            raise InputError(f"prompt {answer.index} sets {names}, which these steps do not obey: leave it out")
        if len(prompt.tokens) + prompt.max_tokens > self.width:
            raise InputError(
                f"prompt {answer.index} has {len(prompt.tokens)} tokens and may get {prompt.max_tokens} more, but a "
                f"place holds {self.width}: ask for fewer tokens, or make the places wider"
            )

    def _admit(self, waiting: deque[Rollout]) -> None:
        """Read waiting prompts into the free places, if enough places are free."""
        free = self.loop.free_places()
        if not waiting or len(free) < max(1, len(self.loop.texts) // _ADMITTED_SHARE):
            return
        admitted = {place: waiting.popleft() for place in free[: len(waiting)]}
        # The last token of a prompt is the input of the first step, which draws the token after it.
        blocks = self.reader.read({place: answer.prompt.tokens[:-1] for place, answer in admitted.items()})
        for place, answer in admitted.items():
            prompt = answer.prompt
            continuation = Continuation(
                cached=len(prompt.tokens) - 1,
                pending=prompt.tokens[-1],
                room=prompt.max_tokens,
                blocks=blocks[place],
                params=prompt.params,
                seed=prompt.seed,
            )
            self.loop.begin(place, answer, continuation)


class RolloutEngine:
    """Plain decoding of a model that was loaded with `trainable`."""

    def __init__(self, checkpoint: Checkpoint, places: int, width: int, *, weights: Weights | None = None) -> None:
        """`width`: maximum number of tokens of a prompt and its answer. `weights`: the network's weights as the GPU
        kernels read them; by default they are made here if the kernels support the model."""
        self.eos_ids = checkpoint.eos_ids
        stepper, reader = _steps(checkpoint, places, width, weights)
        self.loop = RolloutLoop(stepper, reader, checkpoint.eos_ids, width)

    def run(self, prompts: Iterable[RolloutPrompt]) -> Iterator[tuple[int, list[int]]]:
        """Each prompt's index and answer, in the order in which they are finished."""
        with closing(self.loop.run(prompts)) as answers:
            for answer in answers:
                yield answer.index, answer.tokens


def _steps(checkpoint: Checkpoint, places: int, width: int, weights: Weights | None) -> tuple[Stepper, PromptReader]:
    network = checkpoint.network
    if weights is None and (found := stacked(network, None, TorchForward(network, TRIAL_TOKENS))) is not None:
        weights = found.weights
    if weights is None:
        dense = DenseTexts(network, places, width)
        return DenseStepper(dense, checkpoint.eos_ids), dense
    from stridelm.backends.gpu.prompt_reader import GpuPromptReader

    texts = GpuPromptReader(network, weights, places, width)
    return texts.forward.stepper(0, places, checkpoint.eos_ids), texts
