"""What every subject of the CPU benchmark speaks: one JSON object a line, in over stdin, out over stdout.

    at the start                                       -> {"about": {"version": ..., ...}}
    {"ids": [...], "tokens": 128, "banned": [2],       -> {"ids": [...], "first_tokens": 1, "first_seconds": 0.1,
     "mode": "plain"}                                      "seconds": 1.5, "forwards": 128}
    {"rows": [1, 2, 4], "context": 200}                -> {"times": {"1": 0.01, "2": 0.011, "4": 0.02}}

The clock runs from the prompt's ids to the answer's ids: reading the prompt counts, tokenizing and JSON do not. The
first tokens are those that came with the pass that ended the prompt. `banned` tokens (the end of the text) are never
written, so that every answer has as many tokens as were asked for. Where something fails, the reply is {"error": ...}.

Only the standard library: subjects in virtual environments of their own import this, too.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

Message = dict[str, Any]


class Subject(Protocol):
    about: Message

    def answer(self, request: Message) -> Message: ...

    def time_rows(self, request: Message) -> Message: ...


def serve(load: Callable[[], Subject]) -> None:
    """Load, then answer until stdin ends."""
    # Libraries print where they like: what they say goes to stderr, and the protocol has stdout to itself.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def reply(message: Message) -> None:
        replies.write(json.dumps(message) + "\n")

    try:
        subject = load()
    except Exception as error:
        reply(failure(error))
        sys.exit(1)
    reply({"about": subject.about})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply(subject.time_rows(request) if "rows" in request else subject.answer(request))
        except Exception as error:
            reply(failure(error))


def failure(error: Exception) -> Message:
    return {"error": f"{type(error).__name__}: {error}"}
