"""The decoders by name. A new one is a file of its own and a line here."""

from collections.abc import Callable
from dataclasses import dataclass

from stridelm.contracts import Drafter, Gate, Heads, Policy
from stridelm.decode.adaptive import Adaptive
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Cost, load_or_measure
from stridelm.decode.planned import Planned
from stridelm.decode.speculative import Speculative
from stridelm.draft.assistant import AssistantDrafter
from stridelm.draft.draft_model import ModelDrafter
from stridelm.draft.heads import HeadsDrafter
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.ngram import LONGEST_PREDICTION, NgramDrafter
from stridelm.models.target import Draft, Parts
from stridelm.settings import AUTO, PLAIN, DecodeSettings

_NGRAM_K, _DRAFT_K, _STATIC_K, _K_MAX = 8, 8, 3, 16
THRESHOLD = 0.9
_NODES = 16
_WIDE_NODES, _WIDE_BRANCHES = 64, 4
"""Where a forward over sixty rows costs hardly more than one over one, as on a GPU, trees are grown wider."""
_IS_WIDE = 1.5


@dataclass(slots=True)
class Loaded:
    """What is there to decode with."""

    parts: Parts
    cache_tokens: int
    _own_draft: Draft | None = None
    _cost: Cost | None = None

    @property
    def cost(self) -> Cost:
        """What forwards of the target cost here; measured when a decoder first asks."""
        if self._cost is None:
            self._cost = load_or_measure(self.parts.target, self.parts.forward)
        return self._cost

    @property
    def is_wide(self) -> bool:
        return self.cost(64) < _IS_WIDE * self.cost(1)

    @property
    def branches(self) -> int:
        return _WIDE_BRANCHES if self.is_wide else 2

    @property
    def has_draft(self) -> bool:
        return self.parts.has_given_draft or self.parts.own_draft is not None

    def heads_by_name(self) -> Heads | None:
        """For who asks for heads by name: those that the user gave, or those that come with the model, which are
        loaded only then."""
        if self.parts.heads is None and self.parts.own_heads is not None:
            return self.parts.own_heads()
        return self.parts.heads

    def heads_drafter(self, heads: Heads, k: int | None) -> HeadsDrafter:
        forward, k = self.parts.forward, min(k or heads.k, heads.k)
        return HeadsDrafter(heads, forward.score, layers=forward.layers, k=k, branches=self.branches)

    def second_model(self, k: int | None) -> Drafter:
        """What the decoder `draft` asks: the assistant that was given, or a draft model."""
        if self.parts.assistant is not None:
            return AssistantDrafter(self.parts.assistant, layers=self.parts.forward.layers, k=k or _DRAFT_K)
        return self.model_drafter(k)

    def model_drafter(self, k: int | None) -> ModelDrafter:
        draft = self.parts.draft or self._load_own_draft()
        target, vocabulary = draft.target, self.parts.target.vocabulary
        return ModelDrafter(k or _DRAFT_K, draft.forward, target.context_length, target.vocabulary, vocabulary)

    def _load_own_draft(self) -> Draft:
        """The draft model that comes with the target: only the decoder `draft` asks, if no other was given."""
        if self._own_draft is None:
            assert self.parts.own_draft is not None, "DecodeSettings.check lets this pass only with a draft model"
            self._own_draft = self.parts.own_draft().with_cache(self.cache_tokens)  # others may draft with it, too
        return self._own_draft


def _gate(loaded: Loaded) -> Gate:
    assert loaded.parts.forward.gate is not None, "DecodeSettings.check lets this pass only with masks"
    return loaded.parts.forward.gate


def _look_up(settings: DecodeSettings) -> NgramDrafter:
    """What a user says of the number of drafts holds for those from a prediction, too."""
    longest = min(settings.k or LONGEST_PREDICTION, settings.nodes or LONGEST_PREDICTION, LONGEST_PREDICTION)
    return NgramDrafter(settings.k or _NGRAM_K, longest)


def _adaptive(k_max: int, threshold: float, loaded: Loaded) -> Policy:
    return Adaptive(k_max, threshold, _gate(loaded))


def _everything(settings: DecodeSettings, loaded: Loaded, *, switches: bool = False) -> Policy:
    drafters: list[Drafter] = [_look_up(settings)]
    if loaded.parts.heads is not None:
        drafters.append(loaded.heads_drafter(loaded.parts.heads, settings.k))
    if loaded.parts.has_given_draft:
        drafters.append(loaded.second_model(settings.k))
    return _planned(settings, loaded, loaded.parts.forward.gate, drafters, switches=switches)


def _heads(settings: DecodeSettings, loaded: Loaded) -> Policy:
    heads = loaded.heads_by_name()
    assert heads is not None, "DecodeSettings.check lets this pass only with heads"
    return _planned(settings, loaded, None, [loaded.heads_drafter(heads, settings.k)])


def _planned(
    settings: DecodeSettings, loaded: Loaded, gate: Gate | None, drafters: list[Drafter], *, switches: bool = False
) -> Policy:
    """Masks, if there is a gate, and these drafters, as far as they pay."""
    return Planned(
        loaded.cost,
        masks=None if gate is None else MaskDrafter(gate, loaded.branches),
        k=1 if gate is None else min(settings.k or gate.k, gate.k),
        drafters=tuple(drafters),
        nodes=settings.nodes or (_WIDE_NODES if loaded.is_wide else _NODES),
        tolerance=settings.tolerance,
        switches=switches,
    )


_MAKERS: dict[str, Callable[[DecodeSettings, Loaded], Policy]] = {
    AUTO: lambda settings, loaded: _everything(settings, loaded, switches=True),
    PLAIN: lambda settings, loaded: Autoregressive(),
    "self": lambda settings, loaded: _planned(settings, loaded, _gate(loaded), []),
    "heads": _heads,
    "ensemble": _everything,
    "draft": lambda settings, loaded: Speculative(loaded.second_model(settings.k), settings.tolerance),
    "ngram": lambda settings, loaded: Speculative(_look_up(settings), settings.tolerance),
    "adaptive": lambda settings, loaded: _adaptive(
        settings.k_max or _K_MAX, THRESHOLD if settings.threshold is None else settings.threshold, loaded
    ),
    "static": lambda settings, loaded: _adaptive(settings.k or min(_STATIC_K, _gate(loaded).k), 0.0, loaded),
}


def make_policy(settings: DecodeSettings, loaded: Loaded) -> Policy:
    """A policy for settings that `check` let pass."""
    return _MAKERS[settings.decoder](settings, loaded)
