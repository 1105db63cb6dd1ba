"""Our logits for the files of gguf_recorded.py, and how far they are from llama.cpp's."""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import gelu

from gguf_models import load, logits_of
from gguf_recorded import IDS, PLACES, RECORDED, RECORDED_FILES
from stridelm.backends.torch.checkpoint import Checkpoint


def our_logits(checkpoint: Checkpoint) -> torch.Tensor:
    return logits_of(checkpoint, IDS)[list(PLACES)]


class HalfGelu(torch.nn.Module):
    """llama.cpp reads its GELU from a table in half precision."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return gelu(values.half().float(), approximate="tanh").half().float()


def with_half_gelu(checkpoint: Checkpoint) -> Checkpoint:
    """Replaces what must be the same in float32: the approximation of GELU, not GELU itself."""
    changed, values = 0, torch.linspace(-6, 6, 97)
    for layer in checkpoint.network.get_submodule("model.layers").children():
        product = layer.get_submodule("mlp")
        ours = product.get_submodule("act_fn")(values)
        torch.testing.assert_close(ours, gelu(values, approximate="tanh"), rtol=0, atol=1e-6)
        product.act_fn = HalfGelu()
        changed += 1
    assert changed == checkpoint.network.config.num_hidden_layers
    return checkpoint


def largest_differences(folder: Path) -> dict[str, dict[str, float]]:
    """By file: the largest difference of a logit in float32 and as K-quants; with llama.cpp's own rounding of what is
    multiplied by K-quants, too; and the standard deviation of the logits."""
    logits = np.load(RECORDED)
    found: dict[str, dict[str, float]] = {}
    for name, made in RECORDED_FILES.items():
        entry = {"deviation": float(logits[f"{name}: F32"].std())}
        for kinds in (("F32",), ("K in F32", "K")):
            checkpoint = load(made.file(blocks="K" in kinds).write(folder / "small.gguf"))
            ours = our_logits(checkpoint).numpy()
            entry |= {kind: float(np.abs(ours - logits[f"{name}: {kind}"]).max()) for kind in kinds}
            if made.architecture.startswith("gemma"):
                ours = our_logits(with_half_gelu(checkpoint)).numpy()
                entry[f"{kinds[0]}, half GELU"] = float(np.abs(ours - logits[f"{name}: {kinds[0]}"]).max())
        found[name] = entry
    return found
