"""Ours on a CPU against llama.cpp, OpenVINO GenAI and transformers: the same GGUF file, prompts and threads, one run.

    python bench/cpu/run.py --setup          once: fetch and build the peers
    python bench/cpu/run.py [--prompts FILE] [--tokens 128] [--rounds 5] [--threads 2] [--gguf FILE] [--json FILE]
                        [--picture FILE.png] [--only NAMES] [--q4-0 | --adapter FOLDER]

Every subject is a process that has loaded its model once. In every round, each prompt is put to all of them in turn, as
token ids, never to two at a time; they decode greedily and write the same number of tokens, with the end of the text
banned. A ratio is that of two speeds at the same prompt in the same round, so that a slow moment of the machine hits
both. Close what else runs: peers wait by spinning, and another busy process costs them more than its share.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from stridelm.backends.common.processor import processor_entry
from stridelm.models import builtin
from stridelm.params import InputError
from stridelm.prompts import PromptLine, read_prompts

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import measured
from bench.cpu import report as cpu_report
from bench.cpu import setup as cpu_setup
from bench.cpu.peers import DEFAULT, SUBJECTS, TRANSFORMERS, Absent, Answer, Process, command
from bench.cpu.report import Run
from bench.cpu.requantise import q4_0_file, weights_of
from bench.measured import PROMPTS, script_parser, write

FIRST_ROUND_ONLY = (TRANSFORMERS,)
"""Several times slower than the others: with it in every round, one would wait for nothing else."""
ROWS, CONTEXT = [1, 2, 3, 4, 5, 6, 8, 9, 12, 16], 200
ROW_ROUNDS = 15
PAUSE = 0.05
"""Seconds before a turn: threads of the one before, which spin for a while when they are done, go to sleep."""
FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512_vnni",
         "avx512_bf16", "amx_int8", "amx_bf16")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as every subject gets it."""

    category: str
    ids: list[int]


def main() -> int:
    options = _options()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    try:
        if options.setup:
            cpu_setup.set_up()
            return 0
        lines = read_questions(options.prompts)
        names = choose_subjects(options.only)
        gguf, adapter = choose_model(options)
        questions, banned = encode(gguf, lines)
    except InputError as error:
        print(f"cpu.py: {error}", file=sys.stderr)
        return 2
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    bench = Bench(options.threads, options.tokens, banned, console)
    try:
        bench.start(names, gguf, partial(command, adapter=adapter))
        runs = bench.take_turns(questions, options.rounds)
        times = bench.time_rows()
    finally:
        bench.close()
    if not runs:
        print("cpu.py: no subject took part", file=sys.stderr)
        return 1
    figures = report(runs, times, bench)
    figures["run"] = {
        "command": " ".join(sys.argv),
        "started": started,
        "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        "gguf": gguf.name,
        "weights": weights_of(gguf),
        "prompts": str(options.prompts),
        "questions": len(questions),
        "prompt_tokens": [len(question.ids) for question in questions],
        "tokens": options.tokens,
        "rounds": options.rounds,
    }
    show(figures, runs, times, console)
    write(options.json, figures)
    if options.picture and times:
        where = f"{figures['machine']['processor']}, {options.threads} threads"
        cpu_report.draw(times, CONTEXT, where, options.picture)
    return 0


def _options() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--setup", action="store_true", help="fetch and build the peers, then stop")
    lines = 'JSON lines: {"category": ..., "prompt": ...}'
    parser.add_argument("--prompts", type=Path, default=PROMPTS / "cpu.jsonl", help=lines)
    parser.add_argument("--tokens", type=_count, default=128, help="new tokens per answer (128)")
    parser.add_argument("--rounds", type=_count, default=5, help="interleaved rounds over all prompts (5)")
    parser.add_argument("--threads", type=_count, default=2, help="of every subject (2)")
    parser.add_argument("--gguf", type=Path, help="the model; without it, the built-in one")
    parser.add_argument("--adapter", type=Path, help="for ours, on a file of one's own")
    parser.add_argument("--q4-0", action="store_true", help="the built-in model in Q4_0, with its adapter")
    parser.add_argument("--picture", type=Path, help="draw the times of a forward by its rows there (PNG)")
    parser.add_argument("--only", help=f"subjects, by commas; known: {', '.join(SUBJECTS)}")
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def read_questions(file: Path) -> list[PromptLine]:
    """Prompts that all have a category."""
    lines = read_prompts(file)
    for line in lines:
        if line.category is None:
            raise InputError(f'{line.place}: needs a "category" (text) beside its "prompt"')
        if line.category == cpu_report.ALL:
            raise InputError(f'{line.place}: the category "{cpu_report.ALL}" stands for all of them: choose another')
    return lines


