"""Answers from a model in this process."""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from stridelm.api import Answer, LanguageModel
from stridelm.chat.conversation import Conversation
from stridelm.chat.speaker import Messages, Report
from stridelm.models.encode import PromptTooLong
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings
from stridelm.stats import path_in_words

_ONE_TOKEN = SamplingParams(max_tokens=1)


class LocalSpeaker:
    """A loaded model."""

    def __init__(self, model: LanguageModel, params: SamplingParams, decode: DecodeSettings) -> None:
        self._model = model
        self._params = params
        self._decode = self._ready(decode)
        self.description = model.target.name

    @property
    def decoder(self) -> str:
        return self._decode.decoder

    def decode_by(self, decoder: str) -> None:
        self._decode = self._ready(DecodeSettings(decoder))

    def _ready(self, decode: DecodeSettings) -> DecodeSettings:
        """Write one token: a model that cannot chat is refused before the first question, and the time for what is
        loaded or measured once does not count in the first answer."""
        self._model.generate([{"role": "user", "content": "?"}], _ONE_TOKEN, decoder=decode)
        return decode

    def ask(self, messages: Messages) -> "LocalReply":
        with _interrupts_delayed() as interrupts:
            answer = self._model.stream(messages, self._params, decoder=self._decode)
        return LocalReply(self._model, answer, interrupts)

    def shorten(self, conversation: Conversation) -> int:
        """The question itself stays, however long: if it does not fit, the engine reports that."""
        before = len(conversation.turns)
        while len(conversation.turns) > 1 and not self._fits(conversation.messages()):
            del conversation.turns[0]
        return before - len(conversation.turns)

    def _fits(self, messages: Messages) -> bool:
        try:
            tokens = len(self._model.encode(messages))
        except PromptTooLong:
            return False
        context = self._model.target.context_length
        # A very large max_tokens must not cost the whole history.
        room = min(self._params.max_tokens, context // 2)
        return tokens + room <= context and min(tokens + self._params.max_tokens, context) <= self._model.max_length


class LocalReply:
    """An answer that the engine writes; each piece is a stride."""

    def __init__(self, model: LanguageModel, answer: Answer, interrupts: list[int]) -> None:
        self._model = model
        self._answer = answer
        self._interrupts = interrupts

    def __iter__(self) -> "LocalReply":
        return self

    def __next__(self) -> str:
        if self._interrupts:
            raise KeyboardInterrupt
        with _interrupts_delayed() as self._interrupts:
            return next(self._answer).text

    def report(self) -> Report:
        sequence = self._answer.sequence
        strides = tuple(len(stride.tokens) for stride in self._answer.strides)
        stats = sequence.stats
        return Report(
            seconds=stats.latency,
            first=stats.ttft if strides else None,
            tokens=sum(strides),
            forwards=len(strides),
            strides=strides,
            histogram=Counter(strides),
            decoder=self._answer.decoder,
            exact=self._model.is_exact(sequence, self._answer.decoder),
            exact_to=self._model.target.description,
            path=path_in_words(self._model.engine.forward.backend, stats.forwards, stats.own_forwards),
            finish_reason=sequence.finish_reason,
        )

    def close(self) -> None:
        self._answer.close()


@contextmanager
def _interrupts_delayed() -> Iterator[list[int]]:
    """Delay Ctrl-C until the engine has finished its step, since it may hold a lock. A second Ctrl-C is not delayed."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
