"""See what the engine runs."""

from typing import Any

import pytest

from stridelm.api import LanguageModel
from stridelm.types import Rows


def watch_rows(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[Rows]:
    """The rows of every forward from now on."""
    seen: list[Rows] = []
    forward = model.engine.forward

    def watched(rows: Rows, tables: list[Any]) -> Any:
        seen.append(rows)
        return forward(rows, tables)

    watched.cache, watched.backend = forward.cache, forward.backend  # type: ignore[attr-defined]
    monkeypatch.setattr(model.engine, "forward", watched)
    return seen
