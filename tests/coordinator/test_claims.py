"""Who may report as which student."""

from __future__ import annotations

import pytest

from edl.coordinator.manager.claims import OWNER, SECRET, Claimant, objection
from edl.errors import EdlError, Forbidden, LeaseSuperseded

ME = Claimant("me", "mine")
FACTS = {"incarnation": "5", **ME.facts()}


@pytest.mark.parametrize(
    ("caller", "incarnation", "expected"),
    [
        (ME, 5, None),
        (Claimant("me", "new"), 6, None),
        (Claimant("me", "guess"), 5, Forbidden),
        (ME, 4, LeaseSuperseded),
        (Claimant("you", "guess"), 5, Forbidden),
        (Claimant("you", "guess"), 6, Forbidden),
        (Claimant("you", "guess"), 4, Forbidden),
        (Claimant("me again, by another token", "mine"), 5, None),
        (Claimant("you", "mine"), 6, Forbidden),
    ],
)
def test_the_first_owns_the_name(
    caller: Claimant, incarnation: int, expected: type[EdlError] | None
) -> None:
    no = objection("j/0", incarnation, caller, FACTS)
    assert (type(no) if no else None) is expected


def test_where_nothing_is_known_the_first_to_come_is_believed() -> None:
    assert objection("j/0", 1, Claimant("you", "yours"), None) is None
    assert objection("j/0", 1, Claimant("you", "yours"), {"incarnation": "1"}) is None
    assert objection("j/0", 1, Claimant("you", "yours"), {"incarnation": "odd"}) is None


def test_nothing_secret_is_kept() -> None:
    facts = Claimant("me", "a long secret").facts()
    assert set(facts) == {OWNER, SECRET}
    assert "a long secret" not in str(facts)
    assert "me" not in facts[OWNER].split()
