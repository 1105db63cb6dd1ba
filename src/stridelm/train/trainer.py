"""The training loop of a conversion: trains a student on batches, with checkpoints, evaluations and metrics."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stridelm.backends.common.cuda_graph import Graphed
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.files import naming, write_bytes
from stridelm.train.acceptance import Tally, total
from stridelm.train.batches import Batches
from stridelm.train.checkpoint import load_checkpoint_state, save_checkpoint
from stridelm.train.conversion import make_conversion
from stridelm.train.held_out import HeldOutLoss, held_out_loss
from stridelm.train.parallel import ALONE, Spread, Team, local
from stridelm.train.rollouts import Rollouts, Text
from stridelm.train.settings import TrainingFailed, TrainSettings
from stridelm.train.students.student import compile_layers

METRICS = "metrics.jsonl"
_REPORT_EVERY = 10
"""Steps between reports of the loss: on a GPU, reading the loss waits for all launched work."""
_MEASURED_TOKENS = 200
"""Tokens of each held-out answer that are evaluated."""
Evaluation = Tally | HeldOutLoss


Watch = Callable[[dict[str, Any]], None]
"""Called with each entry of metrics.jsonl: losses and evaluations. A resumed run repeats the earlier entries."""


class Trainer:
    """Trains a student of a base model. Deterministic: a step depends only on the seed, its number and the state."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        rollouts: Rollouts,
        settings: TrainSettings,
        folder: Path,
        watch: Watch,
        team: Team = ALONE,
    ) -> None:
        team.check(settings.texts)
        self.settings, self.team = settings, team
        self.folder = folder
        self.watch = watch
        self.teacher = checkpoint.network
        self.conversion = make_conversion(checkpoint, settings)
        self.student, self.objective = self.conversion.student, self.conversion.objective
        on_gpu = self.teacher.device.type == "cuda"
        if on_gpu:
            compile_layers(self.teacher, self.student.network)
        self.spread = Spread(self.objective, team, shards=self.conversion.shards)
        self.parameters = {n: p for n, p in self.student.named_parameters() if p.requires_grad}
        self.batches = Batches(rollouts.train, settings)
        self.held_out = [_shortened(text) for text in rollouts.held_out]
        self.optimiser = torch.optim.AdamW(
            self._groups(on_gpu),
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=on_gpu,
            capturable=on_gpu,
        )
        self.update = Graphed(self._update, self.teacher, self.teacher.device, captures=team.size == 1)

    def run(self) -> Evaluation:
        """Train to the last step, from the newest checkpoint if there is one. Returns the last evaluation."""
        settings = self.settings
        done = load_checkpoint_state(self.folder, self.parameters, self.optimiser)
        metrics = _Metrics(self.folder / METRICS, done, self.watch, writes=self.team.is_first)
        if done == 0:
            self._evaluate(metrics, 0)
        evaluation: Evaluation | None = None
        losses: list[torch.Tensor] = []
        since = time.perf_counter()
        for step in range(done, settings.steps):
            losses.append(self._step(step))
            finished = step + 1
            is_last = finished == settings.steps
            is_kept = is_last or finished % settings.checkpoint_every == 0
            if is_kept or finished % _REPORT_EVERY == 0:
                loss = _finite(self.team.sum(torch.stack(losses)), finished)
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
                evaluation = self._evaluate(metrics, finished)
                since = time.perf_counter()
            if is_kept:
                self._check_weights(finished)
                save_checkpoint(self.folder, finished, self.parameters, self.optimiser, self.team)
                since = time.perf_counter()
        return evaluation or self._measured()

    def _groups(self, on_gpu: bool) -> list[dict[str, Any]]:
        """The trained parameters by the factor on their learning rate."""
        by_factor: dict[float, list[torch.nn.Parameter]] = {}
        for name, parameter in self.parameters.items():
            # The second low-rank factors start at zero, and are late with the rate that suits the first (LoRA+).
            factor = self.settings.up_rate if name.endswith(".up") else 1.0
            by_factor.setdefault(factor, []).append(parameter)
        rate = self.settings.peak_rate
        # A tensor, because on a GPU the whole step is captured once and replayed: a number would become a constant.
        return [
            {
                "params": group,
                "factor": factor,
                "lr": torch.tensor(rate, device=self.teacher.device) if on_gpu else rate,
            }
            for factor, group in by_factor.items()
        ]

    def _step(self, step: int) -> torch.Tensor:
        """Run one step, which updates the weights. Returns its loss."""
        for group in self.optimiser.param_groups:
            rate = self._rate(step) * group["factor"]
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        shares = (self.team.share(array) for array in self.objective.inputs(self.batches[step], step))
        inputs = [torch.from_numpy(array).to(self.teacher.device) for array in shares]
        return self.update(inputs[0].shape, *inputs).clone()

    def _update(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.spread(*inputs)
        (loss * self.team.size).backward()  # losses of processes add up to the batch's, but gradients are averaged
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.settings.clip)
        self.optimiser.step()
        return loss.detach()

    def _rate(self, step: int) -> float:
        settings = self.settings
        if step < settings.warmup:
            return settings.peak_rate * (step + 1) / settings.warmup
        share = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return settings.peak_rate * 0.5 * (1 + math.cos(math.pi * share))

    def _check_weights(self, step: int) -> None:
        """Fail if a weight is not finite. The loss does not show this: it is computed before the step's update."""
        damaged = sum(float((~parameter.isfinite()).sum()) for parameter in map(local, self.parameters.values()))
        if float(self.team.sum(torch.tensor(damaged, device=self.teacher.device))):
            raise _failed(f"a weight is no number after step {step}")

    def _evaluate(self, metrics: "_Metrics", step: int) -> Evaluation:
        evaluation = self._measured()
        metrics.add({"step": step, **evaluation.entry})
        return evaluation

    def _measured(self) -> Evaluation:
        return self.spread.run(self._measure)

    def _measure(self) -> Evaluation:
        if self.conversion.measure is not None:
            return total(each for _, each in self.conversion.measure(self.held_out))
        return held_out_loss(self.objective, self.held_out, self.settings, self.teacher.device)


def _shortened(text: Text) -> Text:
    return Text(text.tokens[: text.prompt_length + _MEASURED_TOKENS], text.prompt_length)


def _finite(losses: torch.Tensor, step: int) -> float:
    loss = float(losses.mean())
    if not math.isfinite(loss):
        raise _failed(f"the loss is {loss} in the steps up to {step}")
    return loss


def _failed(what: str) -> TrainingFailed:
    return TrainingFailed(
        f"{what}: nothing since the last checkpoint is kept. Try a lower --learning-rate, or --dtype float32"
    )


class _Metrics:
    """metrics.jsonl: one JSON object per line. Entries that a killed run wrote after its last checkpoint are dropped,
    and written again."""

    def __init__(self, file: Path, done: int, watch: Watch, *, writes: bool) -> None:
        self.file = file
        self.watch = watch
        self.writes = writes
        if not writes:
            return
        lines = file.read_text(encoding="utf-8").splitlines() if done and file.is_file() else []
        kept = [line for line in lines if _step_of(line) <= done]
        write_bytes(file, "".join(f"{line}\n" for line in kept).encode())
        for line in kept:
            watch(json.loads(line))

    def add(self, entry: dict[str, Any]) -> None:
        if not self.writes:
            return
        with naming(self.file), self.file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(entry) + "\n")
        self.watch(entry)


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except ValueError:  # the last line of a killed run may be incomplete
        return 2**62
