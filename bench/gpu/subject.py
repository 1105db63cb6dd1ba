"""What gpu/run.py measures: the model as we load it, the same weights as transformers runs them, and the prompts."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import stridelm
from bench.measured import MATHS, prompts_by_kind
from bench.scale.step_cost import MIDDLE, Shape
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.models.find import folder_of
from stridelm.params import InputError
from stridelm.prompts import read_prompts
from stridelm.settings import LoadSettings

CACHE_TOKENS = 65536
"""64 users need more than the default."""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# Loading our model turns one of torch's kernels for attention off; transformers runs as torch comes.
_CUDNN_ATTENTION = torch.backends.cuda.cudnn_sdp_enabled()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    prompts: int = 12
    """Of each group."""
    tokens: int = 256
    rounds: int = 3
    peer_prompts: int = 4
    """Of each group, for transformers' `generate`, which is slow."""
    peer_tokens: int = 128
    context: int = 512
    rows: tuple[int, ...] = (1, 8, 16, 32, 64, 96, 128)
    drafts: tuple[int, ...] = (0, 2, 4, 7, 8)
    replays: int = 10
    """In a row, timed together."""
    times: int = 25
    """How often that is done, in turn with the others."""
    users: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    questions: int = 4
    """Of each user."""
    user_tokens: int = 128
    requests: int = 120
    """Different ones, of users who come and go."""
    arrival_gap: float = 0.05
    """Seconds between two users who come."""
    stay_seconds: float = 12.0
    """For each number of users."""
    warm_up: int = 2
    """Rounds of users at once that do not count: shapes are captured then."""
    rollouts: int = 1024
    rollout_tokens: int = 128
    longest_prompt: int = 192
    """Of rollouts and users at once."""
    exact_prompts: int = 200
    at_once: int = 32
    alone: int = 64
    """Prompts of `exact` that are answered one at a time as well."""
    attention_rows: tuple[int, ...] = (1, 9, 64)
    attention_contexts: tuple[int, ...] = (512, 4096)
    large: Shape = MIDDLE
    large_rows: tuple[int, ...] = (1, 16, 64, 81)
    large_drafts: tuple[int, ...] = (0, 4, 7)
    large_rank: int = 64
    large_state: int = 768
    """Of the sequential head."""


SMOKE = Sizes(
    prompts=2, tokens=24, rounds=1, peer_prompts=1, peer_tokens=8, context=64, rows=(1, 8, 64), drafts=(0, 2),
    replays=2, times=2, users=(1, 2), questions=2, user_tokens=16, rollouts=8, rollout_tokens=8, exact_prompts=4,
    requests=4, stay_seconds=0.5,
    at_once=2, alone=1, attention_rows=(1, 9), attention_contexts=(64,),
    large=replace(MIDDLE, layers=2), large_rows=(1, 64), large_drafts=(0, 2), large_rank=16, large_state=64,
)  # fmt: skip
"""Everything once, in little time; the figures mean nothing."""


class Subject:
    """Loads what a part asks for, when it first does."""

    def __init__(
        self,
        name: str,
        settings: LoadSettings,
        sizes: Sizes,
        *,
        adapter: str | None = None,
        seconds: float = float("inf"),
        results: dict[str, Any] | None = None,
        model: LanguageModel | None = None,
        prompts: dict[str, list[str]] | None = None,
    ) -> None:
        """`seconds`: a part begins nothing new after so long; `results`: by part, what is known already; `model`: where
        it is loaded already; `prompts`: by group, instead of those of bench/prompts."""
        self.name, self.settings, self.sizes, self.adapter, self.seconds = name, settings, sizes, adapter, seconds
        self.results = {} if results is None else results
        self.prompts = prompts or {"maths": _maths(), "general": _general()}
        self._model = model
        self._began = time.monotonic()
        self._part = ""
        self.left_out: list[str] = []

    def begin(self, part: str) -> None:
        self._part, self._began, self.left_out = part, time.monotonic(), []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def say(self, words: str) -> None:
        print(f"[{self._part} {self.elapsed:5.1f} s] {words}", file=sys.stderr, flush=True)

    def has_time(self, what: str) -> bool:
        """Whether there is time for one more thing; what is not begun is named in the results."""
        if self.elapsed < self.seconds:
            return True
        self.left_out.append(what)
        self.say(f"no time left for {what}")
        return False

    @cached_property
    def model(self) -> LanguageModel:
        if self._model is not None:
            return self._model
        self.say(f"loading {self.name}")
        return stridelm.load(self.name, adapter=self.adapter, settings=self.settings)

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self.settings.device)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.settings.dtype]

    @cached_property
    def network(self) -> Any:
        """transformers' own, with its own attention."""
        folder = folder_of(self.name)
        if folder is None:
            raise InputError(f"{self.name}: transformers is measured on a folder, not on a GGUF file")
        self.say("loading transformers' own network")
        network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=self.dtype)
        return network.to(self.device).eval().requires_grad_(False)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """As rollouts take it; nothing ends its answers early."""
        self.say("loading the model as training does")
        loaded = load_checkpoint(self.name, self.settings, trainable=True)
        return replace(loaded, eos_ids=frozenset())

    def groups(self) -> dict[str, list[str]]:
        """The prompts of one user."""
        return {group: texts[: self.sizes.prompts] for group, texts in self.prompts.items()}

    def short_prompts(self, count: int) -> list[list[int]]:
        """Token ids of the groups' prompts in turn, from the first again where there are too few."""
        return [self._short[number % len(self._short)] for number in range(count)]

    @cached_property
    def _short(self) -> list[list[int]]:
        texts = [text for pair in zip(*self.prompts.values(), strict=False) for text in pair]
        encoded = [self.model.encode(text) for text in texts]
        return [ids for ids in encoded if len(ids) <= self.sizes.longest_prompt]


def _maths() -> list[str]:
    return [str(line.prompt) for line in read_prompts(MATHS)]


def _general() -> list[str]:
    """Of all kinds in turn, without maths."""
    kinds = [texts for kind, texts in prompts_by_kind().items() if kind != "maths"]
    return [text for same_place in zip(*kinds, strict=True) for text in same_place]


@contextmanager
def as_torch_comes() -> Iterator[None]:
    """For transformers' runs: our settings of torch are not theirs."""
    ours = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(_CUDNN_ATTENTION)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(ours)


def default_settings(device: str, dtype: str) -> LoadSettings:
    return LoadSettings(device=device, dtype=dtype, cache_tokens=CACHE_TOKENS)
