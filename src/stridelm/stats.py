"""What an answer cost, and which backend and loop wrote it."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stats:
    """What an answer cost. Times are seconds of a monotonic clock."""

    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float | None = None
    prompt_tokens: int = 0
    reused: int = 0
    """Number of prompt tokens whose keys and values were in the cache already."""
    tokens: int = 0
    forwards: int = 0
    """Forward passes that emitted tokens: plain decoding has exactly one per token."""
    own_forwards: int = 0
    """How many of these the backend ran by itself; the pass that reads the prompt's end never is one."""
    prefill_forwards: int = 0
    """Forward passes that only read a part of the prompt."""
    rows: int = 0
    """Rows that this sequence put through the model, the prompt's included."""
    drafted: int = 0
    accepted: int = 0

    @property
    def steps(self) -> str:
        """Whose steps wrote the answer, in words: see `steps_in_words`."""
        return steps_in_words(self.forwards, self.own_forwards)

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def ttft(self) -> float:
        """Seconds from the request to its first token."""
        return (self.first_token or self.started) - self.started

    @property
    def latency(self) -> float:
        """Seconds from the request to its last token."""
        return (self.last_token or self.started) - self.started

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.latency if self.latency else 0.0


def steps_in_words(forwards: int, own_forwards: int, answers: int = 1) -> str:
    """Whose steps wrote a number of answers: the backend's `own steps`, the `host's steps`, or both, with numbers.

    `forwards` emitted tokens, `own_forwards` of them were run by the backend itself. One forward per answer never is:
    the first token comes from the step that reads the prompt's end, which is the host's. So an answer whose other
    forwards were all the backend's own is written by `own steps`. With `answers` 0 the numbers are always given.
    """
    if not own_forwards:
        return "host's steps"
    if forwards - own_forwards <= answers:
        return "own steps"
    return f"own steps for {own_forwards} of {forwards} forwards"


def path_in_words(backend: str, forwards: int, own_forwards: int, answers: int = 1) -> str:
    """As in `gpu, own steps`. `backend`: as `Forward.backend` names it; the rest as for `steps_in_words`."""
    return f"{backend}, {steps_in_words(forwards, own_forwards, answers)}"
