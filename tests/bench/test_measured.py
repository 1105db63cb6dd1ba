"""bench/measured.py: the figures of many rounds by hand, and that scripts find it from anywhere."""

import json
import math
import re
from pathlib import Path

import pytest

from bench import measured

BENCH = Path(measured.__file__).parent
_IMPORT, _MAIN = re.compile(r"^ *from bench", re.M), r"(?sm)^ *from bench.*^if __name__ == \"__main__\""
SCRIPTS = [file for file in sorted(BENCH.rglob("*.py")) if re.search(_MAIN, file.read_text())]


def test_an_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, three rounds: Student's t is 4.303.
    assert measured.interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.303 / math.sqrt(3), 2, 2 + 4.303 / math.sqrt(3)))
    assert measured.interval([1.5]) == (1.5, 1.5, 1.5)


def test_a_spread_is_from_the_least_to_the_largest() -> None:
    found = measured.summary([3.0, 1.004, 2.0, 1234.5])
    assert found == {"median": 2.5, "low": 1.0, "high": 1234.5}
    assert measured.spread(found, unit="x") == "2.50x (1.00 to 1,234.50)"


def test_figures_are_written_if_a_file_is_named(tmp_path: Path) -> None:
    measured.write(None, {"a": 1})
    measured.write(tmp_path / "figures.json", {"a": 1})
    assert json.loads((tmp_path / "figures.json").read_text()) == {"a": 1}


def test_prompts_of_every_kind_are_as_many() -> None:
    kinds = measured.prompts_by_kind()
    assert len(kinds) == 12 and len({len(texts) for texts in kinds.values()}) == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.relative_to(BENCH).as_posix())
def test_a_script_finds_the_others_from_anywhere(script: Path) -> None:
    text = script.read_text()
    (first, *_) = _IMPORT.finditer(text)
    assert 0 < text.find("sys.path.insert(0, str(Path(__file__).parents[2]))") < first.start()
