"""Thousands of answers at once: the engine for rollouts, where throughput counts and not latency.

The serving engine looks at each sequence by itself; here everything has a fixed shape. A stepper has B places, each
with its own stretch of a KV cache, and the loop is serving's (`device_loop`). When texts have finished, the next
prompts are read together into their places. The draws are those of `stridelm.sampling`: an answer is the one that the
serving engine gives with the same seed.

Where the GPU's kernels run the model, the steps are those that serving has (`backends.gpu.stepper`); elsewhere they go
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
from stridelm.contracts import Continuation, Stepper
from stridelm.engine.device_loop import DeviceLoop
from stridelm.engine.step_kind import StepKind
from stridelm.params import InputError, SamplingParams
from stridelm.train.dense_stepper import DenseStepper
from stridelm.train.dense_texts import DenseTexts

_ADMITTED_SHARE = 8
"""Prompts are read when this fraction of the places is free: a few at a time would stop the others too often."""


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
    """One answer, as far as it is written."""

    index: int
    """The prompt's, among those of its run."""
    prompt: RolloutPrompt
    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    """Forward passes that wrote it."""

    @property
    def room(self) -> int:
        return self.prompt.max_tokens - len(self.tokens)


class PromptReader(Protocol):
    """The cache of a stepper's places, each of which has a stretch of its own."""

    def read(self, prompts: Mapping[int, Items[int]]) -> Mapping[int, Items[int]]:
        """Put tokens, perhaps none, into these places, which are free. Returns each place's blocks, as
        `Continuation.blocks` names them. Happens behind the steps that were launched before."""
        ...


class RolloutLoop:
    """Prompts at the places of a stepper, until all are answered. One run at a time."""

    def __init__(self, stepper: Stepper, reader: PromptReader, ends: frozenset[int], width: int) -> None:
        """`ends`: tokens that end an answer; `width`: maximum number of tokens of a prompt and its answer."""
        self.reader, self.ends, self.width = reader, ends, width
        self.loop: DeviceLoop[Rollout, None] = DeviceLoop(stepper)
        self._kind = StepKind.of(stepper)

    def run(self, prompts: Iterable[RolloutPrompt]) -> Generator[Rollout, None, None]:
        """All answers, in the order in which they are finished. A run that is left early leaves all places free."""
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
        """Refuse what the stepper would ignore or has no room for."""
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
        """Let waiting prompts have the free places, if these are worth a stop."""
        free = self.loop.free_places()
        if not waiting or len(free) < max(1, len(self.loop.texts) // _ADMITTED_SHARE):
            return
        admitted = {place: waiting.popleft() for place in free[: len(waiting)]}
        # The last token of a prompt is the first step's to read: it draws behind it.
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
        """`width`: maximum number of tokens of a prompt and its answer. `weights`: the network's, for the GPU's
        kernels; where none are given, these run it if they can."""
        self.eos_ids = checkpoint.eos_ids
        stepper, reader = _steps(checkpoint, places, width, weights)
        self.loop = RolloutLoop(stepper, reader, checkpoint.eos_ids, width)

    def run(self, prompts: Iterable[RolloutPrompt]) -> Iterator[tuple[int, list[int]]]:
        """Every prompt's number and answer, in the order in which they are finished."""
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
