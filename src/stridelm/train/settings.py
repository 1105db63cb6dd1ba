"""The settings of a conversion, each defined once: command line, `train.json` and docs derive from these."""

from dataclasses import dataclass, fields

from stridelm.params import InputError

AUTO_DTYPE = "auto"


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


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a model is converted. The defaults suit a model of some hundred million parameters on one GPU."""

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
    """Prompts that are never trained on, to measure tokens per forward on."""
    k: int = 9
    """Tokens proposed per pass: a chain has k - 1 masks."""
    random_k: bool = False
    """Draw every chain's k anew, from 2 up to k; otherwise all masks of a chain are trained."""
    rank: int = 56
    """Of the low-rank part that every linear layer gets."""
    sequential_size: int = 512
    """State size of the sequential head; 0 trains without it."""
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
    learning_rate: float = 1e-3
    """Of AdamW, after a linear warm-up; falls to zero along a cosine."""
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
        if self.warmup >= self.steps:
            raise InputError(f"--warmup ({self.warmup}) must be less than --steps ({self.steps})")
        if self.texts * self.length % 8:
            raise InputError(f"--texts times --length must be a multiple of 8, not {self.texts} x {self.length}")

    @property
    def masks(self) -> int:
        return self.k - 1


_BOUNDS: list[tuple[str, float, float]] = [
    ("self_prompts", 0, 10**7), ("prompt_tokens", 4, 2**20), ("answers", 1, 1000), ("greedy_share", 0, 1),
    ("temperature", 0.01, 10), ("answer_tokens", 4, 2**20), ("rollout_batch", 1, 2**16), ("held_out", 1, 10**5),
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
