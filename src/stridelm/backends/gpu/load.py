"""Whether the GPU backend runs a model: what its kernels cover, then a trial against torch's own forward."""

import logging
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from stridelm.backends.common.gate import TensorGate
from stridelm.backends.common.gpu_families import has_kernels
from stridelm.backends.common.trial import TOLERANCE, distance, trial_ids, trial_logits
from stridelm.backends.gpu.weights import Weights, is_supported, stack
from stridelm.contracts import Forward
from stridelm.layout import lay_out, make_block
from stridelm.models.adapter import Adapter
from stridelm.types import ROOT

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stacked:
    """A network's weights as the GPU backend takes them, and the gate of its adapter."""

    weights: Weights
    gate: TensorGate | None


def stacked(network: PreTrainedModel, adapter: Adapter | None, reference: Forward) -> Stacked | None:
    """None if torch has to run the model: on a CPU or an old GPU, without Triton, or if the kernels do not support it.
    `reference`: torch's own forward of the network, which the kernels are compared with."""
    if not has_kernels(network.device) or not is_supported(network, adapter):
        return None
    if network.device.type == "cuda":
        torch.cuda.set_device(network.device)  # Triton launches on the current one
    expected = trial_logits(reference, network)
    weights = stack(network, adapter)
    gate = None if adapter is None else TensorGate(network, adapter)
    try:
        apart = distance(expected, _trial(network, weights, gate))
    except Exception as error:  # the compiler's, or too little shared memory: whatever it is, torch can run the model
        log.warning("the GPU kernels do not run here (%s): torch runs this model", error)
        return None
    if not apart <= TOLERANCE[network.dtype]:
        log.warning("the GPU kernels give other logits (relative difference %.1e): torch runs this model", apart)
        return None
    return Stacked(weights, gate)


def _trial(network: PreTrainedModel, weights: Weights, gate: TensorGate | None) -> torch.Tensor:
    """The kernels' logits after a few tokens. A step with masks is run, too: it compiles kernels that others do not."""
    from stridelm.backends.gpu.forward import GpuForward

    forward = GpuForward(network, weights, 64, gate)
    logits = trial_logits(forward, network)
    if gate is not None:
        table = forward.cache.open()
        forward(lay_out([make_block(0, trial_ids(network), anchors=[ROOT], masks=gate.k - 1)]), [table])
    return logits
