"""A grammar's state in one answer: which tokens may follow, by a matcher that goes back when drafts are rejected.

Masks are bits in llguidance's order, token 8 * i + j being bit j of byte i; its own are sometimes a word longer. Shape
letters: V vocabulary, M bytes of a mask.
"""

import copy
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from stridelm.models.target import Target
from stridelm.models.tokenizer import TextTokenizer
from stridelm.verify import agreement

_KEPT = 64
"""Number of masks that are kept: in a step, first the drafters ask for a path's mask, and then the target does."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokens, as grammars see them."""

    tokenizer: LLTokenizer
    size: int
    """Number of tokens that the model scores; it may be smaller or larger than the tokenizer's."""
    eos_ids: frozenset[int]
    text_M: np.ndarray
    """The tokens that represent text: neither special ones nor those that the tokenizer does not know."""
    eos_M: np.ndarray

    @classmethod
    def of(cls, target: Target) -> "Vocabulary":
        """Raises a ValueError for tokenizers that llguidance cannot use."""
        eos_ids, size = target.eos_ids, target.vocabulary
        known = len(target.tokenizer)
        ends = sorted(token for token in eos_ids if token < known)
        if not ends:
            raise ValueError("it has no token that ends a text")
        tokenizer = LLTokenizer(_description(target.tokenizer), n_vocab=max(size, known), eos_token=ends)
        special = {token for token, added in target.tokenizer.added_tokens_decoder.items() if added.special}
        text_V = np.zeros(tokenizer.vocab_size, dtype=bool)
        text_V[: min(size, known)] = True
        text_V[[token for token in special | eos_ids if token < len(text_V)]] = False
        eos_V = np.zeros(tokenizer.vocab_size, dtype=bool)
        eos_V[[token for token in eos_ids if token < size]] = True
        return cls(tokenizer, size, eos_ids, _packed(text_V), _packed(eos_V))

    def is_text(self, token: int) -> bool:
        return token < self.size and bool(self.text_M[token // 8] >> (token % 8) & 1)


@dataclass(slots=True)
class Compiled:
    """A compiled grammar, which many answers may share."""

    beginning: LLMatcher
    """A matcher that has consumed nothing. It is only copied; the copies share what its lexer has computed."""
    vocabulary: Vocabulary
    is_spent: bool = False
    """Whether one of its matchers reached a limit of llguidance, and may have used up what they share."""


class Matcher:
    """Implements `contracts.Grammar`. Has consumed some tokens of the answer, and moves to the path that is asked for.

    llguidance's matcher reads only the text. End-of-text tokens are handled here, so that they are allowed exactly
    where the text may end.
    """

    def __init__(self, compiled: Compiled) -> None:
        self._compiled, self._vocabulary = compiled, compiled.vocabulary
        self._matcher = compiled.beginning.deep_copy()
        self._read: tuple[int, ...] = ()
        """The tokens that the matcher has consumed."""
        self._kept, self._kept_path = compiled.beginning, self._read
        """A matcher where it last went back to, only copied, and the tokens that it has consumed. llguidance's own
        rollback may leave another state than consuming would, which then allows what the grammar forbids."""
        self._masks: dict[tuple[int, ...], np.ndarray] = {}

    def allowed(self, written: Items[int]) -> np.ndarray:
        path = tuple(written)
        if path not in self._masks:
            if len(self._masks) >= _KEPT:
                del self._masks[next(iter(self._masks))]
            self._masks[path] = self._mask(path)
        allowed_V = np.unpackbits(self._masks[path], count=self._vocabulary.size, bitorder="little")
        return allowed_V.view(bool)

    def accepts(self, written: Items[int], tokens: Items[int]) -> int:
        if not self._move_to(tuple(written)):
            return 0
        vocabulary = self._vocabulary
        length = next((at for at, token in enumerate(tokens) if not vocabulary.is_text(token)), len(tokens))
        count = self._matcher.validate_tokens(list(tokens[:length]))
        if self._recovered():
            return 0
        if count == length < len(tokens) and tokens[length] in vocabulary.eos_ids:
            return count + self._may_end((*written, *tokens[:length]))
        return count

    def _mask(self, path: tuple[int, ...]) -> np.ndarray:
        vocabulary = self._vocabulary
        nothing_M = np.zeros_like(vocabulary.text_M)
        if not self._move_to(path):
            return nothing_M
        mask_M = np.frombuffer(self._matcher.compute_bitmask(), np.uint8, len(nothing_M)) & vocabulary.text_M
        ends = self._matcher.is_accepting()
        if self._recovered():
            return nothing_M
        return mask_M | vocabulary.eos_M if ends else mask_M

    def _may_end(self, path: tuple[int, ...]) -> bool:
        ends = self._move_to(path) and self._matcher.is_accepting()
        return ends and not self._recovered()

    def _move_to(self, path: tuple[int, ...]) -> bool:
        """Move the matcher to the end of this path, back or forth; returns whether that was possible."""
        shared = agreement(self._read, path)
        if shared < len(self._read) and not self._go_back(path[:shared]):
            return False
        return self._consume(path[shared:])

    def _go_back(self, path: tuple[int, ...]) -> bool:
        """Go back to a path that was consumed before."""
        if agreement(self._kept_path, path) < len(self._kept_path):
            self._kept, self._kept_path = self._compiled.beginning, ()
        self._matcher, self._read = self._kept.deep_copy(), self._kept_path
        if not self._consume(path[len(self._read) :]):
            return False
        self._kept, self._kept_path = self._matcher.deep_copy(), path
        return True

    def _consume(self, tokens: tuple[int, ...]) -> bool:
        """Returns whether all of them were possible."""
        if not all(self._vocabulary.is_text(token) for token in tokens):
            return False
        count = self._matcher.try_consume_tokens(list(tokens)) if tokens else 0
        self._read += tokens[:count]
        return not self._recovered() and count == len(tokens)

    def _recovered(self) -> bool:
        """Whether the matcher had failed, at a limit of llguidance, and was replaced: a failed matcher stays in that
        state, and would let any text end."""
        if not self._matcher.is_error():
            return False
        self._compiled.is_spent = True
        self._restart()
        return True

    def _restart(self) -> None:
        self._kept, self._kept_path = self._compiled.beginning, ()
        self._matcher, self._read = self._kept.deep_copy(), ()


def _description(tokenizer: TextTokenizer) -> str:
    """The tokenizer in the format of tokenizer.json, with tokens from other files, without padding or truncation."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError("its tokenizer has no tokenizer.json, and cannot be made one")
    if backend.padding or backend.truncation:
        backend = copy.copy(backend)
        backend.no_padding()
        backend.no_truncation()
    return backend.to_str()


def _packed(flags_V: np.ndarray) -> np.ndarray:
    return np.packbits(flags_V, bitorder="little")
