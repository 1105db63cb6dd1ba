"""What a sequence may ask of steps that a backend runs by itself. Fails closed: one that sets a field which the stepper
does not name takes the host's steps, so a new filter cannot be dropped silently."""

from dataclasses import MISSING, dataclass, fields
from typing import Any

from stridelm.contracts import Stepper
from stridelm.params import SamplingParams
from stridelm.types import Sequence

ENGINE_FIELDS = frozenset({
    *("tokens", "params", "policy", "context_length", "prompt_length", "most_tokens", "cached", "allowance"),
    *("arrival", "is_held", "reads_anew", "table", "stats", "finish_reason", "stop", "optional_alternatives"),
})  # fmt: skip
"""Fields of SamplingParams and Sequence that the engine sees to, in own steps and in the host's."""


@dataclass(frozen=True, slots=True)
class StepKind:
    """What is known of steps before they are used."""

    rows: int
    """Of one place."""
    max_in_flight: int
    params: tuple[tuple[str, Any], ...]
    """Fields of SamplingParams that it does not obey, with the values that ask for nothing."""
    fields: tuple[tuple[str, Any], ...]
    """The same of Sequence."""

    @classmethod
    def of(cls, stepper: Stepper) -> "StepKind":
        obeyed = stepper.obeys | ENGINE_FIELDS
        return cls(stepper.rows, stepper.max_in_flight, _others(SamplingParams, obeyed), _others(Sequence, obeyed))

    def ignored(self, params: SamplingParams) -> list[str]:
        """Fields that are set and that it does not obey."""
        return [name for name, default in self.params if getattr(params, name) != default]

    def obeys(self, sequence: Sequence) -> bool:
        """Asked for every sequence and step."""
        params = sequence.params
        for name, default in self.params:
            if getattr(params, name) != default:
                return False
        return all(getattr(sequence, name) == default for name, default in self.fields)


def _others(kind: type, obeyed: frozenset[str]) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass that are not obeyed, with their defaults. One without a default always asks for
    something: no value equals MISSING."""
    found: list[tuple[str, Any]] = []
    for each in fields(kind):
        if each.name not in obeyed:
            found.append((each.name, each.default if each.default_factory is MISSING else each.default_factory()))
    return tuple(found)
