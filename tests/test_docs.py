"""The paths that docs/architecture.md and docs/decisions.md name are there, and so is what any page links to."""

import re
from pathlib import Path

import pytest

from stridelm import __version__

ROOT = Path(__file__).parent.parent
PLACES = (ROOT / "src" / "stridelm", ROOT, ROOT / "tests")
PAGES = ("architecture.md", "decisions.md")
NOT_OURS = {"load/", "node_modules/"}
"""Folders that a page names because they are not there."""


def named(page: str) -> list[str]:
    """Folders, and files of kinds that are source here, in backticks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return sorted(set(re.findall(r"`([\w./-]+(?:/|\.(?:py|h|cpp|js|css|html|md)))`", text)) - NOT_OURS)


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    paths = named(page)
    assert len(paths) > 15
    assert [path for path in paths if not any((place / path).exists() for place in PLACES)] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """To files, and to headings of pages."""
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        other = page.parent / name if name else page
        assert other.exists(), link
        heads = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {_anchor(head) for head in heads}, link


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_versions_agree() -> None:
    """What a release is called; CONTRIBUTING.md says how one is made."""
    (cited,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert __version__ == cited == changes[0]
