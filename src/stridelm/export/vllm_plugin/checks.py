"""What the gated drafter does not support in vLLM, refused before anything runs."""

from pathlib import Path
from typing import Any

from stridelm.models.adapter import Adapter
from stridelm.models.fingerprint import fingerprint_of
from stridelm.params import InputError

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures whose layers are known to be named as the adapter expects, and whose output is one matrix product."""
_ONE_CARD = "it runs on one card; for more of them export an ungated conversion, which stock vLLM can spread"
_LEAVE_OUT = "leave it out"


def check_settings(vllm_config: Any, drafts: int) -> None:
    """Refuse untested settings before the drafter is loaded. `vllm_config` is the drafter's own, which lacks some
    settings of the target; `drafts`: the number of drafts that it was trained for."""
    speculative = vllm_config.speculative_config
    parallel = speculative.target_parallel_config
    wanted = speculative.num_speculative_tokens
    wrong = next(
        (
            f"{setting} is {value}: {remedy}"
            for setting, value, fits, remedy in (
                ("--tensor-parallel-size", parallel.tensor_parallel_size, 1, _ONE_CARD),
                ("--pipeline-parallel-size", parallel.pipeline_parallel_size, 1, _ONE_CARD),
                ("method", speculative.method, "draft_model", "it must be draft_model"),
                ("parallel_drafting", speculative.parallel_drafting, True, "it must be true"),
                ("draft_sample_method", speculative.draft_sample_method, "greedy", _LEAVE_OUT),
                ("use_heterogeneous_vocab", speculative.use_heterogeneous_vocab, False, _LEAVE_OUT),
                ("disable_padded_drafter_batch", speculative.disable_padded_drafter_batch, False, _LEAVE_OUT),
                ("--enable-lora", vllm_config.lora_config is not None, False, _LEAVE_OUT),
                ("--kv-transfer-config", vllm_config.kv_transfer_config is not None, False, _LEAVE_OUT),
                ("vLLM's V2 model runner", vllm_config.use_v2_model_runner, False, "set VLLM_USE_V2_MODEL_RUNNER=0"),
                ("num_speculative_tokens", wanted, min(wanted, drafts), f"it was trained for {drafts} at most"),
            )
            if value != fits
        ),
        None,
    )
    if wrong is not None:
        raise InputError(f"StrideLM's gated drafter cannot run, because {wrong}")


def check_family(architecture: str, config: Any) -> None:
    """Refuse a model that the plugin cannot run. `config`: its config.json, in transformers' form."""
    if architecture not in FAMILIES:
        raise InputError(
            f"StrideLM's drafter for gated conversions in vLLM knows {', '.join(FAMILIES)}, not {architecture}: "
            "convert the model without a gate (`stridelm train --gate none`), or serve it without a drafter"
        )
    if len(set(getattr(config, "layer_types", None) or [None])) > 1:
        raise InputError(
            f"some layers of this {architecture} have a sliding window and some do not, which StrideLM's drafter for "
            "gated conversions in vLLM does not run: convert the model without a gate, or serve it without a drafter"
        )


def check_target(folder: Path, adapter: Adapter, served: Path) -> None:
    """Refuse a target that the drafter in `folder` was not made for. `served`: the target's folder."""
    if not served.is_dir():
        raise InputError(
            f"{served}: not a folder on this machine, so that the adapter's base cannot be checked: serve the folder "
            "that `stridelm export --to vllm` wrote"
        )
    found = fingerprint_of(served)
    if found != adapter.config.fingerprint:
        raise InputError(
            f"{folder}: was made for {adapter.config.base} (fingerprint {adapter.config.fingerprint[:12]}), but "
            f"{served} has other weights ({found[:12]}): serve the model that was exported with it"
        )
