"""A gated adapter's low-rank parts as a LoRA folder in PEFT's format, for engines that draft with one.

SGLang's UNO runs the target with such an adapter over rows of random tokens, and verifies their proposals by the target
without it: that is our decoding without the sequential head, with random tokens in place of our masks. A PEFT folder
cannot hold the mask embeddings and the sequential head, so these are left out.
"""

import json
from pathlib import Path

from safetensors.torch import save_file

from stridelm.models.adapter import Adapter
from stridelm.models.store import writing
from stridelm.params import InputError

_NOTE = """\
# A LoRA for drafts only

The low-rank parts of a StrideLM adapter. It speaks for rows that draft: do not merge it, and do not serve it as an
ordinary LoRA, which would change what the model says.
"""


def write_peft(adapter: Adapter, base: str, folder: Path) -> None:
    """Creates the folder. `base`: the name or path of the adapter's model, for people who read the folder."""
    if not adapter.is_gated:
        raise InputError(
            "an adapter without a gate is part of its model and drafts for nothing else: export the merged model with "
            "--to hf or --to gguf"
        )
    tensors = {}
    for target in adapter.config.targets:
        down, up = adapter.low_rank(target)
        tensors[f"base_model.model.{target}.lora_A.weight"] = down.contiguous()
        tensors[f"base_model.model.{target}.lora_B.weight"] = up.contiguous()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,  # for people: engines get the model by another option
        "r": adapter.config.rank,
        "lora_alpha": adapter.config.rank,  # alpha / r is 1: the factors are used as they are
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({target.rpartition(".")[2] for target in adapter.config.targets}),
        "inference_mode": True,
    }
    with writing(folder):
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(_NOTE, encoding="utf-8")
