"""Trees of drafts from logits that were computed in parallel: one row of logits per future position.

Masks and prediction heads each predict the token at their own position; here a tree is grown from these predictions.
None of them saw the others' drafts. The sequential head, if there is one, reads the drafts one after the other and
adjusts the logits of the next position; so two branches of a tree get different continuations.

Shape letters: D positions of a chain, V vocabulary, C model width, N candidates, X nodes that are drafted from
together, S state of the sequential head.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stridelm import arrays
from stridelm.contracts import Gate
from stridelm.sampling import DRAFT_CANDIDATES, GREEDY_CANDIDATES, keep_allowed, perturbed_among
from stridelm.types import ROOT, Array, DraftTree, Sequence


@dataclass(slots=True)
class Chain:
    """Predictions for the positions after one row, by its masks or heads, and how many of them the text has passed."""

    logits_DV: Array
    hidden_DC: Array
    used: int = 0
    """Number of positions that the text has passed since."""
    state_1S: Array | None = None
    """The sequential head's state after reading the tokens at these positions."""
    candidates: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    """Depth -> likeliest tokens and their logits; found on demand."""
    top: Callable[[Array, int], tuple[Array, Array]] = arrays.top
    """Finds these: a backend may have something faster."""
    states: dict[tuple[int, ...], Array | None] = field(default_factory=dict)
    """Path of drafted tokens -> the sequential head's state after reading it."""

    @property
    def left(self) -> int:
        return len(self.hidden_DC) - self.used

    def at(self, level: int, count: int) -> tuple[Array, Array]:
        """The `count` likeliest tokens `level` positions ahead, and their logits. `count` is fixed for a chain."""
        depth = self.used + level
        if depth not in self.candidates:
            logits_V = self.logits_DV[depth]
            self.candidates[depth] = self.top(logits_V, min(count, len(logits_V)))
        return self.candidates[depth]

    def allowed_at(self, level: int, count: int, allowed_V: np.ndarray) -> tuple[Array, Array]:
        """Those of them that a grammar allows; if there are none, the likeliest of all allowed tokens."""
        tokens_N, logits_N = self.at(level, count)
        kept_N = arrays.placed(allowed_V, tokens_N)[tokens_N]
        if kept_N.any():
            return tokens_N[kept_N], logits_N[kept_N]
        logits_V = keep_allowed(self.logits_DV[self.used + level], allowed_V)
        return arrays.top(logits_V, min(DRAFT_CANDIDATES, int(allowed_V.sum())))


@dataclass(slots=True)
class _Bud:
    """A node, or the text itself, that may get children."""

    place: int
    """The index of its sequence."""
    node: int
    text: list[int]
    """All tokens up to it."""
    path: float
    """The probability that it and all its ancestors are accepted."""
    state_1S: Array | None
    """The sequential head's state before reading this node's token."""


