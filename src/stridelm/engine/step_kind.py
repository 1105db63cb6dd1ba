"""Which sequences may take steps that a backend runs by itself. Fails closed: a sequence that sets a field which the
stepper does not name takes the host's steps, so a new filter cannot be dropped silently."""

from dataclasses import MISSING, dataclass, fields
from typing import Any

from stridelm.params import SamplingParams
from stridelm.stepper import Stepper
from stridelm.types import Sequence

ENGINE_FIELDS = frozenset({
    *("tokens", "params", "policy", "context_length", "prompt_length", "most_tokens", "cached", "allowance"),
    *("arrival", "is_held", "reads_anew", "table", "stats", "finish_reason", "stop", "stopped_by"),
    "optional_alternatives",
})  # fmt: skip
"""Fields of SamplingParams and Sequence that the engine handles itself, in own steps and in the host's."""


@dataclass(frozen=True, slots=True)
class StepKind:
    """Properties of a stepper's steps, known before any is run."""

    rows: int
    """Rows per place."""
    max_in_flight: int
    plans: bool
    params: tuple[tuple[str, Any], ...]
    """Fields of SamplingParams that the steps do not obey, with their defaults."""
    fields: tuple[tuple[str, Any], ...]
    """The same for Sequence."""

    @classmethod
    def of(cls, stepper: Stepper) -> "StepKind":
        obeyed = stepper.obeys | ENGINE_FIELDS
        ignored = _others(SamplingParams, obeyed), _others(Sequence, obeyed)
        return cls(stepper.rows, stepper.max_in_flight, stepper.plans, *ignored)

    def ignored(self, params: SamplingParams) -> list[str]:
        """Fields that are set and that the steps do not obey."""
        return [name for name, default in self.params if getattr(params, name) != default]

    def obeys(self, sequence: Sequence) -> bool:
        """Whether the steps obey all that the sequence sets. Called for every sequence and step."""
        params = sequence.params
        for name, default in self.params:
            if getattr(params, name) != default:
                return False
        return all(getattr(sequence, name) == default for name, default in self.fields)


def _others(kind: type, obeyed: frozenset[str]) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass that are not obeyed, with their defaults. A field without a default always counts as
    set: no value equals MISSING."""
    found: list[tuple[str, Any]] = []
    for each in fields(kind):
        if each.name not in obeyed:
            found.append((each.name, each.default if each.default_factory is MISSING else each.default_factory()))
    return tuple(found)
