"""The decoders by name. A new one is a file of its own and a line here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

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
from stridelm.models.target import Draft, LoadedModel
from stridelm.settings import AUTO, PLAIN, DecodeSettings

_NGRAM_K, _DRAFT_K, _STATIC_K, _K_MAX = 8, 8, 3, 16
THRESHOLD = 0.9
_NODES = 16
_WIDE_NODES, _WIDE_BRANCHES = 64, 4
"""If a forward over 64 rows costs hardly more than one over a single row, as on a GPU, trees are grown wider."""
_IS_WIDE = 1.5
"""A forward over 64 rows must take less than this many times as long as one over a single row."""


@dataclass(slots=True)
class DecodeResources:
    """What policies are made from: the loaded model, and what is loaded or measured when a decoder first needs it."""

    loaded: LoadedModel
    cache_tokens: int
    _own_draft: Draft | None = None
    _cost: Cost | None = None
    _loaded_by_name: set[str] = field(default_factory=set)
    """The decoders whose parts come with the model and have been loaded, since a request named them."""
    _loading: Lock = field(default_factory=Lock)

    @property
    def cost(self) -> Cost:
        """What forwards of the target cost on this machine; measured when first needed."""
        if self._cost is None:
            self._cost = load_or_measure(self.loaded.target, self.loaded.forward)
        return self._cost

    @property
    def is_wide(self) -> bool:
        return self.cost(64) < _IS_WIDE * self.cost(1)

    @property
    def branches(self) -> int:
        return _WIDE_BRANCHES if self.is_wide else 2

    @property
    def has_draft(self) -> bool:
        return self.loaded.has_given_draft or self.loaded.own_draft is not None

    @property
    def heads_k(self) -> int:
        """The k of the heads for the decoder `heads`; 0 if there are none."""
        heads = self.loaded.heads or self.loaded.own_heads
        return 0 if heads is None else heads.k

    def heads_by_name(self) -> Heads | None:
        """The heads for the decoder `heads`: those that the user gave, or those that come with the model, which no
        other decoder loads."""
        if self.loaded.heads is None and self.loaded.own_heads is not None:
            return self.loaded.own_heads.load()
        return self.loaded.heads

    def must_load(self, decoder: str) -> bool:
        """Whether a decoder uses parts that come with the model and are not in memory yet."""
        is_own = {
            "heads": self.loaded.heads is None and self.loaded.own_heads is not None,
            "draft": not self.loaded.has_given_draft and self.loaded.own_draft is not None,
        }
        return is_own.get(decoder, False) and decoder not in self._loaded_by_name

    def load_parts(self, decoder: str) -> None:
        """From any thread: load what `must_load` is about."""
        with self._loading:
            if self.must_load(decoder):
                self.heads_by_name() if decoder == "heads" else self._load_own_draft()
                self._loaded_by_name.add(decoder)

    def heads_drafter(self, heads: Heads, k: int | None) -> HeadsDrafter:
        forward, k = self.loaded.forward, min(k or heads.k, heads.k)
        return HeadsDrafter(heads, forward.score, layers=forward.layers, k=k, branches=self.branches)

    def second_model(self, k: int | None) -> Drafter:
        """The drafter of the decoder `draft`: the assistant that was given, or a draft model."""
        if self.loaded.assistant is not None:
            return AssistantDrafter(self.loaded.assistant, layers=self.loaded.forward.layers, k=k or _DRAFT_K)
        return self.model_drafter(k)

    def model_drafter(self, k: int | None) -> ModelDrafter:
        draft = self.loaded.draft or self._load_own_draft()
        target, vocabulary = draft.target, self.loaded.target.vocabulary
        return ModelDrafter(k or _DRAFT_K, draft.forward, target.context_length, target.vocabulary, vocabulary)

    def _load_own_draft(self) -> Draft:
        """The draft model that comes with the target. Only the decoder `draft` uses it, if no other was given."""
        if self._own_draft is None:
            assert self.loaded.own_draft is not None, "DecodeSettings.check lets this pass only with a draft model"
            # With its own cache: other models may share the weights.
            self._own_draft = self.loaded.own_draft().with_cache(self.cache_tokens)
        return self._own_draft


def _gate(resources: DecodeResources) -> Gate:
    assert resources.loaded.forward.gate is not None, "DecodeSettings.check lets this pass only with masks"
    return resources.loaded.forward.gate


def _look_up(settings: DecodeSettings) -> NgramDrafter:
    """A user's limits on the number of drafts apply to drafts from a prediction, too."""
    longest = min(settings.k or LONGEST_PREDICTION, settings.nodes or LONGEST_PREDICTION, LONGEST_PREDICTION)
    return NgramDrafter(settings.k or _NGRAM_K, longest)


def _adaptive(k_max: int, threshold: float, resources: DecodeResources) -> Policy:
    return Adaptive(k_max, threshold, _gate(resources))


def _all_drafters(settings: DecodeSettings, resources: DecodeResources, *, switches: bool = False) -> Policy:
    drafters: list[Drafter] = [_look_up(settings)]
    if resources.loaded.heads is not None:
        drafters.append(resources.heads_drafter(resources.loaded.heads, settings.k))
    if resources.loaded.has_given_draft:
        drafters.append(resources.second_model(settings.k))
    return _planned(settings, resources, resources.loaded.forward.gate, drafters, switches=switches)


def _heads(settings: DecodeSettings, resources: DecodeResources) -> Policy:
    heads = resources.heads_by_name()
    assert heads is not None, "DecodeSettings.check lets this pass only with heads"
    return _planned(settings, resources, None, [resources.heads_drafter(heads, settings.k)])


def _planned(
    settings: DecodeSettings,
    resources: DecodeResources,
    gate: Gate | None,
    drafters: list[Drafter],
    *,
    switches: bool = False,
) -> Policy:
    """Masks, if there is a gate, and these drafters, as far as they pay."""
    return Planned(
        resources.cost,
        masks=None if gate is None else MaskDrafter(gate, resources.branches),
        k=1 if gate is None else min(settings.k or gate.k, gate.k),
        drafters=tuple(drafters),
        nodes=settings.nodes or (_WIDE_NODES if resources.is_wide else _NODES),
        tolerance=settings.tolerance,
        switches=switches,
    )


_MAKERS: dict[str, Callable[[DecodeSettings, DecodeResources], Policy]] = {
    AUTO: lambda settings, resources: _all_drafters(settings, resources, switches=True),
    PLAIN: lambda settings, resources: Autoregressive(),
    "self": lambda settings, resources: _planned(settings, resources, _gate(resources), []),
    "heads": _heads,
    "ensemble": _all_drafters,
    "draft": lambda settings, resources: Speculative(resources.second_model(settings.k), settings.tolerance),
    "ngram": lambda settings, resources: Speculative(_look_up(settings), settings.tolerance),
    "adaptive": lambda settings, resources: _adaptive(
        settings.k_max or _K_MAX, THRESHOLD if settings.threshold is None else settings.threshold, resources
    ),
    "static": lambda settings, resources: _adaptive(settings.k or min(_STATIC_K, _gate(resources).k), 0.0, resources),
}


def make_policy(settings: DecodeSettings, resources: DecodeResources) -> Policy:
    """A policy for settings that have passed `check`."""
    return _MAKERS[settings.decoder](settings, resources)
