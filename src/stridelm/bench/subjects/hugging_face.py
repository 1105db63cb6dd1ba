"""transformers' `generate` on the same weights, in float32 and greedy: plain, with a draft model, and with prompt
look-up. All other settings are the library's defaults."""

import time
from collections import Counter
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stridelm.bench.records import Answer, Question
from stridelm.bench.subjects import WARM_UP, Absent, memory_peak, prompt_of
from stridelm.models.encode import encode_prompt
from stridelm.settings import LoadSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from stridelm.backends.torch.checkpoint import Checkpoint

_LOOK_UP_TOKENS = 10
"""Number of tokens proposed from the prompt: as many as the method's authors use."""


class Way(StrEnum):
    """How `generate` decodes; also the subject's name."""

    PLAIN = "transformers"
    ASSISTED = "transformers, draft model"
    LOOK_UP = "transformers, prompt look-up"


class Network:
    """The model with transformers' own layers, shared by all these subjects: loaded when the first of them starts."""

    def __init__(self, model: str, settings: LoadSettings, draft_model: str | None = None) -> None:
        """Arguments as for `stridelm.load`; of `settings` only device and threads are used. `draft_model`: by default
        the one that comes with the model."""
        self.model = model
        self.settings = LoadSettings(device=settings.device, dtype="float32", threads=settings.threads)
        self._draft_model = draft_model

    @cached_property
    def checkpoint(self) -> "Checkpoint":
        from stridelm.backends.torch.checkpoint import load_checkpoint

        # A trainable model keeps transformers' own layers; its own attention is restored here.
        checkpoint = load_checkpoint(self.model, self.settings, trainable=True)
        checkpoint.network.set_attn_implementation("sdpa")
        return checkpoint

    @cached_property
    def assistant(self) -> "PreTrainedModel":
        from pathlib import Path

        from stridelm.backends.torch.assistant import assistant_folder
        from stridelm.backends.torch.checkpoint import load_checkpoint
        from stridelm.backends.torch.draft_layers import is_draft, load_layers
        from stridelm.backends.torch.draft_source import check_same_vocabulary
        from stridelm.models.preview import own_draft

        place = self._draft_model or own_draft(self.model)
        if place is None:
            raise Absent(f"{self.model} comes without a draft model: give one with --draft-model")
        if assistant_folder(place) is not None:
            raise Absent(f"{place}: transformers is not measured with a Gemma 4 assistant (5.19 fails with one)")
        if is_draft(Path(place)):
            network = load_layers(Path(place), self.checkpoint).requires_grad_(False)
        else:
            draft = load_checkpoint(str(place), self.settings, trainable=True)
            check_same_vocabulary(self.checkpoint, draft)
            network = draft.network
        network.set_attn_implementation("sdpa")
        return network


def hugging_face(model: str, settings: LoadSettings, draft_model: str | None = None) -> list["HuggingFace"]:
    """One subject for each way of decoding, all on one network. Arguments as for `stridelm.load`."""
    network = Network(model, settings, draft_model)
    return [HuggingFace(network, way) for way in Way]


class HuggingFace:
    """`generate` with one way of decoding."""

    def __init__(self, network: Network, way: Way) -> None:
        self.name = way.value
        self.about: dict[str, Any] = {"library": "transformers", "dtype": "float32", "exact": True}
        self._network, self._way = network, way
        self._options: dict[str, Any] = {}

    def start(self) -> None:
        import torch
        import transformers

        # `generate` warns about its own settings, which would spoil the progress bar.
        transformers.logging.set_verbosity_error()
        checkpoint = self._network.checkpoint
        self.about |= {"version": transformers.__version__, "torch": torch.__version__}
        self.about |= {"threads": torch.get_num_threads(), "model": checkpoint.name}
        if self._way is Way.ASSISTED:
            self._options = {"assistant_model": self._network.assistant}
            self.about["draft_layers"] = int(self._network.assistant.config.get_text_config().num_hidden_layers)
        elif self._way is Way.LOOK_UP:
            self._options = {"prompt_lookup_num_tokens": _LOOK_UP_TOKENS}
            self.about |= self._options

    def warm_up(self) -> None:
        self.ask(WARM_UP)

    def ask(self, question: Question) -> Answer:
        import torch

        checkpoint = self._network.checkpoint
        network: Any = checkpoint.network
        eos = sorted(checkpoint.eos_ids)
        strides, rows = Strides(), list[int]()
        hook = network.register_forward_hook(
            lambda module, inputs, named, output: rows.append(named["input_ids"].shape[1]), with_kwargs=True
        )
        started = time.perf_counter()
        try:
            prompt = encode_prompt(checkpoint, prompt_of(question))
            ids = torch.tensor([prompt], device=network.device)
            with torch.inference_mode():
                output = network.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=min(question.max_tokens, checkpoint.context_length - len(prompt)),
                    eos_token_id=eos or None,
                    pad_token_id=eos[0] if eos else 0,
                    streamer=strides,
                    **self._options,
                )
            tokens: list[int] = output[0, len(prompt) :].tolist()
            text = checkpoint.tokenizer.decode(tokens, skip_special_tokens=True)
        finally:
            hook.remove()
        seconds = time.perf_counter() - started
        rows[0] -= len(prompt) - 1  # of the prompt only the last row counts, which writes
        drafted, accepted = by_depth_of_chains(
            [(each - 1, count - 1) for each, count in zip(rows, strides.tokens, strict=True)]
        )
        return Answer(
            tokens=tuple(tokens),
            text=str(text),
            stride_tokens=tuple(strides.tokens),
            stride_seconds=tuple(moment - started for moment in strides.moments),
            seconds=seconds,
            prompt_tokens=len(prompt),
            forwards=len(rows),
            rows=sum(rows) - 1,
            drafted_by_depth=drafted,
            accepted_by_depth=accepted,
            memory_peak=memory_peak(),
        )

    def close(self) -> None:
        """Nothing to close: other subjects share the network."""


class Strides:
    """A streamer for `generate`, which calls `put` with the prompt before it is read, then with the tokens of each
    pass."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.moments: list[float] = []
        self._has_prompt = False

    def put(self, value: Any) -> None:
        if self._has_prompt:
            self.moments.append(time.perf_counter())
            self.tokens.append(value.numel())
        self._has_prompt = True

    def end(self) -> None:
        """Nothing to do: `put` has recorded all times."""


def by_depth_of_chains(passes: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """From each pass's numbers of proposed and accepted tokens: by depth, from 1, how many were looked at, and how many
    were accepted. The last token of a pass is the model's own."""
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for proposed, stood in passes:
        accepted.update(range(1, stood + 1))
        drafted.update(range(1, min(stood + 1, proposed) + 1))
    depths = range(1, max(drafted, default=0) + 1)
    return tuple(drafted[depth] for depth in depths), tuple(accepted[depth] for depth in depths)
