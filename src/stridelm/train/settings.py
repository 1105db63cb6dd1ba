"""The settings of a conversion, each defined once: the command line, `train.json` and the docs derive from them."""

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
    """What a student can learn, and what training it requires."""

    meaning: str
    modes: tuple[str, ...]
    """The modes that can learn it."""
    labels: tuple[str, ...]
    """The labels that its loss accepts. The first is the default, except for heads, whose default is `text`."""
    needs_answers: bool = False
    """Whether it learns the answers given in the prompts file instead of the model's own answers."""
    needs_critic: bool = False
    """Whether the teacher runs a second time, over the tokens that the student proposed."""
    proposes: bool = True
    """Whether the student learns to propose several tokens. If not, there are no masks and no rollouts, and the
    evaluation is the loss on the held-out answers of the prompts file."""


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
"""By `--objective`. To add one, add an entry here and its targets in train/objective.py."""
OWN = "own"
"""`--start`: the adapter that comes with the model."""
GATES = {"mask": "mask rows alone pass through the adapter", "none": "all rows do, so the model changes"}
MEASURED_DRAFTS = 8
"""Number of drafts per forward pass when a draft model is evaluated."""


class TrainingFailed(RuntimeError):
    """The loss or a weight is no longer finite. Exit status 1, since this is not an error in the user's input."""


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """The device, precision and threads of a measurement."""

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
    """How a model is converted. The defaults suit a model of a few hundred million parameters on one GPU."""

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
    gate: str = field(default="mask", metadata={"help": _choices("Which rows pass through the adapter.", GATES)})
    """Which rows pass through the adapter."""
    start: str | None = None
    """Folder of a gated adapter to start from, or `own` for the one that comes with the model: training goes on with
    its weights. Its rank may be smaller, and it may lack tail heads; otherwise its form must be that of this run."""
    layers: int = 2
    """Number of layers of the draft model."""
    heads: int = 4
    """Number of prediction heads."""
    head_size: int | None = None
    """Inner width of a head; by default the model's hidden size."""
    self_prompts: int | None = None
    """Number of prompts that the model makes up; by default 4096 without a prompts file, 0 with one."""
    prompt_tokens: int = 384
    """Maximum number of tokens of a prompt that the model makes up."""
    openings: float = 0.0
    """Fraction of these that begin with a few words of ours (half of word problems, half of requests), which the model
    continues; the others it begins itself."""
    answers: int = 1
    """Number of answers per prompt."""
    greedy_share: float = 0.6
    """Fraction of prompts whose first answer is greedy; all other answers are sampled."""
    temperature: float = 0.8
    """Sampling temperature of the answers that are not greedy."""
    answer_tokens: int = 320
    """Maximum number of tokens of an answer; 2048 and more are fine."""
    rollout_batch: int = 256
    """Number of answers generated at once."""
    held_out: int = 64
    """Number of prompts that are kept out of training, for evaluation."""
    k: int = 9
    """Tokens proposed per forward pass: a chain has k - 1 masks."""
    random_k: bool = False
    """Draw a new length of chains for every step, up to all drafts; otherwise every step trains whole chains."""
    rank: int = 56
    """Rank of the low-rank part that is added to each linear layer."""
    sequential_size: int | None = None
    """State size of the sequential head; 0 trains without one. By default 512; only gated adapters have this head."""
    tail_heads: int | None = None
    """Number of prediction heads on the last mask of a chain: they propose the tokens behind it, without a row each. By
    default 4; only gated adapters have them."""
    tail_size: int = 256
    """Inner width of these heads."""
    plain_weight: float = 0.3
    """With a sequential head: weight of the additional loss on the drafts without the head."""
    depth_decay: float = 0.9
    """Factor on the loss weight per depth of a mask in its chain: deeper masks are reached less often."""
    texts: int = 32
    """Number of texts of full length per step; a step of shorter texts has more of them."""
    length: int = 448
    """Maximum number of tokens of a text; the rest is cut off."""
    anchors: int = 48
    """Number of chains on a text of full length; shorter texts have proportionally fewer."""
    steps: int = 2000
    """Number of optimiser steps."""
    up_rate: float = 4.0
    """Factor on the learning rate of the second factors of the low-rank parts, which start at zero."""
    learning_rate: float | None = None
    """Peak learning rate of AdamW: linear warm-up, then cosine decay to zero. By default 1e-3, for --mode full 1e-5."""
    warmup: int = 100
    """Number of warm-up steps."""
    clip: float = 1.0
    """Maximum gradient norm; larger gradients are scaled down to it."""
    seed: int = 0
    """Random seed: the same seed on the same machine gives the same result."""
    evaluate_every: int = 250
    """Steps between evaluations on the held-out prompts."""
    checkpoint_every: int = 500
    """Steps between checkpoints, from which --resume continues."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    dtype: str = AUTO_DTYPE
    """float32, bfloat16 or float16 for the base model; auto: bfloat16 on a GPU. Trained weights are always float32."""
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
            applies = _APPLIES.get(each.name)
            if applies is not None and getattr(self, each.name) != each.default and not applies(self):
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
        """Number of drafts beyond the model's own next token: the masks of a chain, or the heads."""
        return self.heads if self.mode == "heads" else self.k - 1

    @property
    def tail(self) -> int:
        """Number of drafts behind the last mask."""
        if self.tail_heads is not None:
            return self.tail_heads
        return _TAIL_HEADS if _is_gated(self) else 0

    @property
    def drafts(self) -> int:
        """Number of drafts of a chain."""
        return self.masks + self.tail

    @property
    def labels_used(self) -> str:
        if self.labels is not None:
            return self.labels
        return "text" if self.mode == "heads" else self.learns.labels[0]

    @property
    def state_size(self) -> int:
        """State size of the sequential head; 0 for none."""
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
        """Whether proposals start from anchors, positions drawn from each text."""
        return self.has_chains or self.mode == "heads"


