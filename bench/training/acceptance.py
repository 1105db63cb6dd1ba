"""Conversions on the held-out questions and on the twelve kinds of prompts: tokens per forward of chains and of trees,
greedy and sampled, of whole answers and of what comes before loops. As `stridelm acceptance`, but all in one process.

    python bench/training/acceptance.py --json acceptance-forms.json --chains bench/results/acceptance.json
    python bench/training/acceptance.py --json contexts.json --contexts 128 512 2048 --temperature 0 \
        --adapter shipped=src/stridelm/adapters/smollm2 --adapter mine=runs/mine

The answers are written once for all adapters and forms. A minute on an H200, hours on a CPU. `--chains` writes chains
on greedy answers alone, in the form that the tables of docs/training.md are made from. With `--contexts` the same
prompts are also asked behind earlier turns of conversation: other prompts of their file with the model's own answers.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.models.adapter import check_base, load_adapter
from stridelm.models.preview import adapter_folder
from stridelm.params import InputError
from stridelm.prompts import PromptLine, read_prompts
from stridelm.settings import LoadSettings
from stridelm.train.acceptance import measure_forms
from stridelm.train.answers import answered, rollout_prompts
from stridelm.train.rollouts import Text
from stridelm.train.students.student import Student

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import KINDS, MATHS, machine, script_parser, write
from bench.training.acceptance_tables import forms_table

SETS = {"held-out GSM8K train questions": MATHS, "own prompts of twelve kinds": KINDS}


@dataclass(frozen=True, slots=True)
class Setting:
    """What was asked, and how answers were drawn."""

    prompts: str
    """The name of the set."""
    temperature: float
    context: int | None = None
    """Tokens that prompts have with earlier turns in front of them; None for prompts alone."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How answers are written."""

    temperatures: tuple[float, ...]
    contexts: tuple[int, ...]
    max_tokens: int
    seed: int
    batch: int


def main() -> None:
    options = _options()
    settings = LoadSettings(device=options.device, dtype=options.dtype)
    checkpoint = load_checkpoint(options.model, settings, trainable=True)
    students = load_students(checkpoint, dict(options.adapter))
    sets = {name: read_prompts(file)[: options.count] for name, file in SETS.items()}
    asking = Asking(
        tuple(options.temperature), tuple(options.contexts), options.max_tokens, options.seed, options.batch
    )
    started = time.perf_counter()
    texts = texts_of(checkpoint, sets, asking)
    report: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "device": checkpoint.device,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "machine": machine(torch.get_num_threads()),
        "seconds": {"answers": round(time.perf_counter() - started, 1)},
        "measured": [],
    }
    for name, student in students.items():
        started = time.perf_counter()
        report["measured"] += measured(checkpoint, name, student, texts, options.trees)
        report["seconds"][name] = round(time.perf_counter() - started, 1)
        write(options.json, report)
    write(options.chains, chains_of(report))
    print(forms_table(report))


def _options() -> argparse.Namespace:
    has_gpu = torch.cuda.is_available()
    parser = script_parser(__doc__, needs_json=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--adapter", type=_named, action="append", default=[], help="NAME=FOLDER, repeatable; default: the model's own"
    )
    parser.add_argument("--trees", type=int, nargs="*", default=[16, 64], help="rows of a step")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7], help="0 is greedy")
    parser.add_argument("--contexts", type=int, nargs="+", default=[], help="tokens of prompts with earlier turns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--count", type=int, help="of each file, the first so many prompts")
    parser.add_argument("--batch", type=int, default=1024 if has_gpu else 64, help="answers written at once")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16" if has_gpu else "float32")
    parser.add_argument("--chains", type=Path, help="also write greedy chains of the first adapter to this file")
    options = parser.parse_args()
    if any(not 2 <= rows <= 64 for rows in options.trees):
        parser.error("--trees: a tree has between 2 and 64 rows")
    if options.chains and 0 not in options.temperature:
        parser.error("--chains: takes greedy answers; add 0 to --temperature")
    return options


def _named(given: str) -> tuple[str, Path]:
    name, separator, folder = given.partition("=")
    if not (name and separator and folder):
        raise argparse.ArgumentTypeError(f"{given!r} is not NAME=FOLDER")
    return name, Path(folder)


