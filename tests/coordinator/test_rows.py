"""Rows of the table and what the log says of them."""

from __future__ import annotations

import pytest

from edl.coordinator.manager.rows import Rows
from edl.scheduler.assignment import Change


@pytest.mark.parametrize(
    ("teachers", "text"),
    [
        ((), "assigned 0 teachers: so"),
        (("a",), "assigned 1 teacher: so"),
        (("a", "b"), "assigned 2 teachers: so"),
    ],
)
def test_the_log_counts_teachers_in_good_english(teachers: tuple[str, ...], text: str) -> None:
    rows = Rows({}, lost_s=1.0)
    rows.change([Change("j/0", ("c",), (), "", "", 0, "first")], (), 1, 0.0)
    _, entries = rows.change([Change("j/0", teachers, (), "", "", 0, "so")], (), 2, 0.0)
    assert [entry.text for entry in entries] == [text]
