"""Hundreds of answers side by side, several tokens per forward each: decoders with masks where throughput counts.

The serving engine looks at each sequence by itself, which on a GPU takes a hundred times as long as the forward. Here
every step has one shape, over texts that have places (`mask_stepper.py`), and the loop is that of rollouts:

    self, tolerance    drafts from masks, verified in turn
    adaptive, static   what masks are sure of, or all that they say, unverified

Drafts are one chain, as `stridelm acceptance` walks it; the engine may grow a tree and take a little more. Greedy only.
"""

import math
from pathlib import Path
from typing import Any

from bench.frontier.answering import Answered
from bench.frontier.mask_stepper import MaskStepper, Unverified, Verified
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.converted import load_converted
from stridelm.decode.table import THRESHOLD
from stridelm.models.adapter import load_adapter
from stridelm.models.encode import encode_prompt
from stridelm.models.preview import adapter_folder
from stridelm.params import InputError
from stridelm.settings import PLAIN, DecodeSettings, LoadSettings
from stridelm.stepper import Stepper
from stridelm.train.dense_stepper import DenseStepper
from stridelm.train.dense_texts import DenseTexts
from stridelm.train.rollout_engine import Rollout, RolloutLoop, RolloutPrompt
from stridelm.train.students.student import MaskRows, Student

_DECODERS = (PLAIN, "self", "adaptive", "static")


class MaskRollout:
    """A model that was loaded with `trainable`, and what makes its masks."""

    def __init__(self, checkpoint: Checkpoint, student: Student | MaskRows | None, batch: int) -> None:
        """`student` as `Student.of` gives it; None decodes plainly only. `batch`: answers at once."""
        self.checkpoint, self.student, self.batch = checkpoint, student, batch
        self.network = checkpoint.network
        self.k = 0 if student is None else student.masks + 1
        self.is_exact = checkpoint.is_verified_exactly

    @classmethod
    def load(cls, model: str, adapter: str | Path | None, settings: LoadSettings, batch: int) -> "MaskRollout":
        """As `stridelm.load` takes them: a base model and its adapter, or a converted model that stands alone."""
        folder = adapter_folder(model, adapter)
        given = None if folder is None else (folder, load_adapter(folder))
        checkpoint, converted = load_converted(model, settings, given, trainable=True)
        if converted is None:
            return cls(checkpoint, None, batch)
        if converted.config.targets:
            return cls(checkpoint, Student.of(checkpoint.network, converted), batch)
        return cls(checkpoint, MaskRows(checkpoint.network, converted, converted.config.masks), batch)

    def __call__(self, prompts: list[str], settings: DecodeSettings, max_tokens: int) -> list[Answered]:
        if settings.decoder not in _DECODERS:
            raise InputError(f"{settings.decoder} is not among the decoders that are measured side by side")
        settings.check(has_draft=False, mask_k=self.k)
        if not prompts:
            return []
        encoded = [encode_prompt(self.checkpoint, prompt) for prompt in prompts]
        longest = max(map(len, encoded)) + max_tokens
        if longest > self.checkpoint.context_length:
            raise InputError(f"prompt and answer may take {longest} tokens, more than the context: ask for fewer")
        # Spread evenly: where all answers are as long, no place is left empty while the last of them are written.
        places = math.ceil(len(prompts) / math.ceil(len(prompts) / self.batch))
        texts = DenseTexts(self.network, places, longest + max(1, self.k))
        loop = RolloutLoop(self._stepper(texts, settings), texts, self.checkpoint.eos_ids, longest)
        answers = loop.run(RolloutPrompt(tuple(tokens), max_tokens) for tokens in encoded)
        return [self._answered(answer) for answer in sorted(answers, key=lambda answer: answer.index)]

    def _stepper(self, texts: DenseTexts, settings: DecodeSettings) -> Stepper:
        ends = self.checkpoint.eos_ids
        k = (settings.k_max if settings.decoder == "adaptive" else settings.k) or self.k
        if settings.decoder == PLAIN or k == 1:
            return DenseStepper(texts, ends)
        assert self.student is not None, "the settings were checked against the masks"
        rule = Verified(settings.tolerance)
        if settings.decoder == "adaptive":
            rule = Unverified(THRESHOLD if settings.threshold is None else settings.threshold)
        elif settings.decoder == "static":
            rule = Unverified(0.0)
        return MaskStepper(texts, self.student, min(k, self.k) - 1, rule, ends)

    def _answered(self, answer: Rollout) -> Answered:
        tokenizer: Any = self.checkpoint.tokenizer
        text = tokenizer.decode(answer.tokens, skip_special_tokens=True)
        return Answered(tuple(answer.tokens), text, answer.steps)
