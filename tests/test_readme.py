"""The README's own words: its Python runs, its files exist. Its commands: test_commands.py."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stridelm.cli import app as cli
from stridelm.cli import generate
from stridelm.prompts import read_prompts
from stridelm.serve.schemas.chat import ChatRequest
from stridelm.settings import DEFAULT_MODEL, DecodeSettings, ModelChoice

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example, {})
    printed = capsys.readouterr().out
    assert printed.count("|") > 20
    assert float(printed.split("|")[-1]) >= 1


def test_the_request_is_one_that_the_server_takes() -> None:
    (body,) = re.findall(r"-d '(.*?)'", README, re.DOTALL)
    request = ChatRequest.model_validate_json(body)
    assert request.model == DEFAULT_MODEL and request.max_tokens == 64


def test_tables_are_those_of_the_code_and_of_what_was_measured() -> None:
    done = subprocess.run([sys.executable, "docs/fill_tables.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", README, re.MULTILINE)) <= targets


def test_the_demo_is_three_races_on_the_default_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    makefile = (ROOT / "Makefile").read_text()
    given = dict(re.findall(r"^(DEMO_\w+) := (.*)$", makefile, re.MULTILINE))
    (recipe,) = re.findall(r"^demo: .*\n\t\$\(BIN\)/(.*)$", makefile, re.MULTILINE)
    command = re.sub(r"\$\((\w+)\)", lambda name: given[name[1]], recipe)
    asked: list[generate.GenerateOptions] = []
    monkeypatch.setattr(generate, "run", asked.append)
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    (options,) = asked
    assert options.race and options.choice == ModelChoice() and options.decode == DecodeSettings()
    assert options.sampling.max_tokens is not None and options.sampling.max_tokens <= 128
    assert options.prompts is not None
    assert [line.category for line in read_prompts(ROOT / options.prompts)] == ["sum", "JSON table", "question"]


def test_links_and_tree_name_real_files() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    (tree,) = re.findall(r"## What is where\n\n(.*?)\n\n[^ ]", README, re.DOTALL)
    package = [name for line in re.findall(r"^      (\S.*?)   ", tree, re.MULTILINE) for name in line.split(", ")]
    files = [f"src/stridelm/{name}" for name in package if name != "..."]
    tops = re.findall(r"^    (\w+/)", tree, re.MULTILINE)
    assert len(files) > 10
    assert len(tops) == 4
    for name in [*links, *files, *tops]:
        assert (ROOT / name).exists(), name
