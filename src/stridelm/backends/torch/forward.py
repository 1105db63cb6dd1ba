"""One forward pass over the packed rows of a step, through a transformers model and our own cache."""

from typing import cast

import torch
from transformers import PreTrainedModel

from stridelm.backends.common.processor import processor_name
from stridelm.backends.common.scorer import Scorer
from stridelm.backends.torch import few_rows
from stridelm.backends.torch.attention import StepPass
from stridelm.backends.torch.gated import TorchGate
from stridelm.backends.torch.llama_layer import has_llama_layers, run_llama
from stridelm.backends.torch.memory import TorchMemory
from stridelm.cache.kv_cache import BLOCK_SIZE, KVCache, Table, blocks_for
from stridelm.models.support import borrowed_layers
from stridelm.types import Output, Rows


class TorchForward:
    """Implements `contracts.Forward`: a transformers model with its own KV cache. Several of them may share a model."""

    backend = "torch"

    def __init__(self, network: PreTrainedModel, cache_tokens: int, gate: TorchGate | None = None) -> None:
        """`gate`: what `attach` returned for this network; with it, steps may have mask rows."""
        self.network = network
        borrowed = borrowed_layers(network.config.get_text_config())
        self.memory = TorchMemory(blocks_for(cache_tokens) * BLOCK_SIZE, borrowed)
        self.cache = KVCache(cache_tokens, self.memory)
        self.gate = gate
        # Models whose layers were all replaced also skip transformers' code around the layers.
        self._run = run_llama if has_llama_layers(network) else _run_transformers
        self.windows: dict[int, int | None] = {}
        """Layer -> the sliding window that it passed to attention in the latest step."""

    @torch.inference_mode()
    def __call__(self, rows: Rows, tables: list[Table]) -> list[Output]:
        """Append the rows to the cache and return, per block, the model's output for its wanted rows."""
        device, dtype = self.network.device, self.network.dtype
        step = StepPass(rows, self.cache, self.memory, tables, device, dtype)
        ids_1Q, positions_1Q = (torch.from_numpy(each)[None].to(device) for each in (rows.ids_Q, rows.positions_Q))
        wanted_W = torch.from_numpy(rows.wanted_W).to(device)
        hidden_WC = None
        if len(rows.mask_rows_M):
            assert self.gate is not None, "mask rows need an adapter"
            with self.gate.open(rows) as in_flight:
                embedded_1QC = self.gate.embed(rows, in_flight)
                logits_WV, layers = self._run(self.network, ids_1Q, embedded_1QC, positions_1Q, wanted_W, step)
            hidden_WC = in_flight.hidden_WC
        else:
            logits_WV, layers = self._run(self.network, ids_1Q, None, positions_1Q, wanted_W, step)
        self.windows = step.windows
        scored = [segment.stop - segment.start for segment in rows.scored_segments]
        assert len(logits_WV) == sum(scored), "the model gave logits for other rows than were asked for"
        return [
            Output(
                logits,
                None if hidden_WC is None else hidden_WC[wanted],
                {layer: read_QC[segment] for layer, read_QC in layers.items()},
            )
            for logits, wanted, segment in zip(
                logits_WV.split(scored), rows.wanted_segments, rows.segments, strict=True
            )
        ]

    @property
    def width(self) -> int:
        return int(self.network.config.get_text_config().hidden_size)

    @property
    def layers(self) -> int:
        return int(self.network.config.get_text_config().num_hidden_layers)

    @property
    def longest(self) -> int:
        return int(self.network.config.get_text_config().max_position_embeddings)

    @property
    def identity(self) -> tuple[object, ...]:
        device = self.network.device
        place = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
        has_products = few_rows.library() is not None
        return self.backend, self.network.dtype, place, torch.get_num_threads(), torch.__version__, has_products

    def with_cache(self, tokens: int) -> "TorchForward":
        return TorchForward(self.network, tokens, self.gate)

    def score(self, hidden_XC: torch.Tensor) -> torch.Tensor:
        return Scorer(self.network)(hidden_XC)

    def zeros(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, self.width, device=self.network.device, dtype=self.network.dtype)

    def synchronize(self) -> None:
        if self.network.device.type == "cuda":
            torch.cuda.synchronize(self.network.device)

    def stepper(self, drafts: int, places: int, ends: frozenset[int]) -> None:
        """None: this backend has no own steps, the host plans each one."""


def _run_transformers(
    network: PreTrainedModel,
    ids_1Q: torch.Tensor,
    embedded_1QC: torch.Tensor | None,
    positions_1Q: torch.Tensor,
    wanted_W: torch.Tensor,
    step: StepPass,
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """The logits of the wanted rows, and the inputs of those layers (or of the output head) that the step asks for."""
    output = network(
        input_ids=ids_1Q if embedded_1QC is None else None,
        inputs_embeds=embedded_1QC,
        position_ids=positions_1Q,
        logits_to_keep=wanted_W,
        use_cache=False,
        output_hidden_states=bool(step.rows.layers),
        stride_step=step,
    )
    # The last of transformers' hidden states is taken after the last norm: it is the output head's input.
    layers = {layer: output.hidden_states[layer][0] for layer in step.rows.layers}
    return cast(torch.Tensor, output.logits)[0].float(), layers
