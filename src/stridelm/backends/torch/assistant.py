"""Gemma 4's assistant: a small network that drafts from what the target has computed already.

It has no keys and values of its own. Each of its layers attends to those that the target's last layer of the same kind
has written to the cache. Its inputs for the first draft are the newest token's embedding and the target's final hidden
state one token earlier; for each further draft, the previous draft's embedding and the assistant's own last output:

    cache of the target    t0 t1 t2 t3          t4: the newest token, not in the cache yet
    first draft            #  #  #  #           from t4 and the target's state at t3
    second draft           #  #  #  #           from the first draft and the assistant's own state

So all drafts of a step have the newest token's position and see the same keys.

Shape letters: X texts, C width of the target, V vocabulary, H query heads, G key-value heads, D head size, T tokens.
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from stridelm.backends.common.trial import TOLERANCE, trial_ids
from stridelm.backends.torch.attention import NAME, AttentionInput, attend_block
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.cache.kv_cache import Table
from stridelm.contracts import Forward
from stridelm.layout import lay_out, make_block
from stridelm.models.find import folder_of
from stridelm.models.folder_settings import read_config
from stridelm.models.network import build_network
from stridelm.models.store import read_weights, weight_files
from stridelm.models.support import ASSISTANT, UnsupportedModel, lending_layers
from stridelm.params import InputError

_TARGET = "gemma4_text"
_KINDS = ("full_attention", "sliding_attention")


class TorchAssistant:
    """Implements `contracts.Assistant`: transformers' own layers, with our attention to the target's cache."""

    def __init__(self, network: PreTrainedModel, target: PreTrainedModel, forward: TorchForward) -> None:
        """`forward` runs the target's network and holds the cache that the assistant reads."""
        self.network, self.target, self.forward = network, target, forward
        lending = lending_layers(target.config.get_text_config())
        self.sources = tuple(lending[kind] for kind in network.config.get_text_config().layer_types)
        """For each layer of the assistant, the target's layer whose keys and values it reads."""

    def reading(self, forward: Forward) -> "TorchAssistant":
        assert isinstance(forward, TorchForward), "the assistant of a network reads what torch keeps"
        return TorchAssistant(self.network, self.target, forward)

    @torch.inference_mode()
    def __call__(
        self, tokens: list[int], hidden_XC: torch.Tensor, tables: list[Table]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.network.device
        # Never read, since attention reads the cache instead: only their number of rows matters.
        empty = torch.empty(1, 1, len(tokens), 0, device=device)
        output = self.network(
            inputs_embeds=self.inputs(tokens, hidden_XC),
            position_ids=torch.tensor([[table.length for table in tables]], device=device),
            shared_kv_states=dict.fromkeys(_KINDS, (empty, empty)),
            stride_step=_CachePass(self.forward, tables, self.sources),
        )
        return output.logits[0].float(), output.last_hidden_state[0]

    def inputs(self, tokens: list[int], hidden_XC: torch.Tensor) -> torch.Tensor:
        """The network's inputs, one row per text: 1 x X x 2C."""
        embedded_XC = self.target.get_input_embeddings()(torch.tensor(tokens, device=self.network.device))
        return torch.cat([embedded_XC, hidden_XC], dim=-1)[None]


class _CachePass:
    """Implements `attention.Pass`: row x sees all cached tokens of text x, or the last ones in layers with a window."""

    def __init__(self, forward: TorchForward, tables: list[Table], sources: tuple[int, ...]) -> None:
        self.memory, self.sources = forward.memory, sources
        self.slots = [forward.cache.reading_slots(table) for table in tables]

    def attend(self, given: AttentionInput) -> torch.Tensor:
        query_HXD, window = given.query_HQD, given.window
        outputs: list[torch.Tensor] = []
        for row, slots in enumerate(self.slots):
            seen = slots if isinstance(slots, slice) else torch.from_numpy(slots).to(query_HXD.device)
            if window is not None:
                # transformers' rule for assistants: the last cached token, and `window` tokens before it.
                seen = _last(seen, window + 1)
            key_GTD, value_GTD = self.memory.read(self.sources[given.layer], seen)
            query_H1D = query_HXD[:, row : row + 1]
            output_H1D = attend_block(query_H1D, key_GTD, value_GTD, None, given.rule)
            outputs.append(output_H1D.transpose(0, 1))
        return torch.cat(outputs)


def _last(slots: slice | torch.Tensor, count: int) -> slice | torch.Tensor:
    if isinstance(slots, slice):
        return slice(max(slots.start, slots.stop - count), slots.stop)
    return slots[-count:]


def assistant_folder(name: str | Path) -> Path | None:
    """The folder of the assistant with this name, downloaded if necessary; None if the name is not an assistant's."""
    folder = folder_of(str(name))
    try:
        settings = "{}" if folder is None else (folder / "config.json").read_text(encoding="utf-8")
        return folder if json.loads(settings).get("model_type") == ASSISTANT else None
    except (OSError, ValueError, AttributeError):
        return None


def load_assistant(folder: Path, target: Checkpoint, forward: Forward) -> TorchAssistant:
    """Load an assistant from a folder, for this target. `forward` holds the target's cache."""
    assert isinstance(forward, TorchForward)
    assistant = TorchAssistant(load_network(folder, target), target.network, forward)
    _check_answer(folder, assistant)
    return assistant


def load_network(folder: Path, target: Checkpoint) -> PreTrainedModel:
    """The assistant as transformers makes it, in its target's precision and on its device."""
    files, config = weight_files(folder), read_config(folder)
    _check_fits(folder, config, target)
    weights = read_weights(files)
    return build_network(str(folder), config, weights, target.network.device, target.network.dtype)


def _check_fits(folder: Path, config: PreTrainedConfig, target: Checkpoint) -> None:
    """Refuse an assistant for another model, before its weights are read."""
    of_target, of_assistant = target.network.config.get_text_config(), config.get_text_config()
    if of_target.model_type != _TARGET:
        raise InputError(
            f"{folder} is a Gemma 4 assistant, which drafts for Gemma 4 models only; {target.name} is "
            f"{target.network.config.model_type}: leave out --draft-model, or give a draft model of the same vocabulary"
        )
    facts: dict[str, tuple[Any, Any]] = {
        "hidden size": (config.backbone_hidden_size, of_target.hidden_size),
        "vocabulary": (of_assistant.vocab_size, of_target.vocab_size),
    }
    lending = lending_layers(of_target)
    for layer, kind in enumerate(of_assistant.layer_types):
        facts[f"a layer of kind {kind}"] = (True, kind in lending)
        for name in ("head_dim", "num_key_value_heads"):
            theirs = _of_layer(of_target, lending[kind], name) if kind in lending else None
            facts[f"{name} of {kind}"] = (_of_layer(of_assistant, layer, name), theirs)
    wrong = [f"{name} {ours}, not {theirs}" for name, (ours, theirs) in facts.items() if ours != theirs]
    if wrong:
        raise InputError(
            f"{folder} is the assistant of another model than {target.name}: it expects {wrong[0]}; use the assistant "
            "that was made for this model"
        )


def _of_layer(config: PreTrainedConfig, layer: int, name: str) -> Any:
    """A setting that differs from layer to layer."""
    return getattr(config.per_layer_config[layer], name)


@torch.inference_mode()
def _check_answer(folder: Path, assistant: TorchAssistant) -> None:
    """Refuse an assistant whose outputs with our attention differ from those of transformers. The target reads a few
    tokens, and the assistant drafts after them in both ways."""
    network, target = assistant.network, assistant.target
    *read, newest = trial_ids(target)
    forward = TorchForward(target, len(read))
    table, last = forward.cache.open(), forward.layers
    (output,) = forward(lay_out([make_block(0, read, layers=(last,))]), [table])
    forward.cache.keep(table, range(len(read)))
    hidden_1C, slots = torch.as_tensor(output.layers_qC[last])[-1:], forward.cache.reading_slots(table)
    assert isinstance(slots, slice), "an empty cache gives its blocks in a row"
    kinds = lending_layers(target.config.get_text_config()).items()
    network.set_attn_implementation("eager")
    expected_1C = network(
        inputs_embeds=assistant.inputs([newest], hidden_1C),
        position_ids=torch.tensor([[len(read)]], device=target.device),
        shared_kv_states={
            kind: tuple(each[None] for each in forward.memory.read(layer, slots)) for kind, layer in kinds
        },
    ).last_hidden_state[0]
    network.set_attn_implementation(NAME)
    _, actual_1C = assistant.reading(forward)([newest], hidden_1C, [table])
    apart = float((expected_1C - actual_1C).abs().max() / expected_1C.abs().max())
    if not apart <= TOLERANCE[network.dtype]:
        raise UnsupportedModel(
            f"{folder}: this assistant drafts otherwise through StrideLM than through transformers (relative "
            f"difference {apart:.1e}): not supported"
        )
