"""Imports point one way, and each outside library stays in its own room."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "stridelm"
LAYERS: list[str] = [
    *(
        "params",
        "files",
        "stats",
        "types",
        "arrays",
        "contracts",
        "settings",
        "profile",
        "prompts",
        "layout",
        "sampling",
        "verify",
        "model",
    ),
    *(
        "draft",
        "decode",
        "engine",
        "train",
        "api",
        "chat",
        "race",
        "generate_command",
        "models_command",
        "train_command",
    ),
    *(
        "acceptance_command",
        "interop",
        "export_command",
        "frontier_picture",
        "tune_command",
        "bench",
        "chat_command",
        "serve",
        "serve_command",
        "bench_command",
        "cli_options",
        "cli_bench",
        "cli_chat",
        "cli_endings",
        "cli_export",
        "cli",
        "__main__",
    ),
]
"""A module may import what stands before it."""
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def layer(name: str) -> int:
    return LAYERS.index(name.split(".")[1])


def imports(path: Path) -> set[str]:
    """All modules that a file imports, inside functions and under TYPE_CHECKING excepted."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def module_name(path: Path) -> str:
    return "stridelm." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    own = layer(module_name(path))
    for name in imports(path):
        if name.startswith("stridelm.") and name.split(".")[1] in LAYERS:
            assert layer(name) <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_model_knows_transformers_models(path: Path) -> None:
    """Elsewhere only the tokenizer's type may be named. What lies in custom_generate is transformers' to run."""
    if {"model", "custom_generate"} & set(path.relative_to(SOURCE).parts[:-1]):
        return
    allowed = {"transformers", "transformers.PreTrainedTokenizerBase"}
    assert {name for name in imports(path) if name.startswith("transformers")} <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350
