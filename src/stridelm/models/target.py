"""What is known of a loaded model, whichever backend runs it; and all that a backend loads."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stridelm.contracts import Assistant, Forward, Heads

if TYPE_CHECKING:
    from stridelm.models.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Target(ABC):
    """A model, with its tokenizer and what the engine needs to know of it. A backend's own kind holds the weights."""

    name: str
    tokenizer: "TextTokenizer"
    eos_ids: frozenset[int]
    context_length: int
    vocabulary: int
    fingerprint: str
    """Of the weights as stored, whatever precision they run in: what an adapter was trained on."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What a claim of exactness is with respect to."""

    @property
    @abstractmethod
    def is_verified_exactly(self) -> bool:
        """Whether verified decoding may be called exact: what a row says depends on the rows beside it hardly or not at
        all."""

    @property
    @abstractmethod
    def device(self) -> str:
        """What it runs on, for records: `CPU`, or a GPU's name."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A second model, which proposes."""

    target: Target
    forward: Forward

    def with_cache(self, tokens: int) -> "Draft":
        return Draft(self.target, self.forward.with_cache(tokens))


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a backend loads: the model, and what there is to decode it with."""

    target: Target
    forward: Forward
    """Its gate, where it has one, lets steps hold masks."""
    draft: Draft | None = None
    """The draft model that the user gave."""
    heads: Heads | None = None
    """The prediction heads that the user gave."""
    own_draft: Callable[[], Draft] | None = None
    """Gives the draft model that comes with the model: loaded when first called, and once."""
    own_heads: Callable[[], Heads] | None = None
    """The same for prediction heads."""
    assistant: Assistant | None = None
    """Drafts in a draft model's place, over the cache of `forward`."""

    @property
    def has_given_draft(self) -> bool:
        """Whether the user gave a second model to draft with, an assistant or a whole one."""
        return self.draft is not None or self.assistant is not None

    def with_caches(self, tokens: int) -> "LoadedModel":
        """The same with other, empty caches of `tokens` tokens: for another engine."""
        draft = None if self.draft is None else self.draft.with_cache(tokens)
        forward = self.forward.with_cache(tokens)
        assistant = None if self.assistant is None else self.assistant.reading(forward)
        return replace(self, forward=forward, draft=draft, assistant=assistant)
