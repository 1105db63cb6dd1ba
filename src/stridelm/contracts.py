"""The two contracts that decoding is made of. A new drafter or policy is one file that keeps one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stridelm.types import Block, Commit, DraftTree, Sequence

if TYPE_CHECKING:
    import torch


class Drafter(Protocol):
    """Proposes continuations. May propose nothing; is never trusted."""

    name: str

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]: ...

    def observe(self, sequences: list[Sequence], commits: list[Commit]) -> None:
        """Learn from what was accepted. Called after the commits are part of the sequences."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended: forget it."""
        ...


class Policy(Protocol):
    """Decides the rows of a step and which of its tokens stand."""

    exact: bool

    def plan(self, sequences: list[Sequence]) -> list[Block]: ...

    def commit(self, sequences: list[Sequence], blocks: list[Block], logits: list[torch.Tensor]) -> list[Commit]:
        """`logits` holds, per sequence, the logits of its block's wanted rows."""
        ...

    def observe(self, sequences: list[Sequence], commits: list[Commit]) -> None: ...

    def release(self, sequence: Sequence) -> None: ...
