"""Several tokens per step from a model that StrideLM has converted, in transformers alone:

    model.generate(**inputs, custom_generate=DIR, trust_remote_code=True)

A step is one forward over rows: p, the newest token; d, drafts of what follows, to be verified; m, masks, which ask
what comes after the token that the row before them will give. Masks hang where the accepted path may well end.

    p-d1-d2-m-m-m      row   sees the cache and   p d1 d2  m  m  m  n  n  n
     \\                  p                          x
      n-n-n             d2                         x  x  x
                        2nd m                      x  x  x  x  x
                        2nd n                      x                 x  x

A row sees its ancestors and nothing else, and a gated adapter applies to mask rows only. So the logits of a real row
are the model's own, and every token is drawn from them, in order, as in plain decoding; drafts decide only how many of
these draws one forward serves.

Shape letters: R real rows, M mask rows, D chain depth, C model width, V vocabulary, S head's state, N candidates.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.utils.hub import cached_file

# On a CPU, where ten rows cost twice as much as one, more masks or drafts would not pay; on a GPU they gain little.
MASKS = 3
"""Maximum number of masks in a chain, and so of drafts per step."""
WORTH_A_DRAFT = 0.05
"""A draft is run if its estimated probability of acceptance is at least this. The masks' estimates are too low rather
than too high."""
WORTH_MASKS = 0.12
"""Masks hang off a row if the probability that the accepted path ends there is at least this."""
CANDIDATES = 64
"""Number of likeliest tokens of a mask row among which the sequential head chooses."""


def generate(
    inputs: Any = None, *, model: Any, streamer: Any = None, assistant_model: Any = None, **options: Any
) -> Any:
    """Takes and returns what `model.generate` does; options that are not supported raise a ValueError."""
    if assistant_model is not None:
        raise ValueError("assistant_model: this model drafts for itself; leave it or custom_generate out")
    options = _with_stop_strings(model, **options)
    # A copy: its state of the current forward belongs to this call alone.
    decoder = partial(_decode, drafter=copy(_drafter(model)), own_streamer=streamer)
    return type(model).generate(model, inputs, streamer=streamer, custom_generate=decoder, **options)


def _with_stop_strings(model: Any, *, tokenizer: Any = None, **options: Any) -> dict[str, Any]:
    """The options, with stop strings turned into a stopping criterion: these need the tokenizer, which transformers
    does not pass on to a custom decoder."""
    configs = (options.get("generation_config"), model.generation_config)
    named = [config.stop_strings for config in configs if config is not None and config.stop_strings is not None]
    stop_strings = options["stop_strings"] if "stop_strings" in options else next(iter(named), None)
    if stop_strings is None:
        return options
    if tokenizer is None:
        raise ValueError("stop_strings: give the tokenizer, too, as tokenizer=")
    criteria = [*(options.get("stopping_criteria") or ()), StopStringCriteria(tokenizer, stop_strings)]
    return options | {"stop_strings": None, "stopping_criteria": StoppingCriteriaList(criteria)}


def _decode(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    drafter: "_Drafter",
    own_streamer: Any,
    **model_kwargs: Any,
) -> Any:
    _refuse(model, input_ids, generation_config, model_kwargs)
    cache = model_kwargs["past_key_values"]
    text = _Text(input_ids, logits_processor, stopping_criteria, generation_config, own_streamer)
    text.draw(model(input_ids=input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1])
    drafts: list[tuple[int, float]] = []
    with drafter.attached(model):
        while not text.is_finished:
            # Drafts beyond the maximum length would be useless.
            block = _plan(drafts[: generation_config.max_length - text.length - 1])
            logits_RV = drafter.forward(model, cache, [text.newest, *block.drafts], block.anchors)
            accepted = 0
            for draft in (*block.drafts, None):
                text.draw(logits_RV[accepted][None])
                if text.is_finished or text.newest != draft:
                    break
                accepted += 1
            cache.crop(-(block.rows(drafter.masks) - 1 - accepted))
            has_masks = accepted in block.anchors
            drafts = drafter.propose(model, block.anchors.index(accepted), text.newest) if has_masks else []
    return text.result(cache)


class _Text:
    """The text so far: draws its next token, and checks whether it has ended."""

    def __init__(self, ids: torch.Tensor, processor: Any, criteria: Any, config: Any, streamer: Any) -> None:
        self.ids, self.processor, self.criteria, self.config, self.streamer = ids, processor, criteria, config, streamer
        self.is_finished = False
        self.newest = -1
        self.scores: tuple[torch.Tensor, ...] | None = () if config.output_scores else None
        self.logits: tuple[torch.Tensor, ...] | None = () if config.output_logits else None

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def draw(self, logits_1V: torch.Tensor) -> None:
        """Draw as transformers' own decoding does: one draw per token, so the same seed gives the same text."""
        logits_1V = logits_1V.to(copy=True, dtype=torch.float32, device=self.ids.device)
        scores_1V = self.processor(self.ids, logits_1V)
        if self.scores is not None:
            self.scores += (scores_1V,)
        if self.logits is not None:
            self.logits += (logits_1V,)
        if self.config.do_sample:
            token_1 = torch.multinomial(scores_1V.softmax(dim=-1), num_samples=1)[0]
        else:
            token_1 = scores_1V.argmax(dim=-1)
        self.newest = int(token_1)
        self.ids = torch.cat([self.ids, token_1[None]], dim=-1)
        self.is_finished = bool(self.criteria(self.ids, self.scores).all())
        if self.streamer is not None:
            self.streamer.put(token_1.cpu())

    def result(self, cache: Any) -> Any:
        if self.streamer is not None:
            self.streamer.end()
        if not self.config.return_dict_in_generate:
            return self.ids
        fields: dict[str, Any] = {"sequences": self.ids, "scores": self.scores, "logits": self.logits}
        return GenerateDecoderOnlyOutput(**fields, past_key_values=cache)


