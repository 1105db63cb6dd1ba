"""docs/claims.md: verdicts follow from the figures, and what is to be run exists."""

import re
from pathlib import Path
from typing import Any

import pytest

from bench import claims_tables, measured
from bench.claims_tables import NOT, OWN, PARTLY, PUBLISHED, VERDICTS, Claim

ROOT = Path(__file__).parent.parent.parent
CLAIMS = (*PUBLISHED, *OWN)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.measure.__name__)
def test_a_claim_has_a_source_a_figure_a_verdict_and_a_command(claim: Claim) -> None:
    told, found = claim.measure()
    assert re.search(r"\d", told)
    assert found in VERDICTS
    assert "|" not in claim.says + told + claim.command
    (link,) = re.findall(r"\]\((.+)\)", claim.source)
    assert link.startswith("https://") or (ROOT / "docs" / link).is_file()
    script = re.match(r"python (bench/\S+\.py)|stridelm acceptance --model smollm2 --prompts (\S+)", claim.command)
    assert script is not None
    assert (ROOT / (script[1] or script[2])).is_file()


@pytest.mark.parametrize(
    ("name", "file", "path", "figure", "expected"),
    [
        ("gate", "exact-auto.json", ("int8, greedy", "different"), 1, NOT),
        ("lossless", "decoders.json", ("bars", "auto_identical_to_plain"), 0, NOT),
        ("lossless", "decoders.json", ("bars", "maths_over_plain"), 0.5, PARTLY),
        ("relation", "acceptance_and_speed.json", ("acceptance", "0.9", "tokens_per_forward", "measured"), 2.0, NOT),
        ("critic", "objectives.json", ("ground truth", "verified", "tokens_per_forward"), 9.0, NOT),
        ("past_llama_cpp", "cpu.json", ("ratio_intervals", "multi_vs_llamacpp"), [0.9, 1.1], PARTLY),
        ("coupled", "coupling.json", ("tokens_per_forward", "0.7", "argmax"), 9.0, PARTLY),
    ],
)
def test_another_figure_gives_another_verdict(
    monkeypatch: pytest.MonkeyPatch, name: str, file: str, path: tuple[str, ...], figure: Any, expected: str
) -> None:
    def read(asked: str) -> Any:
        content = measured.read(asked)
        if asked == file:
            place = content
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = figure
        return content

    monkeypatch.setattr(claims_tables, "read", read)
    assert getattr(claims_tables, name)()[1] == expected
