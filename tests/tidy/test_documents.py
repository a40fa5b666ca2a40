"""What the documents point at exists: links between pages, and every file that docs/where.md and the decisions name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.tree import ROOT

_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_FILE = re.compile(r"`((?:stratus|adapters|migrations|testbed|tests|docs|deploy)/[\w./-]+(?:\.\w+|/))`")
_HEADINGS = ("Context", "Decision", "Consequences", "Alternatives", "Enforced by")


def pages(root: Path) -> list[Path]:
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def dead_links(root: Path) -> Iterator[str]:
    """Relative links that lead nowhere."""
    for page in pages(root):
        for target in _LINK.findall(page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                yield f"{page.relative_to(root)}: {target}"


def absent_files(root: Path, page: Path) -> Iterator[str]:
    """Project files that a page names in backquotes and that are not there."""
    for name in _FILE.findall(page.read_text(encoding="utf-8")):
        if not (root / name).exists():
            yield f"{page.relative_to(root)}: {name}"


def missing_headings(text: str) -> list[str]:
    """Headings of a decision record that it lacks or has out of order."""
    found = re.findall(r"^\*\*([\w ]+)\.\*\*", text, re.MULTILINE)
    return [] if tuple(found) == _HEADINGS else [heading for heading in _HEADINGS if heading not in found] or found


def test_links_lead_somewhere() -> None:
    assert not list(dead_links(ROOT))


def test_files_that_the_index_and_the_decisions_name_exist() -> None:
    named = [ROOT / "docs" / "where.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert not [finding for page in named for finding in absent_files(ROOT, page)]


def test_decisions_have_their_five_headings() -> None:
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        assert missing_headings(page.read_text(encoding="utf-8")) == [], page.name


def test_a_dead_link_an_absent_file_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "where.md"
    page.write_text("[a](gone.md#x) [b](where.md) [c](https://example.org/x) `stratus/gone.py` `stratus/<noun>.py`")
    assert list(dead_links(tmp_path)) == ["docs/where.md: gone.md"]
    assert list(absent_files(tmp_path, page)) == ["docs/where.md: stratus/gone.py"]
    assert missing_headings("**Context.** a\n**Decision.** b\n") == ["Consequences", "Alternatives", "Enforced by"]
