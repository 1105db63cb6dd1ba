"""What replies hold besides the text: names, usage, how decoding went."""

import secrets
import time
from collections import Counter
from typing import Any

from stridelm.serve.context import Context
from stridelm.serve.generation import Plan
from stridelm.types import Stride


class Tally:
    """Counts over all answers to a request."""

    def __init__(self, prompts: list[list[int]]) -> None:
        self._prompt_tokens = sum(len(prompt) for prompt in prompts)
        self._tokens = self._forwards = self._drafted = 0
        self._steps: Counter[int] = Counter()
        """How many of the passes that verified drafts accepted so many."""

    def add(self, stride: Stride) -> None:
        self._tokens += len(stride.tokens)
        self._forwards += 1
        if stride.drafted:
            self._drafted += stride.drafted
            self._steps[sum(source != "model" for source in stride.sources)] += 1

    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._tokens,
            "total_tokens": self._prompt_tokens + self._tokens,
        }

    def metrics(self) -> dict[str, Any]:
        """In vLLM's form: the histogram's entry j counts the passes that accepted j drafts, the token that the model
        adds is part of the mean length only. Without such passes there is nothing to take the mean of."""
        steps = self._steps.total()
        accepted = sum(count * times for count, times in self._steps.items())
        most = max(self._steps, default=-1)
        return {
            "speculative_decoding": {
                "mean_acceptance_length": 1 + accepted / steps if steps else None,
                "draft_acceptance_rate": accepted / self._drafted if self._drafted else None,
                "acceptance_histogram": [self._steps[count] for count in range(most + 1)],
                "num_spec_steps": steps,
                "num_draft_tokens": self._drafted,
                "num_accepted_draft_tokens": accepted,
            }
        }

    def stride(self, context: Context, plan: Plan) -> dict[str, Any]:
        return {
            "exact": plan.is_exact,
            "exact_to": context.exact_to,
            "decoder": plan.settings.decoder,
            "seed": plan.seed,
            "forwards": self._forwards,
            "tokens_per_forward": self._tokens / self._forwards if self._forwards else 0.0,
        }


class Envelope:
    """What all chunks of one reply have in common."""

    def __init__(self, context: Context, kind: str, prefix: str) -> None:
        """`kind`: the reply's `object`; `prefix` begins its id."""
        self._common = {
            "id": f"{prefix}-{secrets.token_hex(16)}",
            "object": kind,
            "created": int(time.time()),
            "model": context.name,
        }

    def around(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._common, "choices": choices, **more}
