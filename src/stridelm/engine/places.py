"""Where rollouts are written: a number of places, each of which holds a text, one more token for all of them a step."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Prompt:
    """One answer to be written."""

    tokens: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


class Places(Protocol):
    """What `contracts.Stepper` is to a cache with tables, for texts that stay where they begin: these are read, too."""

    most_in_flight: int
    """Steps that may be launched and not collected."""

    def begin(self, prompts: Mapping[int, Prompt]) -> None:
        """Read prompts into these places, which are nobody's. Steps that are launched from now on write answers."""
        ...

    def end(self, place: int) -> None:
        """The place is nobody's. Until this is said its text may go on."""
        ...

    def launch(self) -> None:
        """Start a step of all places."""
        ...

    def collect(self) -> Items[Items[int]]:
        """Wait for the earliest step in flight: the tokens that it wrote at each place. What it wrote at places that
        were nobody's, or whose answer was whole, means nothing."""
        ...
