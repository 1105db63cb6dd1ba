"""What every route knows."""

from dataclasses import dataclass

from stridelm.api import LanguageModel
from stridelm.engine.worker import Worker
from stridelm.serve.grammar import Grammars
from stridelm.serve.settings import ServeSettings


@dataclass(frozen=True, slots=True)
class Context:
    """One model, the thread that runs it, and what the operator chose."""

    model: LanguageModel
    worker: Worker
    settings: ServeSettings
    grammars: Grammars
    name: str
    """The model's name in requests and replies."""