class TreeGrower:
    """Draws with the target's own noise, filters and penalties, so that it often agrees under sampling, too."""

    def __init__(self, name: str, branches: int, gate: Gate | None = None) -> None:
        """`name`: the drafter's; `branches`: maximum number of children per node, and of nodes per depth that get
        children; `gate`: its sequential head, if it has one, reads the chosen tokens."""
        self.name = name
        self.branches = branches
        self._reader = gate

    def draft(self, sequences: list[Sequence], chains: list[Chain], *, depth: int, floor: float) -> list[DraftTree]:
        """Grow a tree off each text, depth by depth; the likeliest nodes of a depth get children. Nodes that are less
        likely to be accepted than `floor` are left out; so are tokens that a filter drops, and everything after an end
        of text."""
        trees = [_Growing() for _ in sequences]
        buds = [
            _Bud(place, ROOT, sequence.tokens, 1.0, chain.state_1S)
            for place, (sequence, chain) in enumerate(zip(sequences, chains, strict=True))
        ]
        for level in range(depth):
            buds = [bud for bud in buds if level < chains[bud.place].left]
            if not buds:
                break
            going = [chains[bud.place] for bud in buds]
            moved_XC, states = self._read(going, level, [bud.text[-1] for bud in buds], [bud.state_1S for bud in buds])
            children: list[_Bud] = []
            for place in sorted({bud.place for bud in buds}):
                own = [number for number, bud in enumerate(buds) if bud.place == place]
                chain, sequence = chains[place], sequences[place]
                texts = [buds[number].text for number in own]
                own_XC = None if moved_XC is None else moved_XC[own]
                for number, choices in zip(own, self._choices(chain, level, sequence, texts, own_XC), strict=True):
                    bud = buds[number]
                    chain.states[tuple(bud.text[-1 - level :])] = states[number]
                    for token, score in choices:
                        path = bud.path * score
                        if score > 0 and path >= floor:
                            node = trees[place].add(token, bud.node, score)
                            if token not in sequence.eos_ids:
                                children.append(_Bud(place, node, [*bud.text, token], path, states[number]))
            buds = self._likeliest_buds(children)
        return [tree.whole(self.name) for tree in trees]

    def _read(
        self, chains: list[Chain], level: int, before: list[int], states: list[Array | None]
    ) -> tuple[Array | None, list[Array | None]]:
        """What the sequential head adds to the outputs `level` positions ahead after reading the token before each, and
        its new states."""
        if self._reader is None or not self._reader.state_size:
            return None, states
        hidden_XC = arrays.stack([chain.hidden_DC[chain.used + level] for chain in chains])
        zero_1S = self._reader.start(1)
        state_XS = arrays.join([zero_1S if state is None else state for state in states])
        moved_XC, state_XS = self._reader.read(hidden_XC, before, state_XS)
        return moved_XC, [state_XS[row : row + 1] for row in range(len(chains))]

    def _choices(
        self, chain: Chain, level: int, sequence: Sequence, texts: list[list[int]], moved_XC: Array | None
    ) -> list[list[tuple[int, float]]]:
        """After each text, the tokens that the target will most likely draw, and their probabilities."""
        if sequence.grammar is None:
            candidates = chain.at(level, self.count(sequence))
            return self._likeliest(*self._moved(candidates, len(texts), moved_XC), sequence, texts)
        choices: list[list[tuple[int, float]]] = []
        for number, text in enumerate(texts):  # each has candidates of its own
            allowed_V = sequence.grammar.allowed(text[sequence.prompt_length :])
            candidates = chain.allowed_at(level, self.count(sequence), allowed_V)
            moved_1C = None if moved_XC is None else moved_XC[number : number + 1]
            if len(candidates[0]):
                choices += self._likeliest(*self._moved(candidates, 1, moved_1C), sequence, [text])
            else:
                choices.append([])
        return choices

    def count(self, sequence: Sequence) -> int:
        """Number of candidates. Sampling noise can lift tokens far down the list; the sequential head alone cannot, so
        greedy decoding needs fewer."""
        is_greedy = sequence.params.temperature == 0 and not sequence.params.weighs_text
        return max(self.branches, GREEDY_CANDIDATES) if is_greedy else DRAFT_CANDIDATES

    def _moved(self, candidates: tuple[Array, Array], count: int, moved_XC: Array | None) -> tuple[Array, Array]:
        """Candidates, and their logits after each of `count` texts, adjusted by the sequential head."""
        tokens_N, logits_N = candidates
        logits_XN = arrays.repeat(logits_N, count)
        if moved_XC is not None and self._reader is not None:
            logits_XN = self._reader.moved(tokens_N, logits_XN, moved_XC)
        return tokens_N, logits_XN

    def _likeliest(
        self, tokens_N: Array, logits_XN: Array, sequence: Sequence, texts: list[list[int]]
    ) -> list[list[tuple[int, float]]]:
        """`_choices` among these candidates."""
        if not sequence.is_plain_greedy:
            scores = [
                perturbed_among(tokens_N, logits_N, sequence, text)
                for logits_N, text in zip(logits_XN, texts, strict=True)
            ]
            logits_XN = arrays.stack(scores)
        tokens = tokens_N.tolist()
        best = arrays.best_shares(logits_XN, min(self.branches, len(tokens)))
        return [[(tokens[place], share) for place, share in each] for each in best]

    def _likeliest_buds(self, buds: list[_Bud]) -> list[_Bud]:
        """The likeliest nodes of each sequence, which get children; in the order of the sequences."""
        kept: list[_Bud] = []
        for place in sorted({bud.place for bud in buds}):
            own = sorted((bud for bud in buds if bud.place == place), key=lambda bud: -bud.path)
            kept += own[: self.branches]
        return kept


class _Growing:
    """Builds a tree node by node."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []

    def add(self, token: int, parent: int, score: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        return len(self.tokens) - 1

    def whole(self, source: str) -> DraftTree:
        return DraftTree.of(self.tokens, self.parents, source, self.scores)
