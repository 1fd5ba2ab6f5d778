"""docs/explanation/promises.md: every row names a test that exists, and the tier that runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edl.tests.conftest import ALL_SYSTEM, SYSTEM_FOLDERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "promises.md").read_text()
HEADS = ("| what is driven |", "| promise |")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(HEADS)]
NAMED = {
    row: found
    for row in ROWS
    if (found := re.fullmatch(r"\|.*\| `(tests/\S+?\.py)::(\w+)` \| `make ([\w-]+)` \|", row))
}


def test_each_row_names_one_and_no_other_row_does() -> None:
    assert len(ROWS) > 70
    assert [row for row in ROWS if row not in NAMED] == []
    assert len({found.group(1, 2) for found in NAMED.values()}) == len(ROWS)


@pytest.mark.parametrize("file", sorted({found[1] for found in NAMED.values()}))
def test_it_exists_and_runs_in_the_tier(file: str) -> None:
    """As a function that is collected, or as the test case of a state machine."""
    text = (ROOT / file).read_text()
    for found in NAMED.values():
        if found[1] == file:
            assert re.search(
                rf"^(?:(?:async )?def {found[2]}\(|{found[2]} = \w+\.TestCase$)", text, re.M
            ), found[2]
            assert found[3] == tier_of(file, text, found[2])


def tier_of(file: str, text: str, test: str) -> str:
    """The command that runs a test, by its folder, its file's mark or its own."""
    folder = Path(file).parts[1]
    if folder == "interop":
        return "interop"
    marked = re.search(
        rf"^@pytest\.mark\.system\n(?:[@ )].*\n)*(?:async )?def {test}\(", text, re.M
    )
    system = folder in SYSTEM_FOLDERS or ALL_SYSTEM.search(text) or marked
    return "test-system" if system else "test"
