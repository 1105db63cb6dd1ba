"""The first part of a model card, for each `--mode`: what was trained. `record.write_card` adds the rest."""

from stridelm.backends.torch.draft_layers import DraftConfig
from stridelm.backends.torch.heads import HeadsConfig
from stridelm.models.adapter import Adapter


def adapter_card(adapter: Adapter) -> str:
    config = adapter.config
    unadapted = f" Layers without one: {', '.join(config.unadapted)}." if config.unadapted else ""
    head = f"a sequential head of size {config.sequential_size}" if config.sequential_size else "no sequential head"
    one = f"one mask embedding for all {config.masks} depths"
    embeddings = f"{config.masks} mask embeddings" if adapter.is_gated else one
    behind = ", behind the vocabulary" if config.extends_vocabulary else ""
    return f"""# A StrideLM adapter for {config.base}

{_PROMISE[adapter.is_gated].format(base=config.base, k=config.k)}

- Format: see `adapter.json`; {_MERGING[adapter.is_gated]}.
- Low-rank parts of rank {config.rank} on {len(config.targets)} linear layers, {embeddings},
  {head}.{unadapted}
- Mask token: `{config.mask_token}`, id {config.mask_token_id}{behind}."""


_PROMISE = {
    True: """With it, {base} proposes up to {k} tokens per forward pass and verifies them in the next. Its answers do
not change: the adapter is applied to mask rows only, and every token is compared with the base model's own.""",
    False: """With it, {base} proposes up to {k} tokens per forward pass and verifies them in the next. All rows pass
through it, so this is another model than {base}: verified decoding is exact to its own answers, one at a time.
What is measured below is measured on the answers of {base}, not on this model's own.""",
}
_MERGING = {
    True: "not a plain LoRA, and not to be merged into the base",
    False: "low-rank parts without a gate, which StrideLM merges into the base at load",
}


def full_card(base: str, masks: int, mask: tuple[str, int] | None) -> str:
    if mask is None:
        return f"""# {base}, tuned

Every weight was tuned on given answers, one token at a time. The folder stands alone.
"""
    name, token = mask
    return f"""# {base}, converted to several tokens per forward pass

Every weight was tuned; the folder stands alone. It proposes up to {masks + 1} tokens per pass. This is another model
than {base}: verified decoding is exact to its own answers, one token at a time; ConfAdapt (`--decoder adaptive`) takes
its proposals unverified.

- Mask token: `{name}`, id {token}, named as `mask_token_id` in config.json.
- What is measured below is measured on the answers of {base}, not on this model's own."""


def heads_card(config: HeadsConfig) -> str:
    return f"""# StrideLM prediction heads for {config.base}

{config.heads} heads on the last hidden state, each a residual block of size {config.size} in front of the base model's
own output matrix. What they propose is verified: the answers do not change.

- Format: see `heads.json`."""


def draft_card(config: DraftConfig) -> str:
    return f"""# A StrideLM draft model for {config.base}

The first {config.layers} layers of {config.base}, distilled; embedding and output matrix are the base model's own and
not stored here. What it proposes is verified: the answers do not change. `stridelm export --part draft` makes a folder
of it that stands alone, for transformers' `assistant_model`.

- Format: see `draft.json`."""
