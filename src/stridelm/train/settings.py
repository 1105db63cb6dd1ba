"""The settings of a conversion, each defined once: command line, `train.json` and docs derive from these."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from stridelm.params import InputError
from stridelm.settings import AUTO_DTYPE

MODES = {
    "adapter": "low-rank parts that mask rows pass through; the model's own answers do not change",
    "full": "every weight of a copy, which then stands alone: a plain Hugging Face folder",
    "heads": "parallel prediction heads on the frozen model",
    "draft": "a small draft model of the first --layers layers",
}
LABELS = {
    "soft": "the teacher's whole distribution (KL)",
    "hard": "the teacher's likeliest token",
    "text": "the text's own token",
}


@dataclass(frozen=True, slots=True)
class Objective:
    """What a student may learn, and what that needs."""

    meaning: str
    modes: tuple[str, ...]
    """Those that can learn it."""
    labels: tuple[str, ...]
    """What its loss may compare with. The first is the default; for heads it is the text's own token."""
    needs_answers: bool = False
    """Whether it learns the answers in the file of prompts, not the model's own."""
    needs_critic: bool = False
    """Whether the teacher runs a second time, over what the student proposed."""
    proposes: bool = True
    """Whether the student learns to propose several tokens. If not, there are no masks, and the model writes no
    answers: what is measured is the loss on the held-out ones of the file."""


OBJECTIVES = {
    "distill": Objective(
        "say what the model says when it reads its own answer",
        modes=("adapter", "full", "heads", "draft"),
        labels=("soft", "hard", "text"),
    ),
    "online": Objective(
        "say what the model says when it reads what the student proposed: the critic",
        modes=("adapter", "full"),
        labels=("hard", "soft"),
        needs_critic=True,
    ),
    "ground-truth": Objective(
        "say the text of the answers in --prompts, the naive way",
        modes=("adapter", "full", "heads"),
        labels=("text",),
        needs_answers=True,
    ),
    "sft": Objective(
        "one token at a time on the answers in --prompts: makes a domain model (--mode full)",
        modes=("full",),
        labels=("text",),
        needs_answers=True,
        proposes=False,
    ),
}
"""By `--objective`. A new one is an entry here and its targets in train/objective.py."""
GATES = {"mask": "mask rows alone pass through the adapter", "none": "all rows do, so the model changes"}
MEASURED_DRAFTS = 8
"""Of a draft model, per forward, when it is measured."""


