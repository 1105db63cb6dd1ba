"""The decoders by name. A new one is a file of its own and a line here."""

from collections.abc import Callable
from dataclasses import dataclass

from stridelm.contracts import Drafter, Policy
from stridelm.decode.adaptive import Adaptive
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Cost, load_or_measure
from stridelm.decode.planned import Planned
from stridelm.decode.speculative import Speculative
from stridelm.draft.draft_model import ModelDrafter
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.model.forward import TorchForward
from stridelm.model.gated import Gate
from stridelm.model.load import Checkpoint
from stridelm.settings import AUTO, PLAIN, DecodeSettings

_NGRAM_K, _DRAFT_K, _STATIC_K, _K_MAX = 8, 8, 3, 16
_THRESHOLD = 0.9
_NODES = 16
_WIDE_NODES, _WIDE_BRANCHES = 64, 4
"""Where a forward over sixty rows costs hardly more than one over one, as on a GPU, trees are grown wider."""
_IS_WIDE = 1.5


@dataclass(slots=True)
class Loaded:
    """What is there to decode with."""

    target: Checkpoint
    forward: TorchForward
    gate: Gate | None
    """What lets the target's steps hold masks."""
    draft: Checkpoint | None
    draft_forward: TorchForward | None
    """Shared by all who draft with the draft model."""
    load_own_draft: Callable[[], tuple[Checkpoint, TorchForward]] | None = None
    """The draft model that comes with the target, loaded once: only the decoder `draft` asks, if no other was given."""
    _cost: Cost | None = None

    @property
    def cost(self) -> Cost:
        """What forwards of the target cost here; measured when a decoder first asks."""
        if self._cost is None:
            self._cost = load_or_measure(self.target, self.forward)
        return self._cost

    def model_drafter(self, k: int | None) -> ModelDrafter:
        draft, forward = self.draft, self.draft_forward
        if draft is None and self.load_own_draft is not None:
            draft, forward = self.load_own_draft()
        assert draft is not None and forward is not None, "DecodeSettings.check lets this pass only with a draft model"
        return ModelDrafter(k or _DRAFT_K, forward, draft.context_length, draft.vocabulary, self.target.vocabulary)


def _gate(loaded: Loaded) -> Gate:
    assert loaded.gate is not None, "DecodeSettings.check lets this pass only with masks"
    return loaded.gate


def _adaptive(k_max: int, threshold: float, loaded: Loaded) -> Policy:
    return Adaptive(k_max, threshold, _gate(loaded))


def _planned(settings: DecodeSettings, loaded: Loaded, *, masks_only: bool = False, switches: bool = False) -> Policy:
    """Everything that drafts, or the masks alone."""
    cost, gate = loaded.cost, loaded.gate
    is_wide = cost(64) < _IS_WIDE * cost(1)
    drafters: list[Drafter] = [] if masks_only else [NgramDrafter(settings.k or _NGRAM_K)]
    if loaded.draft is not None and not masks_only:
        drafters.append(loaded.model_drafter(settings.k))
    return Planned(
        cost,
        masks=None if gate is None else MaskDrafter(gate, _WIDE_BRANCHES if is_wide else 2),
        k=1 if gate is None else min(settings.k or gate.k, gate.k),
        drafters=tuple(drafters),
        nodes=settings.nodes or (_WIDE_NODES if is_wide else _NODES),
        tolerance=settings.tolerance,
        switches=switches,
    )


_MAKERS: dict[str, Callable[[DecodeSettings, Loaded], Policy]] = {
    AUTO: lambda settings, loaded: _planned(settings, loaded, switches=True),
    PLAIN: lambda settings, loaded: Autoregressive(),
    "self": lambda settings, loaded: _planned(settings, loaded, masks_only=True),
    "ensemble": _planned,
    "draft": lambda settings, loaded: Speculative(loaded.model_drafter(settings.k), settings.tolerance),
    "ngram": lambda settings, loaded: Speculative(NgramDrafter(settings.k or _NGRAM_K), settings.tolerance),
    "adaptive": lambda settings, loaded: _adaptive(
        settings.k_max or _K_MAX, _THRESHOLD if settings.threshold is None else settings.threshold, loaded
    ),
    "static": lambda settings, loaded: _adaptive(settings.k or min(_STATIC_K, _gate(loaded).k), 0.0, loaded),
}


def make_policy(settings: DecodeSettings, loaded: Loaded) -> Policy:
    """A policy for settings that `check` let pass."""
    return _MAKERS[settings.decoder](settings, loaded)
