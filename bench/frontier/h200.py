"""Quality against speed, and domain adaptation, on a machine with a GPU: everything from the built-in model to JSON.

    python bench/frontier/h200.py --runs FOLDER --json OUT.json --minutes 20
    python bench/frontier/h200.py --smoke --runs FOLDER --json OUT.json      # a tiny model on a CPU, all stages

The model learns a task (`--objective sft`), is converted in two ways (a gated adapter; a whole model), and both are
measured on problems that nobody was trained on. Beside that, adapters are trained from nothing on one domain's prompts
and on prompts that the model makes up itself, at equal steps, and measured on that domain and on others. (`stridelm
train` cannot go on from an adapter.)

Stages run as processes of their own, some side by side, each with a log in the folder. What is finished is not made
again, a training that was cut off goes on from its last checkpoint, and OUT.json is written again and again: when the
time is up, call it once more.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.frontier.stages import Stage, Stages, read_json
from bench.measured import BENCH, KINDS, MATHS, script_parser, write

DOMAIN = "support tickets"
GATED, FULL = "gated", "full"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    task: int = 30_000
    task_prompts: int = 8_192
    tickets: int = 3_000
    general: tuple[str, ...] = ("--self-prompts", "3000")
    """Prompts of every kind."""
    problems: int = 512
    measured_prompts: int = 128
    measured_tokens: int = 200
    frontier_tokens: int = 320
    common: tuple[str, ...] = ("--held-out", "64", "--checkpoint-every", "500")
    sft: tuple[str, ...] = (
        *("--steps", "2000", "--learning-rate", "3e-4", "--texts", "32", "--length", "384", "--evaluate-every", "1000"),
    )
    masks: tuple[str, ...] = ("--k", "9", "--texts", "32", "--anchors", "48", "--rollout-batch", "1024")
    task_length: tuple[str, ...] = ("--length", "384")
    domain_length: tuple[str, ...] = ("--length", "448")
    gated: tuple[str, ...] = (
        *("--steps", "1200", "--learning-rate", "2e-3", "--rank", "52", "--sequential-size", "768"),
        *("--depth-decay", "0.8", "--evaluate-every", "600"),
    )
    full: tuple[str, ...] = (
        *("--mode", "full", "--objective", "online", "--random-k", "--steps", "1000", "--learning-rate", "1e-4"),
        *("--depth-decay", "1", "--evaluate-every", "500"),
    )
    domain: tuple[str, ...] = (
        *("--steps", "800", "--learning-rate", "2e-3", "--rank", "52", "--sequential-size", "768"),
        *("--depth-decay", "0.8", "--evaluate-every", "400", "--answer-tokens", "256"),
    )
    rollouts: tuple[tuple[str, Any], ...] = (
        *(("greedy_share", 0.8), ("temperature", 0.7), ("answer_tokens", 256), ("held_out", 64)),
    )
    batch: int = 512


_TINY = ("--steps", "8", "--warmup", "2", "--evaluate-every", "8")
SMOKE = Sizes(
    task=24, task_prompts=16, tickets=12, general=("--prompts", str(MATHS)),
    problems=6, measured_prompts=4, measured_tokens=16, frontier_tokens=24,
    common=("--held-out", "2", "--checkpoint-every", "4", "--device", "cpu", "--threads", "1"),
    sft=(*_TINY, "--texts", "2", "--length", "768"),
    masks=("--k", "4", "--texts", "2", "--anchors", "4", "--rollout-batch", "8"),
    task_length=("--length", "768"), domain_length=("--length", "768"),
    gated=(*_TINY, "--rank", "2", "--sequential-size", "4"),
    full=(*_TINY, "--mode", "full", "--objective", "online", "--random-k"),
    domain=(*_TINY, "--rank", "2", "--sequential-size", "4", "--answer-tokens", "16"),
    rollouts=(("greedy_share", 0.8), ("temperature", 0.7), ("answer_tokens", 16), ("held_out", 2)),
    batch=4,
)  # fmt: skip


class Runs:
    """The folder with everything in it, and what is to be made there."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.runs.absolute()
        self.sizes = SMOKE if options.smoke else replace(Sizes(), problems=options.problems)
        self.model = str(self.folder / "tiny") if options.smoke else options.model
        self.task, self.task_prompts = self.folder / "task.jsonl", self.folder / "task-prompts.jsonl"
        self.tickets = self.folder / "tickets.jsonl"
        self.sft, self.gated, self.full = (self.folder / name for name in ("sft", GATED, FULL))

    def prepare(self) -> None:
        """What takes no time: the files of prompts."""
        from bench.frontier.task import problems, write_jsonl
        from bench.frontier.tickets import ticket_prompts, write_prompts

        self.folder.mkdir(parents=True, exist_ok=True)
        if self.options.smoke and not Path(self.model).exists():
            sys.path.insert(0, str(BENCH.parent / "tests" / "helpers"))
            from tiny import save_tiny  # pyright: ignore[reportMissingImports]

            save_tiny(Path(self.model), max_position_embeddings=8192)
        if not self.tickets.is_file():
            write_jsonl(self.task, problems(0, self.sizes.task, "train"))
            write_jsonl(self.task_prompts, problems(1, self.sizes.task_prompts, "train"))
            write_prompts(self.tickets, ticket_prompts(0, self.sizes.tickets, "train"))

    def stages(self) -> list[Stage]:
        sizes, given = self.sizes, ("--prompts", str(self.task_prompts), "--rollouts", str(self.folder / "rollouts"))
        rolled = [part for name, value in sizes.rollouts for part in (f"--{name.replace('_', '-')}", str(value))]
        converted = ("--model", str(self.sft), *given, *rolled, *sizes.masks, *sizes.task_length)
        domain = ("--model", self.model, *sizes.masks, *sizes.domain_length, *sizes.domain)
        sft = ("--model", self.model, "--mode", "full", "--objective", "sft", "--prompts", str(self.task), *sizes.sft)
        return [
            self._training("sft", "config.json", sft),
            self._training("tickets", "adapter.json", (*domain, "--prompts", str(self.tickets))),
            self._training("general", "adapter.json", (*domain, *sizes.general)),
            self._own("mastery", "sft"),
            self._own("rollouts", "sft"),
            self._training(FULL, "config.json", (*converted, *sizes.full), "rollouts"),
            self._training(GATED, "adapter.json", (*converted, *sizes.gated), "rollouts"),
            self._own("adaptation", "tickets", "general"),
            self._own(f"frontier-{GATED}", GATED),
            self._own(f"frontier-{FULL}", FULL),
        ]

    def _training(self, name: str, result: str, arguments: tuple[str, ...], *needs: str) -> Stage:
        out = self.folder / name

        def is_done() -> bool:
            return (out / result).is_file() and not any(out.glob("checkpoint-*"))

        def command() -> list[str]:
            resumed = ["--resume"] if (out / "train.json").is_file() else []
            return [*_python("-m", "stridelm", "train"), "--out", str(out), *arguments, *self._common(name), *resumed]

        return Stage(name, command, is_done, needs)

    def _common(self, name: str) -> list[str]:
        """The options of every run; the held-out prompts of the task's conversions are among those of its rollouts."""
        common = list(self.sizes.common)
        return common[2:] if name in (GATED, FULL) else common

    def _own(self, name: str, *needs: str) -> Stage:
        """A stage of this script."""
        options = self.options
        asked = ["--stage", name, "--runs", str(self.folder), "--json", str(options.json), "--model", options.model]
        more = ["--problems", str(options.problems), *(["--smoke"] if options.smoke else [])]
        return Stage(
            name, lambda: [*_python(__file__), *asked, *more], lambda: bool(self.read(name).get("complete")), needs
        )

    def read(self, name: str) -> dict[str, Any]:
        return read_json(self.folder / f"{name}.json")

    def write(self, name: str, content: dict[str, Any]) -> None:
        write(self.folder / f"{name}.json", content)


