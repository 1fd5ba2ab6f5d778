"""`edl bench reader` moves real batches through a real reader, and its goals can fail."""

from __future__ import annotations

import pytest

from edl.benchmarks import reader
from edl.benchmarks.reader import PINNED, REMOTE, SAME_HOST, SHARED, Found, Turns
from edl.benchmarks.report import MIN_ROUNDS


def turns(sample_s: float) -> Turns:
    """Of a measurement that takes as long each time."""
    return Turns(*([sample_s] * (MIN_ROUNDS + 1) for _ in range(4)))


@pytest.mark.parametrize(("lane", "teachers"), [(REMOTE, (2,)), (SAME_HOST, (1, 2))])
def test_a_reader_and_a_plain_socket_are_timed_by_turns(
    lane: str, teachers: tuple[int, ...]
) -> None:
    found = reader.measure("uint8", lane, teachers, batches=2)
    for each in (*found.sockets.values(), *found.readers.values()):
        assert len(each.wall_s) == MIN_ROUNDS + 1
        assert min(each.wall_s) > 0
        assert sum(each.trainer_s) > 0
        assert sum(each.teachers_s) > 0
    assert all(sum(each.engine_s) > 0 for each in found.readers.values())
    assert tuple(found.readers) == teachers
    rows = list(reader._rows("uint8", lane, found))
    assert [row["teachers"] for row in rows] == [SHARED, PINNED, *map(str, teachers)]
    assert [row["of_raw_tcp"] for row in rows].count(1) == 1, "the faster of the two"


def test_the_reader_stands_beside_the_faster_of_two_plain_sockets() -> None:
    slower, faster = turns(2.0), turns(1.0)
    for sockets in ({SHARED: slower, PINNED: faster}, {SHARED: faster, PINNED: slower}):
        assert Found(sockets, {2: turns(1.0)}).raw is faster


@pytest.mark.parametrize(
    ("lane", "raw_s", "holds"),
    [(REMOTE, 0.5, True), (REMOTE, 0.4, False), (SAME_HOST, 2.1, True), (SAME_HOST, 1.9, False)],
)
def test_what_two_teachers_get_is_held_against_raw_tcp(
    lane: str, raw_s: float, holds: bool
) -> None:
    found = Found({SHARED: turns(raw_s)}, {1: turns(9.0), 2: turns(1.0), 8: turns(1.0)})
    of_raw, kept = reader._goals("uint8", lane, found)
    assert of_raw.value == pytest.approx(raw_s)
    assert of_raw.holds is holds
    assert kept.holds


def test_float32_over_tcp_has_no_limit_but_that_of_more_teachers() -> None:
    readers = {1: turns(1.0), 2: turns(0.5), 5: turns(0.7), 8: turns(0.6)}
    (kept,) = reader._goals("float32", REMOTE, Found({SHARED: turns(9.0)}, readers))
    assert "rate of 5 teachers, times that of 2" in kept.name
    assert kept.value == pytest.approx(0.5 / 0.7)
    assert not kept.holds