_RATE, _FULL_RATE = 1e-3, 1e-5
_SEQUENTIAL_SIZE = 512
_TAIL_HEADS = 4


def _is_gated(settings: TrainSettings) -> bool:
    return settings.mode == "adapter" and settings.gate == "mask"


_APPLIES: dict[str, Callable[[TrainSettings], bool]] = {
    "gate": lambda settings: settings.mode == "adapter",
    "start": _is_gated,
    "layers": lambda settings: settings.mode == "draft",
    "heads": lambda settings: settings.mode == "heads",
    "head_size": lambda settings: settings.mode == "heads",
    "k": lambda settings: settings.has_chains,
    "random_k": lambda settings: settings.has_chains,
    "rank": lambda settings: settings.mode == "adapter",
    "sequential_size": _is_gated,
    "plain_weight": _is_gated,
    "tail_heads": _is_gated,
    "tail_size": _is_gated,
    "up_rate": lambda settings: settings.mode == "adapter",
    "depth_decay": lambda settings: settings.has_anchors,
    "anchors": lambda settings: settings.has_anchors,
    "self_prompts": lambda settings: not settings.learns.needs_answers,
    "openings": lambda settings: not settings.learns.needs_answers,
    "prompt_tokens": lambda settings: not settings.learns.needs_answers,
    "answers": lambda settings: not settings.learns.needs_answers,
    "greedy_share": lambda settings: not settings.learns.needs_answers,
    "temperature": lambda settings: not settings.learns.needs_answers,
    "answer_tokens": lambda settings: settings.learns.proposes,
    "rollout_batch": lambda settings: settings.learns.proposes,
}
"""For each setting, when it applies; otherwise a value other than the default is refused."""


_BOUNDS: list[tuple[str, float, float]] = [
    ("self_prompts", 0, 10**7), ("prompt_tokens", 4, 2**20), ("openings", 0, 1), ("answers", 1, 1000),
    ("greedy_share", 0, 1),
    ("temperature", 0.01, 10), ("answer_tokens", 4, 2**20), ("rollout_batch", 1, 2**16), ("held_out", 1, 10**5),
    ("layers", 1, 4096), ("heads", 1, 63), ("head_size", 1, 2**16),
    ("k", 2, 64), ("rank", 1, 4096), ("sequential_size", 0, 2**16), ("tail_heads", 0, 63),
    ("tail_size", 1, 2**16), ("up_rate", 0.01, 100), ("plain_weight", 0, 10), ("depth_decay", 0.1, 1),
    ("texts", 1, 2**16), ("length", 8, 2**20), ("anchors", 1, 2**16), ("steps", 1, 10**8), ("learning_rate", 1e-8, 1),
    ("warmup", 0, 10**7), ("clip", 1e-6, 1e6), ("seed", 0, 2**30), ("evaluate_every", 1, 10**8),
    ("checkpoint_every", 1, 10**8), ("threads", 0, 4096),
]  # fmt: skip

ROLLOUT_FIELDS = (
    "self_prompts", "prompt_tokens", "openings", "answers", "greedy_share", "temperature", "answer_tokens", "held_out",
    "seed",
)  # fmt: skip
"""The settings that rollouts depend on: two runs with the same values can share rollouts."""

assert set(ROLLOUT_FIELDS) < {field.name for field in fields(TrainSettings)}


_DISPLAY_NAMES = {"fingerprint": "the model's weights", "prompts_sha256": "the prompts", "prompts_given": "the prompts"}
"""How messages name a digest or a count."""


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The names of settings that differ between a record and now, for a message; the record's values in brackets."""
    apart: list[str] = []
    for name, value in now.items():
        held = before.get(name)
        if isinstance(value, dict):
            apart += differences(held if isinstance(held, dict) else {}, value)
        elif held != value:
            apart.append(_DISPLAY_NAMES.get(name) or f"{name} ({held})")
    return list(dict.fromkeys(apart))
