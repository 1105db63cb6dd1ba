"""Drafters that know the answer: always right, always wrong, or right somewhere in a tree."""

import random

from stridelm.types import ROOT, Block, Commit, DraftTree, Output, Sequence


class FakeDrafter:
    """Knows what every prompt's answer will be."""

    name = "fake"
    layers = ()
    reads_whole_texts = is_optional = reads_predictions = False

    def __init__(self, answers: dict[tuple[int, ...], list[int]], k: int = 5) -> None:
        self.answers = answers
        self.k = k
        self.random = random.Random(7)

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        return [self.tree(self._future(sequence)) for sequence in sequences]

    def tree(self, future: list[int]) -> DraftTree:
        raise NotImplementedError

    def _future(self, sequence: Sequence) -> list[int]:
        answer = self.answers[tuple(sequence.tokens[: sequence.prompt_length])]
        written = len(sequence.tokens) - sequence.prompt_length
        return answer[written : written + self.k]

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        for sequence, commit in zip(sequences, commits, strict=True):
            assert not commit.tokens or tuple(sequence.tokens[-len(commit.tokens) :]) == commit.tokens

    def release(self, sequence: Sequence) -> None: ...


class AlwaysRight(FakeDrafter):
    def tree(self, future: list[int]) -> DraftTree:
        return DraftTree.chain(future, self.name)


class AlwaysWrong(FakeDrafter):
    def tree(self, future: list[int]) -> DraftTree:
        return DraftTree.chain([(token + 1) % 200 for token in future], self.name)


class SomewhereRight(FakeDrafter):
    """A random tree; the right continuation is one of its paths, broken off at a random depth."""

    def tree(self, future: list[int]) -> DraftTree:
        right = future[: self.random.randint(0, len(future))]
        tokens: list[int] = []
        parents: list[int] = []
        on_path = ROOT
        for token in right:
            for _ in range(self.random.randint(0, 2)):
                self._add(tokens, parents, self.random.randrange(200), self.random.randint(ROOT, len(tokens) - 1))
            on_path = self._add(tokens, parents, token, on_path)
        for _ in range(self.random.randint(0, 3)):
            self._add(tokens, parents, self.random.randrange(200), self.random.randint(ROOT, len(tokens) - 1))
        return DraftTree(tuple(tokens), tuple(parents), (self.name,) * len(tokens), (1.0,) * len(tokens))

    @staticmethod
    def _add(tokens: list[int], parents: list[int], token: int, parent: int) -> int:
        """Append a node, or find the sibling that holds the token already; returns its index."""
        for index, held in enumerate(zip(tokens, parents, strict=True)):
            if held == (token, parent):
                return index
        tokens.append(token)
        parents.append(parent)
        return len(tokens) - 1
