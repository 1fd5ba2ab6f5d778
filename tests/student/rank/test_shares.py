"""Rows that are agreed on: before a vote nothing waits, then nobody reads beyond its promise."""

from __future__ import annotations

import threading

import pytest

from edl.errors import PeerLost
from edl.scheduler.students.proportion import Proportion
from edl.student.rank.shares import MARGIN, Shares

MANY = 10**6


def shares() -> Shares:
    return Shares(Proportion.equal(30, 3), 1)


def test_the_beginning_of_an_epoch_waits_for_nothing() -> None:
    mine = shares()
    mine.begin(100)
    assert [mine.rows(ordinal, MANY) for ordinal in range(64)] == [10] * 64
    assert mine.promise(100) == 163 + MARGIN


def test_what_lies_beyond_the_promise_is_read_once_more_is_agreed() -> None:
    mine = shares()
    mine.begin(0)
    assert mine.promise(0) == MARGIN
    read: list[int] = []
    reader = threading.Thread(target=lambda: read.append(mine.rows(MARGIN + 1, MANY)))
    reader.start()
    reader.join(0.05)
    assert not read
    changed = mine.proportion
    for step in range(4):
        changed = changed.told(step, [0.01, 0.05, 0.01], MARGIN + 1)
    mine.told(changed)
    assert mine.rows(MARGIN, MANY) == 10, "it was promised with the old shares"
    mine.promise(1)
    reader.join(5)
    assert read == [changed.rows(MARGIN + 1)[1]]
    assert read[0] < 10


def test_who_waits_is_let_go_at_the_end() -> None:
    mine = shares()
    mine.begin(0)
    mine.promise(0)
    threading.Timer(0.02, mine.close).start()
    with pytest.raises(PeerLost):
        mine.rows(10 * MARGIN, MANY)


def test_the_last_rows_of_an_epoch_are_shared_by_all_ranks() -> None:
    parts = []
    for rank in range(3):
        mine = Shares(Proportion.equal(30, 3), rank)
        mine.begin(0)
        parts.append([mine.rows(ordinal, 70 - 30 * ordinal) for ordinal in range(4)])
    assert parts == [[10, 10, 4, 0], [10, 10, 3, 0], [10, 10, 3, 0]]
