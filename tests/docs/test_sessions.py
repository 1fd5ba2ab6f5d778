"""The sessions of all pages: each command is run, and prints what the page shows (`pages.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.tests.docs.pages import read
from edl.tests.docs.shell import ROOT, play

pytestmark = pytest.mark.system

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {page.name: page for page in (read(file, ROOT) for file in FILES) if page.runs}
#: Pages of which a part takes too long for every run of the tests.
LONGER = [name for name, page in PAGES.items() if page.nightly]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_shows(name: str, tmp_path: Path) -> None:
    play(PAGES[name], tmp_path, short=True)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LONGER)
def test_all_of_a_page_does_what_it_shows(name: str, tmp_path: Path) -> None:
    play(PAGES[name], tmp_path, short=False)


def test_pages_with_sessions_are_found() -> None:
    assert "docs/tutorial.md" in PAGES