class TrainingFailed(RuntimeError):
    """The loss is no number any more: exit status 1, for the user has done nothing wrong."""


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """Where and how a measurement runs."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""
    threads: int = 0
    """CPU threads; 0 takes one per core."""


def _choices(what: str, choices: dict[str, str]) -> str:
    return f"{what} " + "; ".join(f"{name}: {meaning}" for name, meaning in choices.items()) + "."


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a model is converted. The defaults suit a model of some hundred million parameters on one GPU."""

    mode: str = field(default="adapter", metadata={"help": _choices("What is trained.", MODES)})
    """What is trained."""
    objective: str = field(
        default="distill",
        metadata={
            "help": _choices("What it learns.", {name: each.meaning for name, each in OBJECTIVES.items()}),
        },
    )
    """What it learns."""
    labels: str | None = field(
        default=None,
        metadata={
            "help": _choices("What the loss compares with.", LABELS)
            + " By default soft, with --objective online hard, for heads and given answers text."
        },
    )
    """What the loss compares with."""
    gate: str = field(default="mask", metadata={"help": _choices("Of an adapter.", GATES)})
    """Of an adapter."""
    layers: int = 2
    """Of a draft model."""
    heads: int = 4
    """How many prediction heads."""
    head_size: int | None = None
    """Inner width of a head; by default the model's own."""
    self_prompts: int | None = None
    """Prompts that the model makes up for itself; by default 4096 without a file of prompts, none with one."""
    prompt_tokens: int = 384
    """The longest prompt that the model may make up."""
    answers: int = 1
    """Answers to every prompt."""
    greedy_share: float = 0.6
    """The share of prompts whose first answer is greedy; all other answers are sampled."""
    temperature: float = 0.8
    """Of the sampled answers."""
    answer_tokens: int = 320
    """The longest answer; 2048 and more are fine."""
    rollout_batch: int = 256
    """Answers written at once."""
    held_out: int = 64
    """Prompts that are never trained on, to measure on."""
    k: int = 9
    """Tokens proposed per pass: a chain has k - 1 masks."""
    random_k: bool = False
    """Draw k anew for every step, from 2 up to k; otherwise all masks of a chain are trained."""
    rank: int = 56
    """Of the low-rank part that every linear layer gets."""
    sequential_size: int | None = None
    """State size of the sequential head; 0 trains without it. By default 512 for a gated adapter; no other has one."""
    plain_weight: float = 0.3
    """With a sequential head: how much the loss of the drafts without it counts."""
    depth_decay: float = 0.9
    """A mask one deeper in its chain counts so much less: it is reached less often."""
    texts: int = 32
    """Texts of full length in a step; shorter ones are more in number."""
    length: int = 448
    """Tokens of a text at most; the rest is cut off."""
    anchors: int = 48
    """Chains on a text of full length; shorter ones have fewer in proportion."""
    steps: int = 2000
    """Steps of the optimiser."""
    learning_rate: float | None = None
    """Of AdamW, after a linear warm-up; falls to zero along a cosine. By default 1e-3, for --mode full 1e-5."""
    warmup: int = 100
    """Steps of the warm-up."""
    clip: float = 1.0
    """The gradient's largest norm."""
    seed: int = 0
    """Same seed and machine, same result."""
    evaluate_every: int = 250
    """Steps between measurements on the held-out prompts."""
    checkpoint_every: int = 500
    """Steps between checkpoints, from which --resume goes on."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    dtype: str = AUTO_DTYPE
    """float32, bfloat16 or float16 for the base model; auto: bfloat16 on a GPU. What is trained is float32 always."""
    threads: int = 0
    """CPU threads; 0 takes one per core."""

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is not
                raise InputError(f"--{name.replace('_', '-')} must be between {low} and {high}, not {value}")
        for name, choices in (("mode", MODES), ("objective", OBJECTIVES), ("labels", LABELS), ("gate", GATES)):
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise InputError(f"there is no --{name} {value!r}: {', '.join(choices)} are known")
        if self.mode not in self.learns.modes:
            known = ", ".join(name for name, each in OBJECTIVES.items() if self.mode in each.modes)
            raise InputError(f"--objective {self.objective} does not go with --mode {self.mode}, which takes {known}")
        if self.labels is not None and self.labels not in self.learns.labels:
            raise InputError(
                f"--labels {self.labels} does not go with --objective {self.objective}, which takes "
                f"{', '.join(self.learns.labels)}"
            )
        for each in fields(self):
            matters = _MATTERS.get(each.name)
            if matters is not None and getattr(self, each.name) != each.default and not matters(self):
                raise InputError(
                    f"--{each.name.replace('_', '-')} means nothing with --mode {self.mode} --objective "
                    f"{self.objective} --gate {self.gate}: leave it out"
                )
        if self.warmup >= self.steps:
            raise InputError(f"--warmup ({self.warmup}) must be less than --steps ({self.steps})")
        if self.texts * self.length % 8:
            raise InputError(f"--texts times --length must be a multiple of 8, not {self.texts} x {self.length}")

    @property
    def learns(self) -> Objective:
        return OBJECTIVES[self.objective]

    @property
    def masks(self) -> int:
        """Drafts beyond the model's own next token: masks of a chain, or heads."""
        return self.heads if self.mode == "heads" else self.k - 1

    @property
    def labels_used(self) -> str:
        if self.labels is not None:
            return self.labels
        return "text" if self.mode == "heads" else self.learns.labels[0]

    @property
    def state_size(self) -> int:
        """Of the sequential head."""
        if self.sequential_size is not None:
            return self.sequential_size
        return _SEQUENTIAL_SIZE if self.mode == "adapter" and self.gate == "mask" else 0

    @property
    def peak_rate(self) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return _FULL_RATE if self.mode == "full" else _RATE

    @property
    def has_chains(self) -> bool:
        """Whether masks are trained."""
        return self.mode in ("adapter", "full") and self.learns.proposes

    @property
    def has_anchors(self) -> bool:
        """Whether proposals hang off places in a text."""
        return self.has_chains or self.mode == "heads"


