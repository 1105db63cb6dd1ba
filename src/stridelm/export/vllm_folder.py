"""Folders for vLLM: the model as it is, and what drafts for it.

    gated adapter    model/ and drafter/: the adapter, which the plugin applies to the served model's own weights
    without a gate   model/ and drafter/: the model with the adapter merged, a draft model for vLLM without plugin
    full conversion  model/, which names its mask token and so drafts for itself, in vLLM without plugin

`Written` says which of these was written, and the command that serves it.
"""

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.export.hf_folder import write_plain
from stridelm.export.mask_vocabulary import are_equal, embed_as, free_ids, untie
from stridelm.export.vllm_plugin.checks import check_family
from stridelm.export.vllm_plugin.plugin import ARCHITECTURE
from stridelm.models.adapter import Adapter, save_adapter
from stridelm.models.fingerprint import fingerprint_of
from stridelm.models.mask_token import MASKS_KEY
from stridelm.models.preview import MASK_KEY
from stridelm.models.store import as_dtype, save_network
from stridelm.models.ungated import merge
from stridelm.params import InputError

MODEL, DRAFTER = "model", "drafter"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written into a folder for vLLM."""

    drafter: str
    """Name of the subfolder that drafts: `drafter`, or `model` if the model drafts for itself."""
    drafts: int
    """How many tokens it proposes per pass, as trained."""
    needs_plugin: bool

    def speculative_config(self, folder: Path) -> str:
        return json.dumps(
            {
                "method": "draft_model",
                "model": str(folder / self.drafter),
                "num_speculative_tokens": self.drafts,
                "parallel_drafting": True,
            }
        )

    def command(self, folder: Path) -> str:
        """The command that serves the folder."""
        return shlex.join(
            ["vllm", "serve", str(folder / MODEL), "--speculative-config", self.speculative_config(folder)]
        )


def write_gated(base: Checkpoint, adapter: Adapter, folder: Path) -> Written:
    assert adapter.is_gated
    check_family(type(base.network).__name__, base.network.config.get_text_config())
    model, drafter = _begin(folder)
    write_plain(base, model)
    # The fingerprint of the weights as stored here, so that the plugin can check that this model is the one served.
    config = replace(adapter.config, fingerprint=fingerprint_of(model))
    save_adapter(drafter, replace(adapter, config=config))
    # vLLM reads this before anything else: the sizes are the model's, the architecture is the plugin's.
    settings = json.loads((model / "config.json").read_text(encoding="utf-8"))
    settings |= {"architectures": [ARCHITECTURE], MASK_KEY: adapter.config.mask_token_id}
    (drafter / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return Written(DRAFTER, adapter.config.k, needs_plugin=True)


def write_ungated(base: Checkpoint, adapter: Adapter, folder: Path) -> Written:
    """Write model and merged drafter. The base's network in memory is changed into the drafter."""
    assert not adapter.is_gated
    _check_one_mask(are_equal(adapter.mask_embedding))
    model, drafter = _begin(folder)
    write_plain(base, model)
    merge(base.network, adapter)
    mask_token_in(base, adapter.mask_embedding[:1])
    setattr(base.network.config, MASKS_KEY, adapter.config.masks)
    # A drafter's proposals are verified, so it may lose precision.
    state = as_dtype(base.network.state_dict(), torch.bfloat16)
    save_network(drafter, base.network, base.tokenizer, base.eos_ids, state)
    return Written(DRAFTER, adapter.config.k, needs_plugin=False)


def write_full(base: Checkpoint, masks: list[int], folder: Path) -> Written:
    """Write a model that names its own mask token. `masks`: the ids of its masks by depth."""
    _check_one_mask(len(set(masks)) == 1)
    model, _ = _begin(folder)
    write_plain(base, model)
    return Written(MODEL, len(masks) + 1, needs_plugin=False)


def _check_one_mask(is_one: bool) -> None:
    if not is_one:
        raise InputError(
            "the conversion has a mask of its own for every depth, and vLLM's parallel drafting has one token for all "
            "of them: train it anew, `stridelm train --gate none` makes one now"
        )


def _begin(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True)
    return folder / MODEL, folder / DRAFTER


def mask_token_in(base: Checkpoint, embedding_1C: torch.Tensor) -> int:
    """Give the mask an id inside the vocabulary, which must be as large as the served model's. If every id is in use, a
    special token that no conversation contains is taken: a text with that token gets bad drafts, nothing worse. At the
    output the id keeps its meaning."""
    token = _spare_token(base.tokenizer, base.vocabulary)
    untie(base.network)
    embed_as(base.network.get_input_embeddings(), [token], embedding_1C)
    setattr(base.network.config, MASK_KEY, token)
    return token


def _spare_token(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> int:
    free = free_ids(tokenizer, vocabulary)
    if free:
        return free[-1]
    spoken = str(tokenizer.chat_template)
    special = {
        token: added.content
        for token, added in tokenizer.added_tokens_decoder.items()
        if added.special and token < vocabulary and added.content not in spoken
    }
    named = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token)
    spare = [token for token, content in special.items() if content not in named]
    if not spare:
        raise InputError(
            "every token of the vocabulary has a use, so none can stand for the mask in vLLM, which wants drafter and "
            "model to have the same vocabulary: convert the model with a gate (`stridelm train`), for the plugin"
        )
    return spare[-1]
