"""What is told of students that starve: each state that lasts, once."""

from __future__ import annotations

from edl.scheduler.moods import LASTING_S, Moods


def told(moods: Moods, now: float) -> list[tuple[str, bool]]:
    return [(mood.student_id, mood.starved) for mood in moods.lasting(now)]


def test_what_lasts_is_told_once() -> None:
    moods = Moods()
    moods.hear("a", True, 0.0)
    assert told(moods, LASTING_S - 0.01) == []
    assert told(moods, LASTING_S) == [("a", True)]
    moods.hear("a", True, 2.0)
    assert told(moods, 9.0) == []
    moods.hear("a", False, 10.0)
    assert told(moods, 10.0 + LASTING_S) == [("a", False)]


def test_a_flicker_is_not_told() -> None:
    moods = Moods()
    for tick in range(100):
        moods.hear("a", tick % 2 == 0, tick * 0.5)
        assert told(moods, tick * 0.5) == []


def test_who_is_steady_from_the_start_is_no_news() -> None:
    moods = Moods()
    moods.hear("a", False, 0.0)
    assert told(moods, 99.0) == []


def test_who_is_gone_is_forgotten() -> None:
    moods = Moods()
    moods.hear("a", True, 0.0)
    moods.forget("a")
    assert told(moods, 99.0) == []
    moods.hear("a", False, 100.0)
    assert told(moods, 199.0) == []
