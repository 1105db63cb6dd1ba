"""Draft passes in vLLM's V1 model runner: rows, positions and cache slots of the chains, one per request.

vLLM's own parallel drafting runs a draft model, which has its own cache, over all tokens of the step again and then
over [sampled token, masks]. A gated drafter reads the target's cache, which already holds these tokens, so it only runs
the chain. The keys and values that its rows write there lie after the text, and the next step overwrites them.
"""

from typing import Any

import torch

from stridelm.export.vllm_plugin.drafter import GatedDrafter
from stridelm.export.vllm_plugin.imports import (
    CUDAGraphMode,
    DraftModelProposer,
    gpu_model_runner,
    set_forward_context,
)
from stridelm.export.vllm_plugin.plugin import ARCHITECTURE
from stridelm.export.vllm_plugin.repairs import mend_sampling

NOWHERE = -1
"""The slot of a row whose keys and values are not kept."""


class ChosenProposer(DraftModelProposer):
    """What the model runner makes if `method` is `draft_model`: ours for our drafters, vLLM's own for all others."""

    def __new__(cls, vllm_config: Any, **_: Any) -> Any:
        drafts = vllm_config.speculative_config.draft_model_config
        is_ours = ARCHITECTURE in (drafts.hf_config.architectures or [])
        return object.__new__(GatedProposer if is_ours else cls)


class GatedProposer(ChosenProposer):
    """Drafts with a GatedDrafter."""

    model: GatedDrafter

    def load_model(self, target_model: Any) -> None:
        mend_sampling()
        self.model = self._get_model()
        self.model.attach(target_model, self.device, self.dtype)
        self._draft_attn_layer_names = self.model.attention_layers

    @torch.inference_mode()
    def dummy_run(self, num_tokens: int, *, is_graph_capturing: bool = False, **options: Any) -> None:
        """Run by vLLM to measure memory. A draft pass has fewer rows than the target's largest and is not captured as a
        graph. But all of its rows have logits, so memory must be left for these."""
        if not is_graph_capturing and num_tokens == self.max_num_tokens:
            rows = self.max_batch_size * self.num_speculative_tokens
            self.model.compute_logits(torch.zeros(rows, self.hidden_size, dtype=self.dtype, device=self.device))

    @torch.inference_mode()
    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        common_attn_metadata: Any,
        sampling_metadata: Any,
        mm_embed_inputs: Any = None,
        num_rejected_tokens_gpu: torch.Tensor | None = None,
        slot_mappings: Any = None,
    ) -> torch.Tensor:
        """Returns [chains, rows] tokens. They are the likeliest ones at any temperature of the request: vLLM's
        rejection sampler then accepts a draft with the probability that the target gives it, which keeps the
        distribution."""
        metadata, chains, length = common_attn_metadata, len(next_token_ids), num_speculative_tokens
        if length == 0:
            return next_token_ids.new_empty(chains, 0)
        last = metadata.query_start_loc[1:] - 1 if token_indices_to_sample is None else token_indices_to_sample
        first_X = target_positions[last] + 1
        positions_XK = first_X.unsqueeze(1) + torch.arange(length, device=first_X.device)
        slots = self._slots(positions_XK, metadata.block_table_tensor).flatten()
        starts = torch.arange(chains + 1, dtype=torch.int32) * length
        ours = metadata.replace(
            query_start_loc=starts.to(first_X.device),
            query_start_loc_cpu=starts,
            seq_lens=(first_X + length).to(metadata.seq_lens.dtype),
            seq_lens_cpu_upper_bound=_raised(metadata.seq_lens_cpu_upper_bound, length),
            num_actual_tokens=chains * length,
            max_query_len=length,
            max_seq_len=metadata.max_seq_len + length,
            slot_mapping=slots,
            _num_computed_tokens_cache=None,
            _token_to_req_indices_cache=None,
        )
        _, per_layer = self.build_per_group_and_layer_attn_metadata(ours)
        with set_forward_context(
            per_layer,
            self.vllm_config,
            num_tokens=chains * length,
            cudagraph_runtime_mode=CUDAGraphMode.NONE,
            slot_mapping=dict.fromkeys(self._draft_attn_layer_names, slots),
        ):
            positions = positions_XK.clamp(max=self.max_model_len - 1).flatten()
            hidden_XKC = self.model(next_token_ids, positions)
        return self.model.choose(hidden_XKC)

    def _slots(self, positions_XK: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        inside_XK = positions_XK < self.max_model_len
        place_XK = positions_XK.clamp(max=self.max_model_len - 1)
        block_XK = blocks[: len(place_XK)].long().gather(1, place_XK // self.block_size)
        return torch.where(inside_XK, block_XK * self.block_size + place_XK % self.block_size, NOWHERE)


def _raised(lengths: torch.Tensor | None, by: int) -> torch.Tensor | None:
    return None if lengths is None else lengths + by


def install() -> None:
    """Let the model runner make a ChosenProposer: it looks this name up in its own module."""
    gpu_model_runner.DraftModelProposer = ChosenProposer