def choose_model(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """The file, and an adapter for ours if it does not come with it."""
    if options.q4_0:
        if options.gguf or options.adapter:
            raise InputError("--q4-0 is a file with its adapter: leave out --gguf and --adapter")
        return q4_0_file(), builtin.builtin_adapter()
    return (options.gguf.resolve() if options.gguf else cpu_setup.builtin_gguf()), options.adapter


def choose_subjects(only: str | None) -> list[str]:
    if only is None:
        return list(DEFAULT)
    names = [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in SUBJECTS]:
        raise InputError(f"there is no subject {unknown[0]!r}: {', '.join(SUBJECTS)} are known")
    return names


def encode(gguf: Path, lines: list[PromptLine]) -> tuple[list[Question], list[int]]:
    """The prompts' token ids by the file's own tokenizer and chat template, and the tokens that end a text."""
    from stridelm.models.gguf import read_gguf  # torch comes with it: bad lines are told before

    stored = read_gguf(gguf)
    tokenizer: Any = stored.tokenizer

    def ids(line: PromptLine) -> list[int]:
        messages = [{"role": "user", "content": line.prompt}] if isinstance(line.prompt, str) else line.prompt
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    return [Question(str(line.category), ids(line)) for line in lines], sorted(stored.eos_ids)


class Bench:
    """The processes, and whose turn it is. One that fails takes no further part; why is kept."""

    def __init__(self, threads: int, tokens: int, banned: list[int], console: Console) -> None:
        self.threads, self.tokens, self.banned, self.console = threads, tokens, banned, console
        self.processes: dict[str, Process] = {}
        self.names: list[str] = []
        self.absent: dict[str, str] = {}

    def start(self, names: list[str], gguf: Path, command: Callable[[str, Path, int], list[str]] = command) -> None:
        refused: dict[str, str] = {}
        for name in names:
            process = SUBJECTS[name].process
            try:
                if process in refused:
                    raise Absent(refused[process])
                if process not in self.processes:
                    self.console.print(f"loading {process} ...")
                    self.processes[process] = Process(command(process, gguf, self.threads))
                self.names.append(name)
            except Absent as reason:
                refused[process] = str(reason)
                self._leave_out(name, reason)

    def take_turns(self, questions: list[Question], rounds: int) -> list[Run]:
        """Each subject warms up on the first prompt; then all rounds. Who begins changes from prompt to prompt."""
        for name in list(self.names):
            self._ask(name, questions[0])
        runs: list[Run] = []
        turns = 0
        for number in range(rounds):
            for place, question in enumerate(questions):
                present = [name for name in self.names if number == 0 or name not in FIRST_ROUND_ONLY]
                shift = turns % len(present) if present else 0
                turns += 1
                for name in present[shift:] + present[:shift]:
                    answer = self._ask(name, question)
                    if answer is not None:
                        runs.append(Run(name, place, question.category, number, answer))
                self.console.print(f"round {number + 1} of {rounds}, prompt {place + 1} of {len(questions)}")
        order = {name: place for place, name in enumerate(self.names)}
        return sorted((run for run in runs if run.subject in order), key=lambda run: (run.round, order[run.subject]))

    def time_rows(self, rounds: int = ROW_ROUNDS) -> dict[str, dict[int, list[float]]]:
        """Process -> width -> seconds of one forward each round; the first round warms up."""
        times: dict[str, dict[int, list[float]]] = {}
        for number in range(-1, rounds):
            for name in dict.fromkeys(SUBJECTS[subject].process for subject in self.names):
                time.sleep(PAUSE)
                try:
                    # The first is done twice, and counts the second time: threads are awake then.
                    found = self.processes[name].time_rows([ROWS[0], *ROWS], CONTEXT)
                except Absent as reason:
                    self.absent[f"{name}, rows"] = str(reason)
                    continue
                for width, seconds in found.items() if number >= 0 else ():
                    times.setdefault(name, {}).setdefault(width, []).append(seconds)
        return times

    def close(self) -> None:
        for process in self.processes.values():
            process.close()

    def _ask(self, name: str, question: Question) -> Answer | None:
        subject = SUBJECTS[name]
        time.sleep(PAUSE)
        try:
            return self.processes[subject.process].answer(question.ids, self.tokens, self.banned, subject.mode)
        except Absent as reason:
            self.names.remove(name)
            self._leave_out(name, reason)
            return None

    def _leave_out(self, name: str, reason: Absent) -> None:
        self.absent[name] = str(reason)
        self.console.print(f"absent: {name}: {reason}")


def report(runs: list[Run], times: dict[str, dict[int, list[float]]], bench: Bench) -> dict[str, Any]:
    """Everything that was found, for JSON."""
    found = cpu_report.ratio_figures(runs, bench.names)
    chosen = found["headline"]
    return {
        **found,
        "identical_plain_and_multi": cpu_report.same_answers(runs),
        "agreement": cpu_report.agreement(runs, f"plain {chosen}" if chosen else bench.names[0]),
        "figures": cpu_report.figures(runs),
        "rows": {"context": CONTEXT, "seconds": times},
        "absent": bench.absent,
        "machine": machine(bench.threads),
        "versions": {name: process.about for name, process in bench.processes.items()},
        "runs": [
            {"subject": run.subject, "prompt": run.prompt, "category": run.category, "round": run.round}
            | {name: value for name, value in asdict(run.answer).items() if name != "ids"}
            for run in runs
        ],
    }


def machine(threads: int) -> dict[str, Any]:
    flags = processor_entry("flags").split()
    return {
        **measured.machine(threads),
        "stridelm": version("stridelm"),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in flags],
    }


def show(figures: dict[str, Any], runs: list[Run], times: dict[str, dict[int, list[float]]], console: Console) -> None:
    console.print(cpu_report.speed_table(figures["figures"]), "")
    variants = figures["ratios_by_variant"]["decoding"]
    console.print(cpu_report.ratio_table({variant: cpu_report.ratios(runs, variant) for variant in variants}), "")
    if times:
        console.print(cpu_report.rows_table(times, CONTEXT), "")
    for variant, count in figures["identical_plain_and_multi"].items():
        console.print(f"{variant}: plain and multi wrote the same in {count['identical']} of {count['compared']} pairs")
    console.print(f"share of our plain answer before the first other token: {figures['agreement']}")
    for name, reason in figures["absent"].items():
        console.print(f"absent: {name}: {reason}")
    where = figures["machine"]
    console.print(
        f"{where['processor']}, {where['cores']} cores, {where['threads']} threads, {' '.join(where['flags'])}; "
        f"commit {where['commit']}, {where['date']}"
    )
    for name, about in figures["versions"].items():
        console.print(f"{name}: {about}")


if __name__ == "__main__":
    sys.exit(main())
