"""The contracts that decoding is made of. A new drafter or policy is one file that keeps one of them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Protocol

from stridelm.types import Block, Commit, DraftTree, Output, Sequence

if TYPE_CHECKING:
    import torch


class Grammar(Protocol):
    """What one answer must keep to. Seen from outside, a pure function of the tokens written: who asks for a path and
    then for a shorter one gets what the shorter one allows."""

    def allowed(self, written: Items[int]) -> torch.Tensor:
        """V booleans: which tokens may follow these tokens of the answer, those that end it among them."""
        ...

    def accepts(self, written: Items[int], tokens: Items[int]) -> int:
        """How many of these tokens may follow, one behind the other."""
        ...


class Drafter(Protocol):
    """Proposes continuations. May propose nothing; is never trusted.

    One that reads the target's keys and values finds them where the engine does: in the target's cache, by way of
    `sequence.table`.
    """

    name: str
    layers: tuple[int, ...]
    """The layers of the target whose inputs it wants to see in `observe`; empty for most. The target's number of layers
    stands for its output head, whose input lies behind the last norm."""
    reads_whole_texts: bool
    """Whether it must see every token of a text in `observe`. If not, a text may begin with what the cache has kept of
    another one, and its first tokens are never run."""

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]: ...

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """Learn from a step: what was run, what the model said, what was accepted. Called after the commits are part of
        the sequences."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended, or is read again from its start: forget it."""
        ...


class Policy(Protocol):
    """Decides the rows of a step and which of its tokens stand."""

    exact: bool
    needed_rows: int
    """Rows beyond the pending ones that a step must have room for, as far as the answer may still grow."""
    spare_rows: int
    """Rows beyond the pending ones that a step can use if there is room for them."""
    reads_whole_texts: bool
    """Whether one of its drafters must see every token of a text."""

    def plan(self, sequences: list[Sequence], others: int = 0) -> list[Block]:
        """`others`: rows that the step has besides those of these sequences."""
        ...

    def commit(self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output]) -> list[Commit]:
        """`outputs` holds, per sequence, what the model says of its block's wanted rows."""
        ...

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None: ...

    def release(self, sequence: Sequence) -> None: ...
