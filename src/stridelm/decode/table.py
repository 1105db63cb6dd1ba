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
from stridelm.draft.heads import HeadsDrafter
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.model import builtin
from stridelm.model.forward import TorchForward
from stridelm.model.gated import Gate
from stridelm.model.heads import Heads, heads_for, load_heads
from stridelm.model.load import Checkpoint
from stridelm.model.scorer import Scorer
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
    heads: Heads | None
    """Those that the user gave."""
    load_own_draft: Callable[[], tuple[Checkpoint, TorchForward]] | None = None
    """The draft model that comes with the target, loaded once: only the decoder `draft` asks, if no other was given."""
    _builtin_heads: Heads | None = None
    _cost: Cost | None = None

    @property
    def cost(self) -> Cost:
        """What forwards of the target cost here; measured when a decoder first asks."""
        if self._cost is None:
            self._cost = load_or_measure(self.target, self.forward)
        return self._cost

    @property
    def is_wide(self) -> bool:
        return self.cost(64) < _IS_WIDE * self.cost(1)

    @property
    def branches(self) -> int:
        return _WIDE_BRANCHES if self.is_wide else 2

    def heads_by_name(self) -> Heads | None:
        """For who asks for heads by name: those that the user gave, or those that come with the built-in model, which
        are loaded only then."""
        if self.heads is None and self._builtin_heads is None and self.target.name == builtin.NAME:
            folder = builtin.builtin_heads()
            if folder is not None:
                self._builtin_heads = heads_for(self.target, folder, *load_heads(folder))
        return self.heads or self._builtin_heads

    def heads_drafter(self, heads: Heads, k: int | None) -> HeadsDrafter:
        network = self.target.network
        layers = int(network.config.get_text_config().num_hidden_layers)
        return HeadsDrafter(heads, Scorer(network), layers=layers, k=min(k or heads.k, heads.k), branches=self.branches)

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


def _everything(settings: DecodeSettings, loaded: Loaded, *, switches: bool = False) -> Policy:
    drafters: list[Drafter] = [NgramDrafter(settings.k or _NGRAM_K)]
    if loaded.heads is not None:
        drafters.append(loaded.heads_drafter(loaded.heads, settings.k))
    if loaded.draft is not None:
        drafters.append(loaded.model_drafter(settings.k))
    return _planned(settings, loaded, loaded.gate, drafters, switches=switches)


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
