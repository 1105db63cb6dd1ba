"""What a bench measures: our decoders (`ours`), transformers (`hugging_face`), a server (`server`)."""

import resource
from typing import Any, Protocol

from stridelm.bench.records import Answer, Question
from stridelm.models.encode import Prompt

WARM_UP = Question("warm-up", "hello", ({"role": "user", "content": "Say hello, then count to ten."},), max_tokens=24)
"""Not counted, so that what a subject loads or measures at its first answer is not part of its times."""


class Absent(Exception):
    """A subject cannot take part in this bench; the message says why."""


class Subject(Protocol):
    """Answers one question at a time. It raises its errors, and is not asked again after one."""

    name: str
    """Its name in tables; unique in a run."""
    about: dict[str, Any]
    """A description, complete after `start`; `exact` says whether it promises the text of plain decoding, None if
    unknown."""

    def start(self) -> None:
        """Load, or connect. Raises InputError, or Absent with a reason."""
        ...

    def warm_up(self) -> None: ...

    def ask(self, question: Question) -> Answer:
        """Prompts of earlier questions must not be reused from a cache, if the subject can be told so."""
        ...

    def close(self) -> None: ...


def prompt_of(question: Question) -> Prompt:
    """The prompt for `encode_prompt`. A single user's turn becomes plain text, so that models without a chat template
    can be asked, too."""
    first = question.messages[0]
    if len(question.messages) == 1 and first["role"] == "user":
        return first["content"]
    return list(question.messages)


def memory_peak() -> int:
    """Peak resident memory of this process so far, in bytes; the same for all subjects in the process."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
