"""Sequences with a predicted answer, over the hash model."""

import random

from hashing_model import CONTEXT, END, answer
from stepping import step_of
from stridelm.contracts import Policy
from stridelm.decode.cost import Cost
from stridelm.engine.engine import Engine
from stridelm.params import SamplingParams
from stridelm.types import Sequence, Stride

FLAT = Cost((1,), (1.0,))
"""Rows are free: all that there is room for is verified."""


def strides_of(engine: Engine, *sequences: Sequence) -> dict[Sequence, list[Stride]]:
    found: dict[Sequence, list[Stride]] = {sequence: [] for sequence in sequences}
    for sequence in sequences:
        engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        for sequence, stride in step_of(engine):
            found[sequence].append(stride)
        engine.forward.cache.check_integrity()
    return found


ENDLESS = SamplingParams(max_tokens=120, logit_bias={END: float("-inf")}, seed=1)


def with_answer(seed: int, policy: Policy, params: SamplingParams = ENDLESS, choice: int = 0) -> Sequence:
    """A sequence of the hashing model whose prediction is its answer, but for one token in the middle."""
    prompt = random.Random(seed).choices(range(END), k=20)
    sequence = Sequence(prompt, params, policy, frozenset({END}), CONTEXT, choice=choice)
    right = answer(prompt, params, sequence.seed, choice)
    middle = len(right) // 2
    sequence.prediction = (*right[:middle], (right[middle] + 1) % END, *right[middle + 1 :])
    return sequence


def right_answer(sequence: Sequence) -> list[int]:
    return answer(sequence.tokens[: sequence.prompt_length], sequence.params, sequence.seed, sequence.choice)
