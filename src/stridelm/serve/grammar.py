"""A stand-in: the branch `grammar` has the real one."""

from stridelm.api import LanguageModel
from stridelm.serve.settings import ServeSettings


class Grammars:
    def __init__(self, model: LanguageModel, settings: ServeSettings) -> None:
        self.model, self.settings = model, settings