# The script's own stages, each in a process of its own.


def mastery(runs: Runs) -> None:
    """One token at a time, before and after it learnt the task."""
    from bench.frontier.mask_rollout import MaskRollout
    from bench.frontier.points import wilson
    from bench.frontier.task import problems
    from stridelm.settings import NO_ADAPTER, PLAIN, DecodeSettings, LoadSettings

    tested = problems(2, runs.sizes.problems, "test")
    found: dict[str, Any] = {}
    for name, model in (("after", str(runs.sft)), ("before", runs.model)):
        answering = MaskRollout.load(model, NO_ADAPTER, LoadSettings(device=_device(runs)), runs.sizes.batch)
        answers = answering([each.prompt for each in tested], DecodeSettings(PLAIN), runs.sizes.frontier_tokens)
        right = sum(each.is_right(answer.text) for each, answer in zip(tested, answers, strict=True))
        low, high = wilson(right, len(tested))
        examples = [
            {"prompt": each.prompt, "right": each.result, "text": answer.text}
            for each, answer in list(zip(tested, answers, strict=True))[:4]
        ]
        found[name] = {"accuracy": right / len(tested), "low": low, "high": high, "examples": examples}
        print(f"one token at a time, {name} learning the task: {right} of {len(tested)} right", flush=True)
        runs.write("mastery", found | {"problems": len(tested)})
    runs.write("mastery", found | {"problems": len(tested), "complete": True})


