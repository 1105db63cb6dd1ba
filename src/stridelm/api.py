"""The Python API: load a model, then stream or generate. `generate` is the serving engine without HTTP."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast, overload

from stridelm.backends.load import load_model
from stridelm.contracts import Gate, Heads, Policy
from stridelm.decode.cost import Cost
from stridelm.decode.scoring import Scoring
from stridelm.decode.table import DecodeResources, make_policy
from stridelm.engine.engine import Engine
from stridelm.engine.explain import explain
from stridelm.engine.scheduler import PREFILL_ROWS
from stridelm.models.encode import Prompt, Prompts, encode_prompt, is_batch
from stridelm.models.target import LoadedModel, Target
from stridelm.params import InputError, SamplingParams
from stridelm.settings import AUTO, DECODERS, DEFAULT_MODEL, PLAIN, DecodeSettings, LoadSettings, ModelChoice
from stridelm.stats import Stats
from stridelm.types import Result, Sequence, Stride

_GREEDY = SamplingParams()
_MAX_POLICIES = 64
_SHARED_PREFILL_ROWS = 64
"""Maximum number of prompt rows in a step in which other answers are decoded, on a machine where every row costs."""


def load(
    model: str = DEFAULT_MODEL,
    *,
    adapter: str | Path | None = None,
    draft_model: str | Path | None = None,
    heads: str | Path | None = None,
    settings: LoadSettings | None = None,
) -> "LanguageModel":
    """Load a model: `smollm2` (built in), a Hugging Face folder, a hub id or a .gguf file.

    `adapter` is the folder that `stridelm train` made for this model. The built-in model brings its own; `none` leaves
    that one out. A model that stands alone after its conversion needs none: its config.json names a mask token.
    `draft_model` is a smaller model of the same vocabulary, the folder that `stridelm train --mode draft` made, or that
    of Gemma 4's assistant. The built-in model brings its own, which only the decoder `draft` uses.
    `heads` is the folder that `stridelm train --mode heads` made for this model.
    """
    adapter, draft_model, heads = (None if each is None else str(each) for each in (adapter, draft_model, heads))
    return LanguageModel.load(ModelChoice(model, adapter, draft_model, heads, settings or LoadSettings()))


class LanguageModel:
    """A loaded model with its own engine. Calls from several threads or tasks share the engine's steps."""

    def __init__(self, loaded: LoadedModel, settings: LoadSettings) -> None:
        """Takes over the caches of `loaded`, which no other model may use: see `twin`."""
        self.loaded = loaded
        self.settings = settings
        self.target = loaded.target
        self.engine = Engine(loaded.forward, loaded.target.tokenizer)
        self.resources = DecodeResources(loaded, settings.cache_tokens)
        self._policies: dict[DecodeSettings, Policy] = {}
        self._scoring = Scoring()
        self._lock, self._next_in_line = threading.Lock(), threading.Lock()
        self._strides: dict[Sequence, deque[Stride]] = {}
        """For every answer that is not read to its end: its strides that were computed but not read yet."""
        self._failures: dict[Sequence, BaseException] = {}
        self._given_up: deque[Sequence] = deque()
        """Answers that were closed or dropped; the next caller that has the lock removes them."""

    @classmethod
    def load(cls, choice: ModelChoice) -> "LanguageModel":
        return cls(load_model(choice), choice.settings)

    def twin(self) -> "LanguageModel":
        """The same weights with another engine, whose answers are not batched with those of this one."""
        return LanguageModel(self.loaded.with_caches(self.settings.cache_tokens), self.settings)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a prompt and its answer together: what the context and the KV cache allow."""
        return min(self.target.context_length, self.engine.forward.cache.capacity)

    @property
    def gate(self) -> Gate | None:
        """The gate of the model's masks; None if it has none."""
        return self.loaded.forward.gate

    @property
    def draft(self) -> Target | None:
        """The draft model that was given."""
        return None if self.loaded.draft is None else self.loaded.draft.target

    @property
    def heads(self) -> Heads | None:
        """The prediction heads that were given."""
        return self.loaded.heads

    @property
    def cost(self) -> Cost:
        """What forwards cost on this machine, as the planner sees it; measured if not known yet."""
        return self.resources.cost

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        decoder: str | DecodeSettings = AUTO,
        raw: bool = False,
    ) -> "Answer":
        """Start an answer; iterate over it for one Stride per forward pass, then ask for its `result`.

        `prompt` is text, a chat or token ids. Text is put into the model's chat template as a user's turn, if it has
        one; `raw` leaves text as it is. Token ids are taken as they are. `decoder` is a name or settings.
        """
        stats = Stats()
        settings = self.check(decoder)
        tokens = self.encode(prompt, raw=raw)
        with self._turn():
            sequence = self.sequence(tokens, params, settings)
            sequence.stats.started = stats.started
            self.engine.add(sequence)
            self._strides[sequence] = deque()
        return Answer(self, sequence, settings)

    def warm_up(self) -> None:
        """Prepare every decoder whose parts are loaded, so that nothing is measured later, while requests wait."""
        for name in (each for each in DECODERS if not self.resources.must_load(each)):
            with suppress(InputError):
                self.prepare(name)
        # If rows are nearly free, reading a prompt does not delay other answers.
        self.engine.scheduler.shared_prefill_rows = PREFILL_ROWS if self.resources.is_wide else _SHARED_PREFILL_ROWS

    def prepare(self, decoder: str | DecodeSettings) -> None:
        """Measure a decoder's costs and capture a backend's own steps now, not in the first answer's time."""
        if (drafts := self._policy(self.check(decoder)).own_drafts) is not None:
            self.engine.own_steps.warm_up(drafts, self.target.eos_ids)

    def scoring(self, tokens: list[int], alternatives: int = 0) -> Sequence:
        """A sequence that writes nothing. Its strides hold the probability of each token, from the second on, and those
        of the likeliest alternatives. The whole text is read again, even if cached; the context ends with it."""
        return Sequence(tokens, _GREEDY, self._scoring, self.target.eos_ids, len(tokens), alternatives=alternatives)

    def sequence(self, tokens: list[int], params: SamplingParams, settings: DecodeSettings) -> Sequence:
        """A sequence that answers these tokens, not added to the engine yet; `settings` has passed `check`."""
        if unknown := [token for token in params.logit_bias if token >= self.target.vocabulary]:
            message = f"logit_bias names the token {unknown[0]}, but {self.target.name} has {self.target.vocabulary}"
            raise InputError(message, field="logit_bias")
        return Sequence(
            tokens=tokens,
            params=params,
            policy=self._policy(settings),
            eos_ids=self.target.eos_ids,
            context_length=self.target.context_length,
        )

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams = ..., *, decoder: str | DecodeSettings = ..., raw: bool = ...
    ) -> Result: ...

    @overload
    def generate(
        self, prompt: Prompts, params: SamplingParams = ..., *, decoder: str | DecodeSettings = ..., raw: bool = ...
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        params: SamplingParams = _GREEDY,
        *,
        decoder: str | DecodeSettings = AUTO,
        raw: bool = False,
    ) -> Result | list[Result]:
        """Answer a prompt, or a list of prompts as one batch, in the order of the list. Arguments as for `stream`."""
        if is_batch(prompt):
            return self._generate(prompt, params, decoder, raw)
        return self._generate([cast(Prompt, prompt)], params, decoder, raw)[0]

    def _generate(
        self, prompts: Items[Prompt], params: SamplingParams, decoder: str | DecodeSettings, raw: bool
    ) -> list[Result]:
        answers: list[Answer] = []
        try:
            for prompt in prompts:
                answers.append(self.stream(prompt, params, decoder=decoder, raw=raw))
            return [answer.result() for answer in answers]
        finally:
            for answer in answers:
                answer.close()

    async def astream(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        decoder: str | DecodeSettings = AUTO,
        raw: bool = False,
    ) -> AsyncIterator[Stride]:
        """`stream` for async callers: concurrent answers share the engine's steps, and the event loop stays free."""
        answer = await asyncio.to_thread(self.stream, prompt, params, decoder=decoder, raw=raw)
        try:
            while (stride := await asyncio.to_thread(next, answer, None)) is not None:
                yield stride
        finally:
            answer.close()

    def forget(self) -> None:
        """Forget cached prefixes, so that every text is read again: for timing answers to a repeated prompt."""
        with self._turn():
            self.engine.forward.cache.forget()

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """The prompt's token ids, checked against the model's limits."""
        return encode_prompt(self.target, prompt, raw=raw)

    def is_exact(self, sequence: Sequence, decoder: str) -> bool:
        """Whether the answer is the same as with one-token-at-a-time decoding."""
        return sequence.policy.exact and (self.target.is_verified_exactly or decoder == PLAIN)

    def explain(self, decoder: str | DecodeSettings = AUTO) -> list[str]:
        """What ran for a decoder so far, and what its planner has learnt and decided, as lines of text."""
        settings = self.check(decoder)
        with self._turn():
            return explain(self.engine, self._policy(settings), settings.decoder)

    def check(self, decoder: str | DecodeSettings) -> DecodeSettings:
        """The decoder's settings; raises InputError if this model does not support them."""
        settings = DecodeSettings(decoder) if isinstance(decoder, str) else decoder
        settings.check(
            has_draft=self.resources.has_draft,
            mask_k=0 if self.gate is None else self.gate.k,
            heads_k=self.resources.heads_k,
        )
        return settings

    def _policy(self, settings: DecodeSettings) -> Policy:
        # One per settings: sequences that share a policy are drafted together. A server's clients may send any
        # settings, so the least recently used policies are dropped.
        policy = self._policies.pop(settings, None) or make_policy(settings, self.resources)
        self._policies[settings] = policy
        while len(self._policies) > _MAX_POLICIES:
            del self._policies[next(iter(self._policies))]
        return policy

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the engine for one step or one change. Waiting callers queue, so that none takes two turns in a row."""
        with self._next_in_line:
            self._lock.acquire()
        try:
            self._remove_given_up()
            yield
            self._remove_given_up()
        finally:
            self._lock.release()

    def _pull(self, sequence: Sequence) -> Stride | None:
        """The next stride of a sequence. If there is none yet, the caller runs a step, for all sequences."""
        while True:
            with self._turn():
                if sequence in self._failures:
                    raise self._failures.pop(sequence)
                if (waiting := self._strides.get(sequence)) is None:
                    return None
                if waiting:
                    stride = waiting.popleft()
                    if stride.finish_reason:
                        del self._strides[sequence]
                    return stride
                self._step()

    def _step(self) -> None:
        try:
            for owner, event in self.engine.step():
                if isinstance(event, Stride):
                    self._strides[owner].append(event)
                else:
                    del self._strides[owner]
                    self._failures[owner] = event
        except BaseException as error:
            # All sequences took part in the step: every unfinished one has failed, and its next reader gets the error.
            self.engine.reset()
            for owner in [owner for owner in self._strides if owner.finish_reason is None]:
                del self._strides[owner]
                self._failures[owner] = error

    def _give_up(self, sequence: Sequence) -> None:
        """Cancel an answer. Never blocks, so it may be called from an event loop."""
        self._given_up.append(sequence)
        if self._lock.acquire(blocking=False):
            try:
                self._remove_given_up()
            finally:
                self._lock.release()

    def _remove_given_up(self) -> None:
        while self._given_up:
            sequence = self._given_up.popleft()
            self.engine.remove(sequence)
            self._strides.pop(sequence, None)
            self._failures.pop(sequence, None)


class Answer(Iterator[Stride]):
    """An answer that is being written: iterate for its strides; `result` waits for the whole; `close` cancels it.

    An answer that is garbage-collected before its end is cancelled as well.
    """

    def __init__(self, model: LanguageModel, sequence: Sequence, settings: DecodeSettings) -> None:
        self._model = model
        self.sequence = sequence
        self.decoder = settings.decoder
        self.strides: list[Stride] = []
        # Only recorded: a finaliser may run anywhere, even while this thread holds the lock.
        weakref.finalize(self, model._given_up.append, sequence).atexit = False

    def __next__(self) -> Stride:
        stride = self._model._pull(self.sequence)
        if stride is None:
            raise StopIteration
        self.strides.append(stride)
        return stride

    def result(self) -> Result:
        """Run to the end."""
        for _ in self:
            pass
        sequence = self.sequence
        if sequence.finish_reason is None or not self.strides or self.strides[-1].finish_reason is None:
            raise RuntimeError("this answer was closed before it was finished")
        return Result(
            text="".join(stride.text for stride in self.strides),
            token_ids=tuple(sequence.output),
            finish_reason=sequence.finish_reason,
            decoder=self.decoder,
            seed=sequence.seed,
            exact=self._model.is_exact(sequence, self.decoder),
            exact_to=self._model.target.description,
            backend=self._model.engine.forward.backend,
            stats=sequence.stats,
            strides=tuple(self.strides),
        )

    def close(self) -> None:
        self._model._give_up(self.sequence)
