"""A loaded model, independent of the backend that runs it, and everything that a backend loads with it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stridelm.contracts import Assistant, Forward, Heads

if TYPE_CHECKING:
    from stridelm.models.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Target(ABC):
    """A model: its tokenizer, and what the engine needs to know about it. Backends' subclasses hold the weights."""

    name: str
    tokenizer: "TextTokenizer"
    eos_ids: frozenset[int]
    context_length: int
    vocabulary: int
    fingerprint: str
    """Identifies the weights as stored, independent of the precision in which they run. Adapters name the fingerprint
    of the model that they were trained on."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The reference that exact decoding is compared with, in words."""

    @property
    @abstractmethod
    def is_verified_exactly(self) -> bool:
        """Whether verified decoding may be called exact: a row's output depends little or not at all on the other rows
        of the step."""

    @property
    @abstractmethod
    def device(self) -> str:
        """The device that it runs on, for records: `CPU`, or a GPU's name."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A second model, which proposes tokens."""

    target: Target
    forward: Forward

    def with_cache(self, tokens: int) -> "Draft":
        return Draft(self.target, self.forward.with_cache(tokens))


@dataclass(frozen=True, slots=True)
class OwnHeads:
    """Prediction heads that come with a model."""

    k: int
    """Tokens that they propose, the model's own included."""
    load: Callable[[], Heads]
    """Returns them; they are loaded once, at the first call."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that a backend loads: the model, and the parts that can draft for it."""

    target: Target
    forward: Forward
    """If it has a gate, steps may have mask rows."""
    draft: Draft | None = None
    """The draft model that the user gave."""
    heads: Heads | None = None
    """The prediction heads that the user gave."""
    own_draft: Callable[[], Draft] | None = None
    """Returns the draft model that comes with the model; it is loaded once, at the first call."""
    own_heads: OwnHeads | None = None
    assistant: Assistant | None = None
    """Drafts instead of a draft model, and reads the cache of `forward`."""

    @property
    def has_given_draft(self) -> bool:
        """Whether the user gave a second model to draft with, an assistant or a whole one."""
        return self.draft is not None or self.assistant is not None

    def with_caches(self, tokens: int) -> "LoadedModel":
        """The same model with new, empty caches of `tokens` tokens: for another engine."""
        draft = None if self.draft is None else self.draft.with_cache(tokens)
        forward = self.forward.with_cache(tokens)
        assistant = None if self.assistant is None else self.assistant.reading(forward)
        return replace(self, forward=forward, draft=draft, assistant=assistant)