def rollouts(runs: Runs) -> None:
    """The tuned model's own answers, for both conversions."""
    from stridelm.backends.torch.checkpoint import load_checkpoint
    from stridelm.prompts import read_prompts
    from stridelm.settings import LoadSettings
    from stridelm.train.rollouts import RolloutStore
    from stridelm.train.settings import TrainSettings

    sizes, device = runs.sizes, _device(runs)
    dtype = "float32" if device == "cpu" else "bfloat16"  # as `stridelm train` loads it
    batch, length = sizes.masks[sizes.masks.index("--rollout-batch") + 1], sizes.task_length[1]
    settings = TrainSettings(device=device, rollout_batch=int(batch), length=int(length), **dict(sizes.rollouts))
    checkpoint = load_checkpoint(str(runs.sft), LoadSettings(device=device, dtype=dtype), trainable=True)
    said = 0.0

    def report(what: str, done: int, of: int) -> None:
        nonlocal said
        if done == of or time.monotonic() - said > 5:
            said = time.monotonic()
            print(f"{what} {done}/{of}", flush=True)

    made = RolloutStore(runs.folder / "rollouts", checkpoint, read_prompts(runs.task_prompts), settings, report).make()
    runs.write("rollouts", {"complete": True, "manifest": made.manifest})


def adaptation(runs: Runs) -> None:
    from bench.frontier.adaptation import adaptation as measure
    from bench.frontier.tickets import ticket_prompts
    from stridelm.prompts import PromptLine, read_prompts
    from stridelm.settings import LoadSettings

    sizes = runs.sizes
    count = sizes.measured_prompts
    domains = {
        DOMAIN: [PromptLine("a ticket", prompt) for prompt in ticket_prompts(1, count, "test")],
        "maths (GSM8K, held out)": read_prompts(MATHS)[:count],
        "twelve kinds": read_prompts(KINDS)[:: max(1, 120 // count)],
    }
    # A tiny model has no adapter that came with it.
    before = runs.folder / "general" if runs.options.smoke else None
    found = measure(
        runs.model, before, runs.folder / "tickets", domains, DOMAIN,
        others={"general": runs.folder / "general"}, settings=LoadSettings(device=_device(runs)),
        max_tokens=sizes.measured_tokens, progress=lambda line: print(line, flush=True),
    )  # fmt: skip
    runs.write("adaptation", found | {"complete": True})


def frontier(runs: Runs, conversion: str) -> None:
    """All points of a conversion; those that are there already are not measured again."""
    from bench.frontier.mask_rollout import MaskRollout
    from bench.frontier.points import FrontierSettings, points
    from bench.frontier.task import problems
    from stridelm.settings import LoadSettings

    name, sizes = f"frontier-{conversion}", runs.sizes
    settings = FrontierSettings(max_tokens=sizes.frontier_tokens)
    model, adapter = (runs.sft, str(runs.gated)) if conversion == GATED else (runs.full, None)
    answering = MaskRollout.load(str(model), adapter, LoadSettings(device=_device(runs)), sizes.batch)
    held: list[dict[str, Any]] = runs.read(name).get("points", [])
    tested = problems(2, sizes.problems, "test")
    for point in points(conversion, answering, tested, settings, {each["key"] for each in held}):
        held.append(point)
        runs.write(name, {"points": held})
        print(
            f"{point['key']}: {100 * point['accuracy']:.1f} % right ({point['change']:+.1f}), "
            f"{point['tokens_per_forward']:.2f} tokens per forward, identical {point['identical']:.3f}, "
            f"{point['tokens_per_second']:.0f} tokens/s",
            flush=True,
        )
    runs.write(name, {"points": held, "complete": True})


STAGES: dict[str, Callable[[Runs], None]] = {
    "mastery": mastery,
    "rollouts": rollouts,
    "adaptation": adaptation,
    f"frontier-{GATED}": lambda runs: frontier(runs, GATED),
    f"frontier-{FULL}": lambda runs: frontier(runs, FULL),
}


def collected(runs: Runs) -> dict[str, Any]:
    """Everything that is known so far, as one object."""
    from bench.frontier.points import joined

    found = [point for name in (GATED, FULL) for point in runs.read(f"frontier-{name}").get("points", [])]
    training: dict[str, Any] = {}
    for name in ("sft", "tickets", "general", GATED, FULL):
        file = runs.folder / name / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.is_file() else []
        entries = [json.loads(line) for line in lines if line.endswith("}")]  # one may be in the making
        losses = [entry for entry in entries if "loss" in entry]
        training[name] = {"last": losses[-1:], "measured": [entry for entry in entries if "loss" not in entry]}
    rates = runs.read("adaptation")
    rates.pop("complete", None)
    return {
        "model": runs.model,
        "smoke": runs.options.smoke,
        "sizes": asdict(runs.sizes),
        "machine": _machine(),
        "seconds": runs.read("seconds"),
        "commands": runs.read("commands"),
        "mastery": runs.read("mastery"),
        "frontier": joined(found, runs.sizes.problems),
        "adaptation": rates,
        "training": training,
    }


def _machine() -> dict[str, Any]:
    import torch

    from stridelm.train.record import circumstances

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    made = circumstances(device)
    del made["command"]  # it would name `stridelm`
    return made


def _device(runs: Runs) -> str:
    return "cpu" if runs.options.smoke else "auto"


def _python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def main() -> None:
    parser = script_parser(__doc__, needs_json=True)
    parser.add_argument("--runs", type=Path, required=True, help="a folder for everything; 8 GB")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=3, help="stages side by side")
    parser.add_argument("--problems", type=int, default=Sizes().problems, help="of the task, for every point")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, on the CPU, in a minute or two")
    parser.add_argument("--stage", choices=STAGES, help="for the script itself: only this one")
    options = parser.parse_args()
    runs = Runs(options)
    if options.stage:
        STAGES[options.stage](runs)
        return
    runs.prepare()
    stages = Stages(runs.folder, runs.stages(), lambda: write(options.json, collected(runs)))
    sys.exit(0 if stages.run(options.minutes, options.jobs) else 1)


if __name__ == "__main__":
    main()
