"""Whoever is put a question in a bench: our decoders (`ours`), transformers (`hugging_face`), a server (`server`)."""

import resource
from typing import Any, Protocol

from stridelm.bench.records import Answer, Question
from stridelm.models.encode import Prompt

WARM_UP = Question("warm-up", "hello", ({"role": "user", "content": "Say hello, then count to ten."},), max_tokens=24)
"""Not counted: what a subject loads or measures at its first answer is on nobody's bill."""


class Absent(Exception):
    """A subject cannot take part here; says why."""


class Subject(Protocol):
    """One question at a time. What goes wrong is raised: the subject takes no further part then."""

    name: str
    """As tables show it; unique in a run."""
    about: dict[str, Any]
    """What it is, whole once it has started; `exact` says whether it promises the text of plain decoding, None where
    it does not say."""

    def start(self) -> None:
        """Load, or connect. Raises InputError, or Absent with a reason."""
        ...

    def warm_up(self) -> None: ...

    def ask(self, question: Question) -> Answer:
        """What was read for an earlier question is read anew, as far as the subject can be told to."""
        ...

    def close(self) -> None: ...


def prompt_of(question: Question) -> Prompt:
    """As `encode_prompt` takes it. A user's turn alone is text: so models without a chat template can be asked, too."""
    first = question.messages[0]
    if len(question.messages) == 1 and first["role"] == "user":
        return first["content"]
    return list(question.messages)


def memory_peak() -> int:
    """Bytes of this process that were resident at most so far. Subjects that share a process share this, too."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