class _Block:
    """The drafts of a step, a chain after the newest token, and the rows that masks hang off (0: the newest token)."""

    def __init__(self, drafts: list[int], anchors: list[int]) -> None:
        self.drafts, self.anchors = drafts, anchors

    def rows(self, masks: int) -> int:
        return 1 + len(self.drafts) + masks * len(self.anchors)


def _plan(drafts: list[tuple[int, float]]) -> _Block:
    """Choose the drafts to run and where masks hang. `drafts`: each token with the probability that it is right if all
    before it are."""
    tokens: list[int] = []
    reached = [1.0]
    for token, probability in drafts:
        if reached[-1] * probability < WORTH_A_DRAFT:
            break
        tokens.append(token)
        reached.append(reached[-1] * probability)
    ends = [here - further for here, further in zip(reached, [*reached[1:], 0.0], strict=True)]
    likeliest = max(range(len(ends)), key=ends.__getitem__)
    return _Block(tokens, [row for row, end in enumerate(ends) if end >= WORTH_MASKS or row == likeliest])


class _Drafter:
    """Drafts for a model: holds the embeddings of its masks and, with a gated adapter, low-rank parts for the mask rows
    and a sequential head, which reads the tokens that the masks could not see."""

    def __init__(self, model: Any, mask_embedding_DC: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
        self.mask_embedding_DC = mask_embedding_DC[:MASKS].detach().to(model.device, model.dtype)
        self.masks = len(self.mask_embedding_DC)
        self.low_rank: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for target in (name.removesuffix(".down") for name in tensors if name.endswith(".down")):
            place = model.get_submodule(target).weight.device
            down, up = (tensors[f"{target}.{factor}"].to(place, model.dtype) for factor in ("down", "up"))
            self.low_rank[target] = down, up
        prefix, place = "sequential_head.", model.get_output_embeddings().weight.device
        self.head = {
            name.removeprefix(prefix): tensor.to(place, torch.float32)
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        self.first_mask = 0
        """In the current forward, the rows from this one on are masks."""
        self.hidden_MC = self.mask_embedding_DC[:0]
        """The final hidden states of its mask rows."""

    def is_for(self, model: Any) -> bool:
        return (self.mask_embedding_DC.device, self.mask_embedding_DC.dtype) == (model.device, model.dtype)

    @contextmanager
    def attached(self, model: Any) -> Iterator[None]:
        """Inside this context the low-rank parts apply to the mask rows of our own forwards. Other forwards of the
        model, by another thread or by code that runs between our steps, are not changed."""

        def adapt(down: torch.Tensor, up: torch.Tensor, _: Any, inputs: Any, output: torch.Tensor) -> None:
            if _RUNNING.get() is not self:
                return
            masks = inputs[0][..., self.first_mask :, :]
            output[..., self.first_mask :, :] += functional.linear(functional.linear(masks, down), up)

        def keep(_: Any, __: Any, output: Any) -> None:
            if _RUNNING.get() is self:
                self.hidden_MC = output[0][0, self.first_mask :]

        hooks = [model.base_model.register_forward_hook(keep)]
        for target, factors in self.low_rank.items():
            hooks.append(model.get_submodule(target).register_forward_hook(partial(adapt, *factors)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def forward(self, model: Any, cache: Any, real: list[int], anchors: list[int]) -> torch.Tensor:
        """Run the real rows, a chain, and a chain of masks off each anchor; returns the logits of the real rows."""
        rows, masks, past = len(real), self.masks, cache.get_seq_length()
        embedded_RC = model.get_input_embeddings()(torch.tensor(real, device=model.device))
        embedded = torch.cat([embedded_RC, *[self.mask_embedding_DC] * len(anchors)])
        positions = [*range(rows), *(anchor + depth for anchor in anchors for depth in range(1, masks + 1))]
        sees = torch.zeros(len(positions), past + len(positions), dtype=torch.bool)
        sees[:, :past] = True
        sees[:rows, past : past + rows] = torch.ones(rows, rows).tril()
        for number, anchor in enumerate(anchors):
            chain = slice(rows + number * masks, rows + (number + 1) * masks)
            sees[chain, past : past + anchor + 1] = True
            sees[chain, past + chain.start : past + chain.stop] = torch.ones(masks, masks).tril()
        hidden = torch.zeros(sees.shape, dtype=model.dtype).masked_fill(~sees, torch.finfo(model.dtype).min)
        self.first_mask = rows
        before = _RUNNING.set(self)
        try:
            return model(
                inputs_embeds=embedded[None],
                attention_mask=hidden[None, None].to(model.device),
                position_ids=past + torch.tensor([positions], device=model.device),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=torch.arange(rows, device=model.device),
            ).logits[0]
        finally:
            _RUNNING.reset(before)

    def propose(self, model: Any, chain: int, newest: int) -> list[tuple[int, float]]:
        """Drafts for what follows the newest token, from one chain of masks of the last forward; each with the
        probability that the masks give it."""
        output, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        hidden_DC = self.hidden_MC[chain * self.masks : (chain + 1) * self.masks].to(output.weight.device)
        logits_DV = output(hidden_DC).float()
        if not self.head:
            best = logits_DV.softmax(dim=-1).max(dim=-1)
            return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        best_DN = logits_DV.topk(min(CANDIDATES, logits_DV.shape[-1]))
        state_S = hidden_DC.new_zeros(self.head["carry.weight"].shape[1], dtype=torch.float32)
        drafts: list[tuple[int, float]] = []
        for hidden_C, logits_N, tokens_N in zip(hidden_DC.float(), *best_DN, strict=True):
            before_C = embedding(torch.tensor(newest, device=model.device)).float()
            moved_C, state_S = self._read(hidden_C, before_C.to(state_S.device), state_S)
            probabilities_N = (logits_N + output.weight[tokens_N].float() @ moved_C).softmax(dim=-1)
            choice = int(probabilities_N.argmax())
            newest = int(tokens_N[choice])
            drafts.append((newest, float(probabilities_N[choice])))
        return drafts

    def _read(
        self, hidden_C: torch.Tensor, before_C: torch.Tensor, state_S: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.cat([functional.rms_norm(part, part.shape) for part in (hidden_C, before_C)])
        read = functional.linear(seen, self.head["read.weight"], self.head["read.bias"])
        gate_S, candidate_S = (read + functional.linear(state_S, self.head["carry.weight"])).chunk(2)
        state_S = torch.lerp(state_S, candidate_S.tanh(), gate_S.sigmoid())
        return functional.linear(state_S, self.head["write.weight"]), state_S


_RUNNING: ContextVar[_Drafter | None] = ContextVar("_RUNNING", default=None)
"""The drafter whose forward is running in this thread, if any."""
_DRAFTERS: WeakKeyDictionary[Any, _Drafter] = WeakKeyDictionary()
"""One per model, read at first use and dropped together with the model."""


def _drafter(model: Any) -> _Drafter:
    known = _DRAFTERS.get(model)
    if known is None or not known.is_for(model):
        known = _DRAFTERS[model] = _read_drafter(model)
    return known


def _read_drafter(model: Any) -> _Drafter:
    """The gated adapter beside this script in the model's own folder, or the masks that its config names."""

    def find(name: str) -> Any:
        quietly = {f"_raise_exceptions_for_{each}": False for each in ("missing_entries", "connection_errors")}
        return cached_file(model.name_or_path, name, subfolder="custom_generate", **quietly)

    settings = find("adapter.json") if model.name_or_path else None
    if settings is not None:
        with open(settings, encoding="utf-8") as file:
            shards = json.load(file)["shards"]
        tensors: dict[str, torch.Tensor] = {}
        for shard in shards:
            tensors |= load_file(find(shard))
        return _Drafter(model, tensors["mask_embedding"], tensors)
    config = model.config
    if getattr(config, "mask_token_id", None) is None:
        raise ValueError(
            f"{model.name_or_path!r} has neither custom_generate/adapter.json nor a mask_token_id in its config: load "
            "the model from the folder that `stridelm export --to hf` made"
        )
    ids = getattr(config, "mask_token_ids", None) or [config.mask_token_id]
    chain = [ids[min(depth, len(ids) - 1)] for depth in range(getattr(config, "trained_masks", MASKS))]
    return _Drafter(model, model.get_input_embeddings()(torch.tensor(chain, device=model.device)), {})


def _refuse(model: Any, input_ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise a ValueError for anything unsupported, which names it and says what to do instead."""
    mode, attention = config.get_generation_mode().value, model.config._attn_implementation
    cache, positions = model_kwargs.get("past_key_values"), model_kwargs.get("position_ids")
    layers = {type(layer).__name__ for layer in getattr(cache, "layers", ()) if type(layer) is not DynamicLayer}
    rotary = str(getattr(model.config.get_text_config(), "rope_parameters", None))
    counted = torch.arange(input_ids.shape[1], device=input_ids.device)
    known = {"attention_mask", "past_key_values", "position_ids", "use_cache", "logits_to_keep"}
    others = sorted(name for name, value in model_kwargs.items() if value is not None and name not in known)
    reasons = (
        (mode not in ("greedy_search", "sample"), f"{mode}: leave out the options that ask for it"),
        (len(input_ids) != 1, f"a batch of {len(input_ids)} texts: give one prompt, and ask for one answer"),
        (model_kwargs.get("attention_mask") is not None, "padding: give the prompt without it"),
        (config.output_attentions or config.output_hidden_states, "output of attentions or hidden states"),
        (config.prefill_chunk_size is not None, "prefill_chunk_size: leave it out"),
        (config.guidance_scale not in (None, 1), "guidance_scale: leave it out"),
        (attention not in ("eager", "sdpa"), f"attention by {attention}: load with attn_implementation='sdpa'"),
        (not config.use_cache, "use_cache=False: leave it out"),
        (type(cache) is not DynamicCache, f"a {type(cache).__name__}: leave out what asks for it"),
        (cache and cache.get_seq_length(), "a cache that holds something already: leave out past_key_values"),
        (layers, f"sliding windows or recurrent layers ({', '.join(layers)}): use plain generate"),
        ("dynamic" in rotary or "longrope" in rotary, "positions that change with the length: use plain generate"),
        (positions is not None and not torch.equal(positions[0], counted), "position_ids of your own: leave them out"),
        (others, f"{', '.join(others)}: leave that out"),
    )
    for is_so, reason in reasons:
        if is_so:
            raise ValueError(f"this custom_generate does not do {reason}")