_RATE, _FULL_RATE = 1e-3, 1e-5
_SEQUENTIAL_SIZE = 512


def _is_gated(settings: TrainSettings) -> bool:
    return settings.mode == "adapter" and settings.gate == "mask"


_MATTERS: dict[str, Callable[[TrainSettings], bool]] = {
    "gate": lambda settings: settings.mode == "adapter",
    "layers": lambda settings: settings.mode == "draft",
    "heads": lambda settings: settings.mode == "heads",
    "head_size": lambda settings: settings.mode == "heads",
    "k": lambda settings: settings.has_chains,
    "random_k": lambda settings: settings.has_chains,
    "rank": lambda settings: settings.mode == "adapter",
    "sequential_size": _is_gated,
    "plain_weight": _is_gated,
    "depth_decay": lambda settings: settings.has_anchors,
    "anchors": lambda settings: settings.has_anchors,
    "self_prompts": lambda settings: not settings.learns.needs_answers,
    "prompt_tokens": lambda settings: not settings.learns.needs_answers,
    "answers": lambda settings: not settings.learns.needs_answers,
    "greedy_share": lambda settings: not settings.learns.needs_answers,
    "temperature": lambda settings: not settings.learns.needs_answers,
    "answer_tokens": lambda settings: settings.learns.proposes,
    "rollout_batch": lambda settings: settings.learns.proposes,
}
"""Where a setting means something; elsewhere it is refused."""


_BOUNDS: list[tuple[str, float, float]] = [
    ("self_prompts", 0, 10**7), ("prompt_tokens", 4, 2**20), ("answers", 1, 1000), ("greedy_share", 0, 1),
    ("temperature", 0.01, 10), ("answer_tokens", 4, 2**20), ("rollout_batch", 1, 2**16), ("held_out", 1, 10**5),
    ("layers", 1, 4096), ("heads", 1, 63), ("head_size", 1, 2**16),
    ("k", 2, 64), ("rank", 1, 4096), ("sequential_size", 0, 2**16), ("plain_weight", 0, 10), ("depth_decay", 0.1, 1),
    ("texts", 1, 2**16), ("length", 8, 2**20), ("anchors", 1, 2**16), ("steps", 1, 10**8), ("learning_rate", 1e-8, 1),
    ("warmup", 0, 10**7), ("clip", 1e-6, 1e6), ("seed", 0, 2**30), ("evaluate_every", 1, 10**8),
    ("checkpoint_every", 1, 10**8), ("threads", 0, 4096),
]  # fmt: skip

ROLLOUT_FIELDS = (
    "self_prompts", "prompt_tokens", "answers", "greedy_share", "temperature", "answer_tokens", "held_out", "seed",
)  # fmt: skip
"""What the rollouts depend on: two runs that agree in these can share them."""

assert set(ROLLOUT_FIELDS) < {field.name for field in fields(TrainSettings)}


_SPOKEN = {"fingerprint": "the model's weights", "prompts_sha256": "the prompts", "prompts_given": "the prompts"}
"""What a digest or a count stands for."""


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a record of settings says otherwise than it would say now, for a message: its own values in brackets."""
    apart: list[str] = []
    for name, value in now.items():
        held = before.get(name)
        if isinstance(value, dict):
            apart += differences(held if isinstance(held, dict) else {}, value)
        elif held != value:
            apart.append(_SPOKEN.get(name) or f"{name} ({held})")
    return list(dict.fromkeys(apart))
