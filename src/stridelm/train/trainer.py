"""The loop of a conversion: batches in, an adapter out, with a record of everything on the way."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stridelm.model.cuda_graph import Graphed
from stridelm.model.load import Checkpoint
from stridelm.model.student import Student, compile_layers
from stridelm.train.acceptance import Measure, Tally, total
from stridelm.train.batches import Batches
from stridelm.train.checkpoint import load_checkpoint_state, save_checkpoint
from stridelm.train.files import naming, write_bytes
from stridelm.train.objective import Distill
from stridelm.train.rollouts import Rollouts, Text
from stridelm.train.settings import TrainingFailed, TrainSettings

METRICS = "metrics.jsonl"
_LOOK_EVERY = 10
"""Steps between looks at the loss: on a GPU each look waits for all that is under way."""
_MEASURED_TOKENS = 200
"""Of every held-out answer."""


Watch = Callable[[dict[str, Any]], None]
"""Told of every look and every measurement, those before a resumed run's checkpoint included."""


class Trainer:
    """Trains a student of a base model. Deterministic: a step depends on the seed, the step and the state alone."""

    def __init__(
        self, checkpoint: Checkpoint, rollouts: Rollouts, settings: TrainSettings, folder: Path, watch: Watch
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.watch = watch
        self.teacher = checkpoint.network
        torch.manual_seed(settings.seed)  # the student's first weights
        self.student = Student(self.teacher, settings.rank, settings.masks, settings.sequential_size)
        self.parameters = {n: p for n, p in self.student.named_parameters() if p.requires_grad}
        self.batches = Batches(rollouts.train, settings)
        self.held_out = [_shortened(text) for text in rollouts.held_out]
        on_gpu = self.teacher.device.type == "cuda"
        # A tensor on a GPU: there the whole step is captured once and replayed, and a number would be frozen into it.
        self.rate = torch.tensor(settings.learning_rate, device=self.teacher.device)
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(),
            lr=self.rate if on_gpu else settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=on_gpu,
            capturable=on_gpu,
        )
        self.objective = Distill(self.teacher, self.student, settings)
        self.measure = Measure(self.teacher, self.student)
        if on_gpu:
            compile_layers(self.teacher, self.student.network)
        self.update = Graphed(self._update, self.teacher, self.teacher.device)

    def run(self) -> Tally:
        """Train to the last step, from the newest checkpoint if there is one; returns the last measurement."""
        settings = self.settings
        done = load_checkpoint_state(self.folder, self.parameters, self.optimiser)
        metrics = _Metrics(self.folder / METRICS, done, self.watch)
        if done == 0:
            self._evaluate(metrics, 0)
        tally: Tally | None = None
        losses: list[torch.Tensor] = []
        since = time.perf_counter()
        for step in range(done, settings.steps):
            losses.append(self._step(step))
            finished = step + 1
            is_last = finished == settings.steps
            is_kept = is_last or finished % settings.checkpoint_every == 0
            if is_kept or finished % _LOOK_EVERY == 0:
                loss = _finite(losses, finished)
                seconds = time.perf_counter() - since
                metrics.add(
                    {
                        "step": finished,
                        "loss": loss,
                        "learning_rate": self._rate(step),
                        "steps_per_second": len(losses) / seconds,
                        "tokens_per_second": len(losses) * settings.texts * settings.length / seconds,
                    }
                )
                losses, since = [], time.perf_counter()
            if is_last or finished % settings.evaluate_every == 0:
                tally = self._evaluate(metrics, finished)
                since = time.perf_counter()
            if is_kept:
                self._check_weights(finished)
                save_checkpoint(self.folder, finished, self.parameters, self.optimiser)
                since = time.perf_counter()
        return tally or self._measured()

    def _step(self, step: int) -> torch.Tensor:
        """The loss of a step, after which the weights have moved."""
        if self.teacher.device.type == "cuda":
            self.rate.fill_(self._rate(step))
        else:
            self.optimiser.param_groups[0]["lr"] = self._rate(step)
        inputs = self.objective.inputs(self.batches[step], step)
        return self.update(inputs[0].shape, *inputs).clone()

    def _update(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.objective.loss(*inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.settings.clip)
        self.optimiser.step()
        return loss.detach()

    def _rate(self, step: int) -> float:
        settings = self.settings
        if step < settings.warmup:
            return settings.learning_rate * (step + 1) / settings.warmup
        share = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))

    def _check_weights(self, step: int) -> None:
        """The loss is that of the weights before its step: it does not tell what the step made of them."""
        if not all(bool(parameter.isfinite().all()) for parameter in self.parameters.values()):
            raise _failed(f"a weight is no number after step {step}")

    def _evaluate(self, metrics: "_Metrics", step: int) -> Tally:
        tally = self._measured()
        metrics.add(
            {
                "step": step,
                "tokens_per_forward": tally.tokens_per_forward,
                "acceptance": [round(rate, 4) for rate in tally.acceptance],
            }
        )
        return tally

    def _measured(self) -> Tally:
        return total(each for _, each in self.measure(self.held_out))


def _shortened(text: Text) -> Text:
    return Text(text.tokens[: text.prompt_length + _MEASURED_TOKENS], text.prompt_length)


def _finite(losses: list[torch.Tensor], step: int) -> float:
    loss = float(torch.stack(losses).mean())
    if not math.isfinite(loss):
        raise _failed(f"the loss is {loss} in the steps up to {step}")
    return loss


def _failed(what: str) -> TrainingFailed:
    return TrainingFailed(
        f"{what}: nothing since the last checkpoint is kept. Try a lower --learning-rate, or --dtype float32"
    )


class _Metrics:
    """metrics.jsonl: one object a line. What a killed run wrote behind its last checkpoint is written again."""

    def __init__(self, file: Path, done: int, watch: Watch) -> None:
        self.file = file
        self.watch = watch
        lines = file.read_text(encoding="utf-8").splitlines() if done and file.is_file() else []
        kept = [line for line in lines if _step_of(line) <= done]
        write_bytes(file, "".join(f"{line}\n" for line in kept).encode())
        for line in kept:
            watch(json.loads(line))

    def add(self, entry: dict[str, Any]) -> None:
        with naming(self.file), self.file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(entry) + "\n")
        self.watch(entry)


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except ValueError:  # the last line of a killed run may be half of one
        return 2**62
