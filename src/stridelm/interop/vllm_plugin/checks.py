"""What the gated drafter refuses in vLLM, told before anything runs."""

from pathlib import Path
from typing import Any

from stridelm.model.adapter import Adapter
from stridelm.model.load import fingerprint_of
from stridelm.params import InputError

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Whose layers are known to be laid out as the adapter expects, and whose output is one matrix product."""
_ONE_CARD = "it runs on one card; for more of them export an ungated conversion, which stock vLLM can spread"


def check_settings(vllm_config: Any, drafts: int) -> None:
    """Refuse the settings that were never tried, before any weight is loaded. `drafts`: as many as were trained."""
    parallel = vllm_config.parallel_config
    speculative = vllm_config.speculative_config
    wrong = next(
        (
            f"{setting} is {value}: {remedy}"
            for setting, value, fits, remedy in (
                ("--tensor-parallel-size", parallel.tensor_parallel_size, 1, _ONE_CARD),
                ("--pipeline-parallel-size", parallel.pipeline_parallel_size, 1, _ONE_CARD),
                ("--data-parallel-size", parallel.data_parallel_size, 1, "start one server per replica"),
                ("method", speculative.method, "draft_model", "it must be draft_model"),
                ("parallel_drafting", speculative.parallel_drafting, True, "it must be true"),
                ("draft_sample_method", speculative.draft_sample_method, "greedy", "leave it out, or say greedy"),
                ("VLLM_USE_V2_MODEL_RUNNER", vllm_config.use_v2_model_runner, False, "set it to 0"),
            )
            if value != fits
        ),
        None,
    )
    if wrong is not None:
        raise InputError(f"StrideLM's gated drafter cannot run, because {wrong}")
    wanted = speculative.num_speculative_tokens
    if wanted > drafts:
        raise InputError(
            f"num_speculative_tokens is {wanted}, but the adapter was trained for {drafts}: ask for no more"
        )
    if speculative.disable_padded_drafter_batch:
        raise InputError("StrideLM's gated drafter cannot run with disable_padded_drafter_batch: leave it out")


def check_target(folder: Path, adapter: Adapter, family: str, served: Path) -> None:
    """Refuse a target that the drafter in `folder` was not made for. `served`: its folder."""
    if family not in FAMILIES:
        raise InputError(
            f"StrideLM's gated drafter knows {', '.join(FAMILIES)}, not {family}: serve without --speculative-config"
        )
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
