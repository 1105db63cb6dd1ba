"""The seeded faults of `make test-faults` can be put in: the code goes on, and their lines with it."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAULTS = tomllib.loads((ROOT / "tests/faults/faults.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FAULTS)
def test_the_line_stands_where_the_list_says(name: str) -> None:
    fault = FAULTS[name]
    assert (ROOT / fault["file"]).read_text(encoding="utf-8").count(fault["line"]) == 1
    assert fault["becomes"] != fault["line"]
    assert all((ROOT / caught).exists() for caught in fault["caught_by"])
