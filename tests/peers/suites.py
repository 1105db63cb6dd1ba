"""The suites: whose they are, where they come from and which of their files are about a server's HTTP surface."""

import ast
from dataclasses import dataclass
from pathlib import Path

from outcomes import Record, Statements, read_statements

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Suite:
    """A peer's own tests of what we serve, too."""

    name: str
    package: str
    """A source distribution on PyPI that holds the tests, or, where `repository` is given, does not."""
    root: str
    """The folder inside of it that pytest runs in."""
    scope: tuple[str, ...]
    """Files, and folders with all of their test files, under the root."""
    model: str = "smollm2"
    """What is served: the built-in model, or `tiny`, random weights whose tokenizer knows fill-in-the-middle."""
    repository: str = ""
    """Where the tests are if PyPI has none."""
    options: tuple[str, ...] = ()
    """Further arguments of pytest."""

    @property
    def statements(self) -> Statements:
        return read_statements(HERE / "classified" / f"{self.name}.toml")

    def files(self, root: Path) -> list[str]:
        """The test files in scope, relative to the root."""
        found = [file for each in self.scope for file in _test_files(root / each)]
        return [file.relative_to(root).as_posix() for file in found]


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="openai",
            package="openai==2.54.0",
            root="",
            scope=(
                "tests/api_resources/chat",
                "tests/api_resources/test_completions.py",
                "tests/api_resources/test_models.py",
            ),
            model="tiny",
            options=("-o", "addopts="),
        ),
        Suite(
            name="llama_cpp",
            package="llama-cpp-python==0.3.36",
            root="vendor/llama.cpp/tools/server/tests",
            scope=("unit",),
        ),
        Suite(
            name="vllm",
            package="vllm==0.32.0",
            root="",
            scope=("tests/entrypoints/openai", "tests/entrypoints/serve"),
            # Above lies a conftest that wants vLLM itself.
            options=("--confcutdir", "tests/entrypoints", "-o", "addopts="),
        ),
        Suite(
            name="transformers",
            package="transformers",
            root="",
            scope=("tests/cli/test_serve.py",),
            repository="https://github.com/huggingface/transformers",
            options=("--noconftest", "-o", "addopts="),
        ),
    )
}


def whole_files(statements: Statements, files: list[str], root: Path) -> list[Record]:
    """The files that do not apply as a whole, each with the number of its tests: they are not even imported."""
    left_out = [file for file in files if any(statement.covers(file) for statement in statements.not_applicable)]
    return [Record(file, "left out", count=_count_tests(root / file)) for file in left_out]


def _test_files(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def _count_tests(file: Path) -> int:
    """Test functions, each counted once however many parameters it is run with."""
    functions = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, _FUNCTIONS))
    return sum(function.name.startswith("test_") for function in functions)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
