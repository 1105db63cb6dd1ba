"""Every command line that README, docs and the commands' own help show: understood by the real command line; and the
cheap ones run, on a tiny model."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from command_line import Call
from stridelm.bench import benchmark, tune
from stridelm.cli import acceptance, app, chat, generate, models, serve
from stridelm.export import run as export
from stridelm.models.adapter import save_adapter
from stridelm.train import run as train
from tiny import load_tiny, random_adapter

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS: dict[str, Any] = typer.main.get_command(app.app).commands  # type: ignore[attr-defined]
BEFORE = r"(?:[A-Z_]+=\S+ |printf .* \| |(?:torchrun|accelerate launch) .*--module )?"
"""What may stand before `stridelm`: a variable, a pipe, a launcher of processes."""
LINE = re.compile(rf"^ *{BEFORE}(stridelm (?:{'|'.join(COMMANDS)})\b.*)$", re.MULTILINE)
LEFT_OUT = re.compile(r"\s+#.*| > \S+| \.\.\.(?= |$)")
"""Comments, where the output goes, and the dots of arguments that the reader is to fill in."""
INLINE = re.compile(r"`(stridelm [a-z][^`]*)`")
"""In a sentence, perhaps only a part of a command line."""


def lines_of(text: str) -> list[str]:
    return [LEFT_OUT.sub("", line) for line in LINE.findall(text)]


TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
HELP = {name: command.help for name, command in COMMANDS.items()}
LINES = sorted({line for text in (*TEXTS.values(), *HELP.values()) for line in lines_of(text)})
PARTS = sorted({" ".join(part.split()) for text in TEXTS.values() for part in INLINE.findall(text)})
SCRIPTS = sorted({line for text in TEXTS.values() for line in re.findall(r"(?<=python )bench/[^`#\n]*", text)})
COMPLETED = {"stridelm train": "--out runs/mine", "stridelm train --texts 32": "--out runs/mine"}
"""What stands for the dots that mean the options of the command before."""


def test_lines_are_found() -> None:
    assert len(LINES) > 40 and len(PARTS) > 20 and len(SCRIPTS) > 10
    assert COMMANDS.keys() - {line.split()[1] for line in LINES} == {"models"}, "takes no options but --json"


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options exist and take these values."""
    asked: list[object] = []
    for module in (generate, train, acceptance, tune, export, serve, chat, benchmark, models):
        monkeypatch.setattr(module, "run", lambda *given, **options: asked.append(given))
    for name in ("show_comparison", "write_again"):
        monkeypatch.setattr(benchmark, name, lambda *given: asked.append(given))
    monkeypatch.setattr(sys, "argv", shlex.split(f"{line} {COMPLETED.get(line, '')}"))
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 0
    assert len(asked) == 1


@pytest.mark.parametrize("part", PARTS)
def test_what_a_sentence_names_exists(part: str) -> None:
    """The command, and each option."""
    _, name, *arguments = shlex.split(part)
    known = {flag for option in COMMANDS[name].params for flag in option.opts} | {"--help"}
    assert {argument for argument in arguments if argument.startswith("-")} <= known


@pytest.mark.parametrize("line", SCRIPTS)
def test_a_script_has_these_options(line: str) -> None:
    """Their names are in its code: to run each script for its --help would take a minute."""
    script, *arguments = shlex.split(line)
    names = set(re.findall(r"\w+", (ROOT / script).read_text(encoding="utf-8").replace("-", "_").replace("__", " ")))
    asked = {each.removeprefix("--").replace("-", "_") for each in arguments if each.startswith("--")}
    assert asked <= names


# Lines that run: on a tiny model, from a folder that holds what they name

OTHERS = {
    "stridelm serve": "runs until it is stopped: tests/serve",
    "stridelm demo": "as `serve`: tests/serve/playground",
    "stridelm bench": "minutes: tests/bench/test_bench_command.py runs a small one, --compare and --page",
    "stridelm train": "minutes: tests/train",
    "stridelm acceptance": "the answers of many prompts: tests/train/test_acceptance.py",
    "stridelm chat --url": "needs a server: tests/chat/test_openai_stream.py",
    "stridelm generate --race": "tests/cli/test_cli.py",
    "stridelm generate --heads": "needs heads: tests/train/test_modes.py",
    "stridelm generate --model gemma": "needs Gemma 4 and its assistant: tests/backends/torch/test_gemma4_assistant.py",
    "stridelm export --model Qwen": "as the same line with smollm2",
    "stridelm export": "a part of other names or another tokenizer: tests/export",
}
"""Why a line that begins so is not run here; the first that fits counts."""
RUN = (
    'stridelm generate "Why is the sky blue?"',
    'stridelm generate --model Qwen/Qwen3-0.6B --temperature 0.7 --seed 1 --explain "Tell me a story."',
    'stridelm generate --model Qwen/Qwen3-0.6B --adapter runs/mine "..."',
    'stridelm generate --model smollm2 --adapter runs/mine "..."',
    "stridelm generate --prompts questions.jsonl --json --batch 8",
    "stridelm tune --prompts mine.jsonl --out runs/tuned",
    'stridelm generate --profile runs/tuned/profile.json "..."',
    "stridelm tune --prompts questions.jsonl --out tuned",
    'stridelm generate --profile tuned/profile.json "Why is the sky blue?"',
    "stridelm chat",
    "stridelm export --model smollm2 --to hf smollm2-hf",
    "stridelm export --model smollm2 --to vllm smollm2-vllm",
)
"""In this order: some need what those before them have made."""


def test_every_line_runs_or_has_a_reason() -> None:
    assert set(RUN) <= set(LINES), "a line that is no longer shown"
    for path in re.findall(r"tests/[\w/.]+", " ".join(OTHERS.values())):
        assert (ROOT / path).exists(), path
    rest = [line for line in LINES if line not in RUN]
    assert [line for line in rest if not any(line.startswith(start) for start in OTHERS)] == []
    assert [start for start in OTHERS if not any(line.startswith(start) for line in rest)] == []


def test_lines_run(
    call: Call, tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_adapter(tmp_path / "runs" / "mine", random_adapter(load_tiny(tiny_folder())))
    for name in ("mine", "questions"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "One"}\n{"prompt": "Two"}\n')
    monkeypatch.chdir(tmp_path)
    tokens = {"generate": ["--max-tokens", "4"], "chat": ["--max-tokens", "4"]}
    tokens["tune"] = [*tokens["chat"], "--rounds", "1"]
    for line in RUN:
        _, name, *arguments = shlex.split(line)
        own = ["--model", str(tiny_folder()), *tokens.get(name, [])]  # the last one counts
        exported = ["--adapter", "runs/mine"] if name == "export" else ["--device", "cpu"]
        run = call(name, *arguments, *own, *exported, stdin=b"Hello\n")
        assert run.status == 0, (line, run.err)
        assert run.out.strip() or name == "export", line
    assert (tmp_path / "smollm2-hf").is_dir() and (tmp_path / "smollm2-vllm").is_dir()
