"""What the pages point at exists: files, headings, flags, make targets, parsable Python."""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def headings(page: Path) -> set[str]:
    """The anchors of a page, as repository pages make them from its headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in headings(file), target


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_blocks_are_python(page: Path) -> None:
    for block in re.findall(r"```python[^\n]*\n(.*?)```", page.read_text(), flags=re.DOTALL):
        ast.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), flags=re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("name", ["teacher", "coordinator"])
def test_flags_of_a_page_are_those_of_its_command(name: str) -> None:
    sources = " ".join(path.read_text() for path in (ROOT / name).glob("*.py"))
    flags = set(re.findall(r"`(--[a-z-]+)", (ROOT / "docs" / f"{name}.md").read_text()))
    assert flags
    for flag in flags:
        option = flag.removeprefix("--").replace("-", "_")
        assert f'"{flag}"' in sources or re.search(rf"\b{option}: ", sources), flag


def test_the_picture_is_xml_with_words_for_who_cannot_see_it() -> None:
    tree = ElementTree.parse(ROOT / "docs" / "mesh.svg").getroot()
    names = [child.tag.partition("}")[2] for child in tree]
    assert names[:2] == ["title", "desc"]
