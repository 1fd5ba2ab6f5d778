"""What a reader of the registry knows: who is missing, who is back, when all is read anew."""

from __future__ import annotations

from edl.coordinator.manager.mirror import Mirror
from edl.coordinator.registry import Changes, Member

GRACE_S = 8.0


def full(*names: str, cursor: int = 1) -> Changes:
    return Changes(cursor, tuple(Member(name) for name in names), full=True)


def mirror(*names: str) -> Mirror:
    made = Mirror(GRACE_S)
    made.apply(full(*names), 0.0)
    return made


def test_who_came_between_two_readings_is_no_reason_to_read_all_anew() -> None:
    known = mirror("a")
    known.compare({"a", "b"}, 1.0)
    assert known.cursor == 1
    known.apply(Changes(2, (Member("b"),)), 1.1)
    known.compare({"a", "b", "c"}, 2.0)
    assert known.cursor == 2


def test_who_was_missed_is_looked_for_once() -> None:
    known = mirror("a")
    cursors = []
    for second in range(1, 6):
        known.compare({"a", "missed"}, second)
        cursors.append(known.cursor)
        if known.cursor == 0:
            known.apply(full("a"), second)
    assert cursors == [1, 0, 1, 1, 1]


def test_a_lease_that_no_sweep_takes_out_does_not_begin_the_time_of_grace_anew() -> None:
    known = mirror("a")
    assert known.believe("dead", 0.0)
    for second in (2.0, 4.0, 6.0):
        known.compare({"a", "dead"}, second)  # its lease has run out, and nobody may sweep yet
        assert known.overdue(second) == ()
        assert known.cursor == 0
        known.apply(full("a"), second)
    known.compare({"a"}, 8.0)
    assert known.overdue(8.0) == ("dead",)


def test_who_came_back_unseen_is_read_before_it_is_given_up() -> None:
    known = mirror("a", "b")
    known.compare({"a"}, 0.0)
    known.compare({"a", "b"}, GRACE_S + 1)
    assert known.overdue(GRACE_S + 1) == ()
    known.apply(full("a", "b"), GRACE_S + 1)
    assert known.overdue(9 * GRACE_S) == ()


def test_after_half_a_minute_without_a_reading_everything_is_read() -> None:
    known = Mirror(GRACE_S)
    assert known.cursor_at(0.0) == 0
    known.apply(full("a", cursor=7), 0.0)
    assert known.cursor_at(30.0) == 7
    assert known.cursor_at(30.1) == 0
    known.apply(Changes(9), 30.0)
    assert known.cursor_at(60.0) == 9
