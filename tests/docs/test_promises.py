"""docs/explanation/promises.md: every test that it names exists, and no row is without one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "promises.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "provoked by" not in line]


def named(row: str) -> tuple[str, str] | None:
    """File and name of the test in a row's last cell; None: it has none."""
    found = re.fullmatch(r"\|.*\| `(tests/\S+?\.py)::(\w+)` \|", row)
    return None if found is None else (found[1], found[2])


def test_each_row_names_one() -> None:
    rows = [row for row in ROWS if row != "| what is driven | by |"]
    assert len(rows) > 70
    assert [row for row in rows if named(row) is None] == []


@pytest.mark.parametrize("file", sorted({found[0] for row in ROWS if (found := named(row))}))
def test_it_exists(file: str) -> None:
    """As a function that is collected, or as the test case of a state machine."""
    text = (ROOT / file).read_text()
    tests = [found[1] for row in ROWS if (found := named(row)) and found[0] == file]
    missing = [
        test
        for test in tests
        if not re.search(rf"^(?:(?:async )?def {test}\(|{test} = \w+\.TestCase$)", text, re.M)
    ]
    assert missing == []


def test_none_is_named_twice() -> None:
    tests = [found for row in ROWS if (found := named(row))]
    assert len(tests) == len(set(tests))
