"""Whether the GPU backend runs a model: what its kernels cover, then a trial against torch's own forward."""

import logging
from dataclasses import dataclass
from importlib.util import find_spec

from transformers import PreTrainedModel

from stridelm.model.adapter import Adapter
from stridelm.model.forward import TorchForward
from stridelm.model.gated import TorchGate
from stridelm.model.gpu.weights import Weights, is_supported, stack
from stridelm.model.support import TOLERANCE, TRIAL_TOKENS, distance, trial_logits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stacked:
    """A network's weights as the GPU backend takes them, and the gate of its adapter."""

    weights: Weights
    gate: TorchGate | None


def stacked(network: PreTrainedModel, adapter: Adapter | None) -> Stacked | None:
    """None where torch runs the model: on a CPU, where there is no Triton, or where the kernels lack something."""
    if network.device.type != "cuda" or find_spec("triton") is None or not is_supported(network, adapter):
        return None
    from stridelm.model.gpu.forward import GpuForward

    expected = trial_logits(TorchForward(network, TRIAL_TOKENS), network)
    weights = stack(network, adapter)
    apart = distance(expected, trial_logits(GpuForward(network, weights, TRIAL_TOKENS), network))
    if not apart <= TOLERANCE[network.dtype]:
        log.warning("the GPU kernels give other logits (relative difference %.1e): torch runs this model", apart)
        return None
    return Stacked(weights, None if adapter is None else TorchGate(network, adapter))