def load_students(checkpoint: Checkpoint, folders: Mapping[str, Path]) -> dict[str, Student]:
    """Gated adapters, which leave the model's answers as they are; without any, the one that comes with the model."""
    own = adapter_folder(checkpoint.name, None)
    if not folders and own is None:
        raise InputError(f"{checkpoint.name} has no adapter of its own: name one with --adapter NAME=FOLDER")
    students: dict[str, Student] = {}
    for name, folder in (folders or {"built in": own}).items():
        assert folder is not None
        adapter = load_adapter(folder)
        if not adapter.is_gated:
            raise InputError(f"{folder}: this adapter changes the model's answers; measure it with stridelm acceptance")
        check_base(folder, adapter, checkpoint.name, checkpoint.fingerprint)
        students[name] = Student.of(checkpoint.network, adapter)
    return students


def texts_of(checkpoint: Checkpoint, sets: Mapping[str, list[PromptLine]], asking: Asking) -> dict[Setting, list[Text]]:
    """The answers at every temperature: to the prompts alone, then behind earlier turns."""
    asked = {Setting(name, temperature): lines for name, lines in sets.items() for temperature in asking.temperatures}
    texts = _answered(checkpoint, asked, asking)
    behind = {
        Setting(name, temperature, context): with_turns(
            checkpoint, lines, texts[Setting(name, asking.temperatures[0])], context
        )
        for name, lines in sets.items()
        for context in asking.contexts
        for temperature in asking.temperatures
    }
    return texts | _answered(checkpoint, behind, asking)


def _answered(
    checkpoint: Checkpoint, asked: Mapping[Setting, list[PromptLine]], asking: Asking
) -> dict[Setting, list[Text]]:
    """All at once, so that the engine is made once."""
    prompts = [
        prompt
        for setting, lines in asked.items()
        for prompt in rollout_prompts(
            checkpoint, lines, asking.max_tokens, temperature=setting.temperature, seed=asking.seed
        )
    ]
    lines = [line for each in asked.values() for line in each]
    found = answered(checkpoint, prompts, lines, asking.batch, lambda what, done, of: None)
    numbers = iter(range(len(lines)))
    return {setting: [found[next(numbers)] for _ in each] for setting, each in asked.items()}


def with_turns(checkpoint: Checkpoint, lines: list[PromptLine], texts: list[Text], tokens: int) -> list[PromptLine]:
    """Every prompt behind so many of those after it in the file, with their answers, that it comes nearest to so many
    tokens."""
    asked: list[PromptLine] = []
    for number, line in enumerate(lines):
        length, turns = texts[number].prompt_length, []
        for step in range(1, len(lines)):
            other = (number + step) % len(lines)
            longer = length + len(texts[other].tokens)
            if abs(longer - tokens) >= abs(length - tokens):
                break
            answer = texts[other].tokens[texts[other].prompt_length :]
            said = checkpoint.tokenizer.decode(answer.tolist(), skip_special_tokens=True)
            turns += [*_messages(lines[other]), {"role": "assistant", "content": said}]
            length = longer
        asked.append(replace(line, prompt=[*turns, *_messages(line)]))
    return asked


def _messages(line: PromptLine) -> list[dict[str, Any]]:
    return [{"role": "user", "content": line.prompt}] if isinstance(line.prompt, str) else line.prompt


def measured(
    checkpoint: Checkpoint, name: str, student: Student, texts: Mapping[Setting, list[Text]], trees: list[int]
) -> list[dict[str, Any]]:
    """An entry per setting."""
    return [
        {
            "adapter": name,
            "prompts": setting.prompts,
            "temperature": setting.temperature,
            "context": setting.context,
            "mean_prompt_tokens": round(sum(text.prompt_length for text in texts[setting]) / len(texts[setting]), 1),
            "forms": forms,
        }
        for setting, forms in measure_forms(checkpoint, student, texts, trees=trees).items()
    ]


def chains_of(report: dict[str, Any]) -> dict[str, Any]:
    """Set -> chains on greedy answers of the first adapter."""
    first = report["measured"][0]["adapter"]
    return {
        entry["prompts"]: entry["forms"]["chain"]
        for entry in report["measured"]
        if entry["adapter"] == first and entry["temperature"] == 0 and entry["context"] is None
    }


if __name__ == "__main__":
    main()
