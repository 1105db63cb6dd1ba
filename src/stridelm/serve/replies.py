"""What replies contain besides the text: ids, usage and figures on decoding."""

import secrets
import time
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

from stridelm.serve.context import Context
from stridelm.serve.generation import Plan
from stridelm.serve.schemas.common import TextRequest
from stridelm.serve.trace import Forward
from stridelm.stats import path_in_words
from stridelm.types import PREDICTION, Sequence, Stride


class Report:
    """Counts over all answers to a request, and the fields of a reply that report them."""

    def __init__(
        self,
        context: Context,
        request: TextRequest,
        plan: Plan,
        sequences: list[Sequence],
        *,
        ignored: Items[str] = (),
        names: Mapping[str, str] | None = None,
        is_scored: bool = False,
    ) -> None:
        """`sequences`: the answers, grouped by prompt; `ignored`: fields that were ignored besides `request.ignored`;
        `names`: the client's own names for fields, where they differ; `is_scored`: whether the prompts were already
        read for this request, to score them."""
        self._context, self._request, self._plan = context, request, plan
        self._ignored = [(names or {}).get(name, name) for name in (*request.ignored, *ignored)]
        self._is_scored = is_scored
        self._firsts = [sequence for sequence in sequences if sequence.choice == 0]
        """The first answer to each prompt."""
        self._predicted = self._accepted_predictions = 0
        self._drafted = self._own_forwards = self._answers = 0
        self._lengths: list[int] = []
        """Number of tokens of each forward pass, in order."""
        self._steps: Counter[int] = Counter()
        """Number of accepted drafts -> number of passes that accepted that many, of those that verified drafts."""

    def add(self, stride: Stride) -> None:
        self._lengths.append(len(stride.tokens))
        self._own_forwards += stride.is_own
        self._answers += stride.finish_reason is not None
        self._predicted += stride.predicted
        self._accepted_predictions += sum(source == PREDICTION for source in stride.sources)
        if stride.drafted:
            self._drafted += stride.drafted
            self._steps[sum(source != "model" for source in stride.sources)] += 1

    def whole(self, trace: list[Forward]) -> dict[str, Any]:
        """The fields of a reply besides its choices. `trace`: of every forward pass, if requested."""
        stride = self._stride() | ({"trace": trace} if self._request.options.trace else {})
        return {"usage": self.usage(), "metrics": self._metrics(), "stride": stride}

    def chunk(self, trace: list[Forward], *, is_last: bool) -> dict[str, Any]:
        """The fields of a chunk besides its choice. `trace`: of its own forward pass; `is_last`: all choices are
        finished."""
        said: dict[str, Any] = {"usage": None} if self._request.includes_usage else {}
        if self._request.counts_on:
            said["usage"] = self.usage()
        if stride := (self._stride() if is_last else {}) | ({"trace": trace} if trace else {}):
            said["stride"] = stride
        return said | ({"metrics": self._metrics()} if is_last else {})

    def usage(self) -> dict[str, Any]:
        tokens, read = sum(self._lengths), sum(sequence.prompt_length for sequence in self._firsts)
        known = 0 if self._is_scored else sum(sequence.stats.reused for sequence in self._firsts)
        return {
            "prompt_tokens": read,
            "completion_tokens": tokens,
            "total_tokens": read + tokens,
            "prompt_tokens_details": {"cached_tokens": known},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self._accepted_predictions,
                "rejected_prediction_tokens": self._predicted - self._accepted_predictions,
            },
        }

    def _metrics(self) -> dict[str, Any]:
        """In vLLM's format: the histogram's entry j counts the passes that accepted j drafts; the token that the model
        adds is part of the mean length only. If no pass verified drafts, there is no mean."""
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

    def _stride(self) -> dict[str, Any]:
        """The reply's field `stride`. Called when all answers are complete."""
        forwards, own, backend = len(self._lengths), self._own_forwards, self._context.model.engine.forward.backend
        return {
            "exact": self._plan.is_exact,
            "exact_to": self._context.exact_to,
            "decoder": self._plan.settings.decoder,
            "path": path_in_words(backend, forwards, own, self._answers),
            "backend": backend,
            "seed": self._plan.seed,
            "forwards": forwards,
            "own_forwards": own,
            "tokens_per_forward": sum(self._lengths) / forwards if forwards else 0.0,
            "lengths": self._lengths,
            "ignored": self._ignored,
        }


class Envelope:
    """What all chunks of one reply have in common."""

    def __init__(self, context: Context, request: TextRequest, kind: str, prefix: str) -> None:
        """`kind`: the reply's `object`; `prefix` begins its id."""
        self._common = {
            "id": f"{prefix}-{secrets.token_hex(16)}",
            "object": kind,
            "created": int(time.time()),
            "model": context.named(request.model),
        }

    def around(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._common, "choices": choices, **more}
