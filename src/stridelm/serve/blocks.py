"""An answer as a line of blocks, text and calls, for APIs whose replies consist of such."""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from stridelm.serve.chat_answers import ChatAnswers, Part
from stridelm.serve.errors import ApiError
from stridelm.serve.respond import Reply, Strides
from stridelm.serve.tools.reader import CallPart
from stridelm.serve.trace import Forward


@dataclass(slots=True)
class Block:
    """One block."""

    index: int
    name: str | None = None
    """The function that is called; None: the block is text."""
    content: str = ""
    """The text, or the arguments as JSON."""
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to a block."""

    what: Literal["opened", "grew", "closed"]
    block: Block
    piece: str = ""
    """What it grew by."""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    """Those of the piece."""


class Blocks:
    """Turns parts of an answer into blocks. One block is open at a time."""

    def __init__(self) -> None:
        self.made: list[Block] = []
        self._is_open = False
        self._logprobs: list[dict[str, Any]] = []
        """Those of tokens whose text is not there yet."""

    def add(self, part: Part) -> Iterator[Change]:
        self._logprobs += part.logprobs
        for piece in part.pieces:
            if isinstance(piece, CallPart):
                self._logprobs = []  # those of a call have no place in replies
                if piece.name is not None:
                    yield from self._open(piece.name)
                yield from self._grow(piece.arguments)
            else:
                if not self._is_open or self.made[-1].name is not None:
                    yield from self._open(None)
                yield from self._grow(piece)

    def close(self) -> Iterator[Change]:
        """At the end of the answer. An answer without any text is one empty block."""
        if not self.made:
            yield from self._open(None)
        if self._is_open:
            if self._logprobs and self.made[-1].name is None:
                yield from self._grow("")
            self._is_open = False
            yield Change("closed", self.made[-1])

    def _open(self, name: str | None) -> Iterator[Change]:
        if self._is_open:
            yield Change("closed", self.made[-1])
        self.made.append(Block(len(self.made), name))
        self._is_open = True
        yield Change("opened", self.made[-1])

    def _grow(self, piece: str) -> Iterator[Change]:
        block, logprobs = self.made[-1], self._logprobs
        if piece or logprobs:
            block.content += piece
            block.logprobs += logprobs
            self._logprobs = []
            yield Change("grew", block, piece, logprobs)


@dataclass(slots=True)
class WholeAnswer:
    """A whole answer."""

    blocks: list[Block]
    finish_reason: str = "length"
    """As /v1/chat/completions names it. If no tokens were requested, there is none else."""
    trace: list[Forward] = field(default_factory=list)


class BlockForm(Protocol):
    """How one API writes one answer."""

    def opening(self) -> Iterable[Reply]:
        """The events before the first block."""
        ...

    def change(self, change: Change, answer: WholeAnswer | None) -> Iterable[Reply]:
        """The events for a change. `answer`: only if the block is closed because the answer is over."""
        ...

    def ending(self, answer: WholeAnswer) -> Iterable[Reply]:
        """The events after the last block."""
        ...

    def whole(self, answer: WholeAnswer) -> Reply:
        """The reply, if it is not streamed."""
        ...

    def failure(self, error: ApiError) -> Reply:
        """The last event of a stream that failed."""
        ...


class BlockWriter:
    """The reply to one request for one answer."""

    def __init__(self, answers: ChatAnswers, form: BlockForm) -> None:
        self._answers, self._form = answers, form
        self._answer = WholeAnswer([])
        self.failure = form.failure

    async def whole(self, strides: Strides) -> Reply:
        async for _ in self._events(strides):
            pass
        return self._form.whole(self._answer)

    async def chunks(self, strides: Strides) -> AsyncIterator[Reply]:
        async for event in self._events(strides):
            yield event
        for event in self._form.ending(self._answer):
            yield event

    async def _events(self, strides: Strides) -> AsyncIterator[Reply]:
        """The events up to the last block's."""
        form, blocks, answer = self._form, Blocks(), self._answer
        answer.blocks = blocks.made
        has_begun = False
        async for index, stride in strides:
            if not has_begun:  # only now, so that an earlier failure can be reported by its HTTP status
                has_begun = True
                for event in form.opening():
                    yield event
            part = self._answers.part(index, stride)
            answer.trace += part.trace
            answer.finish_reason = part.finish_reason or answer.finish_reason
            for change in blocks.add(part):
                for event in form.change(change, None):
                    yield event
        if not has_begun:  # if no tokens were requested
            for event in form.opening():
                yield event
        for change in blocks.close():
            for event in form.change(change, answer):
                yield event
