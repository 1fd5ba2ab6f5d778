"""Who may report as which student."""

from __future__ import annotations

import pytest

from edl.coordinator.claims import OWNER, SECRET, Caller, objection
from edl.errors import EdlError, Forbidden, LeaseSuperseded

ME = Caller("me", "mine")
FACTS = {"incarnation": "5", **ME.facts()}


@pytest.mark.parametrize(
    ("caller", "incarnation", "expected"),
    [
        (ME, 5, None),
        (Caller("me", "new"), 6, None),
        (Caller("me", "guess"), 5, Forbidden),
        (ME, 4, LeaseSuperseded),
        (Caller("you", "guess"), 5, Forbidden),
        (Caller("you", "guess"), 6, Forbidden),
        (Caller("you", "guess"), 4, Forbidden),
        (Caller("me again, by another token", "mine"), 5, None),
        (Caller("you", "mine"), 6, Forbidden),
    ],
)
def test_the_first_owns_the_name(
    caller: Caller, incarnation: int, expected: type[EdlError] | None
) -> None:
    no = objection("j/0", incarnation, caller, FACTS)
    assert (type(no) if no else None) is expected


def test_where_nothing_is_known_the_first_to_come_is_believed() -> None:
    assert objection("j/0", 1, Caller("you", "yours"), None) is None
    assert objection("j/0", 1, Caller("you", "yours"), {"incarnation": "1"}) is None
    assert objection("j/0", 1, Caller("you", "yours"), {"incarnation": "odd"}) is None


def test_nothing_secret_is_kept() -> None:
    facts = Caller("me", "a long secret").facts()
    assert set(facts) == {OWNER, SECRET}
    assert "a long secret" not in str(facts)
    assert "me" not in facts[OWNER].split()
