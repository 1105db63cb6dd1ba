"""Imports point one way, those inside functions included, and each outside library stays in its own room."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite import LONG_FILES, TESTS

SOURCE = Path(__file__).parent.parent / "src" / "stridelm"
NOUNS = (
    "params",
    "light",
    "files",
    "stats",
    "types",
    "arrays",
    "stepper",
    "contracts",
    "settings",
    "profile",
    "prompts",
)
NOUNS += ("layout", "sampling", "verify")
"""The root's modules: nouns and pure functions, each after those that it needs."""
ROOMS = (*NOUNS, "cache", "models", "backends", "draft", "decode", "engine", "api")
ROOMS += ("train", "chat", "export", "bench", "serve", "cli", "__main__")
"""A room may import itself and those before it."""
BACKENDS = ("common", "torch", "native", "gpu")
"""A backend may import itself and `common`. Only `backends/load.py` knows them all."""
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
MAX_MODULES = 25


def parts(name: str) -> list[str]:
    return name.split(".")[1:]


def module_name(path: Path) -> str:
    return "stridelm." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imports(path: Path) -> set[str]:
    """All modules that a file imports, those for type checkers alone excepted."""
    found: set[str] = set()
    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _statements(node)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    own = ROOMS.index(parts(module_name(path))[0])
    for name in imports(path):
        if name.startswith("stridelm.") and parts(name)[0] in ROOMS:
            assert ROOMS.index(parts(name)[0]) <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.relative_to(SOURCE).parts[0] == "backends"], ids=lambda path: path.name
)
def test_backends_do_not_know_each_other(path: Path) -> None:
    room = parts(module_name(path))[1]
    if room not in BACKENDS:
        return
    for name in imports(path):
        if name.startswith("stridelm.backends."):
            assert parts(name)[1] in (room, "common"), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_some_rooms_know_transformers_models(path: Path) -> None:
    """Elsewhere only the tokenizer's type may be named."""
    if path.relative_to(SOURCE).parts[0] in ("models", "backends", "train", "export"):
        return
    allowed = {"transformers", "transformers.PreTrainedTokenizerBase"}
    assert {name for name in imports(path) if name.startswith("transformers")} <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350


@pytest.mark.parametrize("root", ["src", "bench", "tests"])
def test_folders_stay_small(root: str) -> None:
    top = SOURCE.parent.parent / root
    for folder in (top, *top.rglob("*")):
        if folder.is_dir():
            modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            assert len(modules) <= MAX_MODULES, f"{folder} has {len(modules)} modules"


def test_lists_of_tests_name_real_ones() -> None:
    """What `make test-quick` runs, and what `make test` begins with."""
    for line in (TESTS / "quick.txt").read_text().splitlines():
        path, _, test = line.partition("::")
        assert (TESTS.parent / path).exists(), line
        assert not test or f"def {test.split('[')[0]}(" in (TESTS.parent / path).read_text(), line
    for file in LONG_FILES:
        assert (TESTS / file).is_file(), file
