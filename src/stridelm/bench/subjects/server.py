"""An OpenAI-compatible server behind a URL. A chunk of its stream counts as a stride.

Such a server may reuse cached prompts of earlier questions: there is no request that makes it forget them.
"""

import os
import time
from typing import Any

from stridelm.bench.records import Answer, Question
from stridelm.bench.subjects import WARM_UP
from stridelm.chat.openai_stream import Endpoint
from stridelm.chat.remote import RemoteReply, find_model
from stridelm.chat.speaker import Report

KEYS = ("STRIDELM_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the server's key; the first that is set is used."""


class Server:
    """One model of a server."""

    def __init__(self, url: str, model: str | None = None) -> None:
        """`model`: by default the first that the server lists."""
        self._endpoint = Endpoint(url, next((os.environ[name] for name in KEYS if os.environ.get(name)), None))
        self._model = model
        self.name = url if model is None else f"{model} at {url}"
        self.about: dict[str, Any] = {"url": url, "model": model, "exact": None}

    def start(self) -> None:
        self._model = find_model(self._endpoint, self._model)
        self.about["model"] = self._model

    def warm_up(self) -> None:
        _, report = self._ask(WARM_UP)
        self.about |= {
            "decoder": report.decoder,
            "exact": report.exact,
            "exact_to": report.exact_to,
            "tokens": "counted by the server" if report.tokens is not None else "not told: a chunk is taken for one",
        }

    def ask(self, question: Question) -> Answer:
        return self._ask(question)[0]

    def _ask(self, question: Question) -> tuple[Answer, Report]:
        body = {
            "model": self._model,
            "messages": list(question.messages),
            "max_tokens": question.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        pieces: list[str] = []
        moments: list[float] = []
        started = time.perf_counter()
        reply = RemoteReply(self._endpoint, body)
        try:
            for piece in reply:
                pieces.append(piece)
                moments.append(time.perf_counter() - started)
        finally:
            reply.close()
        seconds = time.perf_counter() - started
        report = reply.report()
        answer = Answer(
            tokens=(),
            text="".join(pieces),
            stride_tokens=chunk_tokens([len(piece) for piece in pieces], report.tokens, report.strides),
            stride_seconds=tuple(moments),
            seconds=seconds,
            prompt_tokens=report.prompt_tokens or 0,
            forwards=report.forwards,
            own_forwards=report.own_forwards,
            backend=report.backend,
        )
        return answer, report

    def close(self) -> None:
        """Nothing to close: every request has its own connection."""


def chunk_tokens(lengths: list[int], total: int | None, strides: tuple[int, ...]) -> tuple[int, ...]:
    """How many tokens came with each chunk, given the chunks' lengths in characters, which are above 0.

    A server that reports its strides sends one per chunk; a last stride without text, the end of the text, is added to
    the chunk before. If only the total number of tokens is known, every chunk gets one, if there are enough, and the
    others are shared out by length: a guess with the right sum. Otherwise each chunk counts as one token.
    """
    chunks = len(lengths)
    if total is None or not chunks:
        return (1,) * chunks
    if sum(strides) == total and chunks <= len(strides) <= chunks + 1:
        return (*strides[: chunks - 1], sum(strides[chunks - 1 :]))
    least = int(total >= chunks)
    shared, tokens = total - least * chunks, list[int]()
    characters = given = 0
    for length in lengths:
        characters += length
        more = round(shared * characters / sum(lengths)) - given
        given += more
        tokens.append(least + more)
    return tuple(tokens)
