"""Algorithm 1, when to pull and what is booked; all together under faults: tests/properties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edl.scheduler.flow import FlowConfig, FlowDecision, FlowView
from edl.tests.scheduler.flowing import CALM, CONFIG, PAUSED, SOURCE_WAIT, STARVED, Flow


class TestPulling:
    def test_pulls_until_the_read_ahead_is_queued(self) -> None:
        assert Flow().see(CALM).pull == 1
        assert Flow().see(CALM._replace(queued=2)).pull == 0
        assert Flow().see(CALM._replace(queued=7)).pull == 0
        assert Flow().see(CALM._replace(windows=8)).pull == 7

    def test_no_more_is_unlabelled_than_fits_below_ut_and_one_batch_per_window(self) -> None:
        view = CALM._replace(windows=4, queued=0, unlabelled=4, batch_bytes=100)
        assert Flow().see(view._replace(volume_bytes=0)).pull == 4
        assert Flow().see(view._replace(volume_bytes=850)).pull == 1
        assert Flow().see(view._replace(volume_bytes=950)).pull == 0
        assert Flow().see(view._replace(volume_bytes=950, unlabelled=3)).pull == 1

    def test_reads_two_ahead_even_before_there_is_a_teacher(self) -> None:
        assert Flow().see(CALM._replace(queued=0, windows=0, teachers=0)).pull == 2

    def test_lines_4_to_12_pause_above_ut_and_go_on_below_lt(self) -> None:
        volumes = (1000, 1001, 1000, 400, 399, 1000, 1001)
        flow = Flow()
        assert [flow.see(CALM._replace(volume_bytes=v)).pull > 0 for v in volumes] == [
            True,  # not above ut
            False,
            False,  # not yet below lt
            False,
            True,
            True,  # not above ut
            False,
        ]

    def test_an_empty_buffer_pulls_whatever_the_thresholds(self) -> None:
        flow = Flow(FlowConfig(upper_bytes=1, lower_bytes=0))  # below one batch
        assert flow.see(CALM._replace(volume_bytes=100)).pull == 0
        assert flow.see(CALM._replace(volume_bytes=0)).pull > 0


class TestState:
    @pytest.mark.parametrize(
        ("view", "state"),
        [
            (CALM, "steady"),
            (CALM._replace(waiting=True), "steady"),  # it is being served this moment
            (STARVED, "starved"),
            (STARVED._replace(queued=0, unlabelled=1), "starved"),
            (SOURCE_WAIT, "source_wait"),
            (
                SOURCE_WAIT._replace(unlabelled=1, free_windows=1),
                "source_wait",
            ),  # one is on its way
            (SOURCE_WAIT._replace(unlabelled=1, free_windows=1, source_ended=True), "starved"),
            (SOURCE_WAIT._replace(unlabelled=1, free_windows=0), "starved"),
            (SOURCE_WAIT._replace(source_ended=True), "steady"),
            (PAUSED, "blocked"),
            (STARVED._replace(volume_bytes=2000), "starved"),  # the head is late, the rest waits
        ],
    )
    def test_is_named(self, view: FlowView, state: str) -> None:
        assert Flow().see(view).state == state

    def test_time_is_booked_on_what_was_the_case(self) -> None:
        flow = Flow()
        for view, seconds in ((STARVED, 1.0), (CALM, 2.0), (SOURCE_WAIT, 3.0), (PAUSED, 4.0)):
            flow.run(view, seconds)
        memory = flow.memory
        assert memory.starved_s == pytest.approx(1.0)
        assert memory.source_wait_s == pytest.approx(3.0)
        assert memory.blocked_s == pytest.approx(4.0)

    def test_a_clock_that_stands_still_books_nothing(self) -> None:
        flow = Flow()
        for _ in range(100):
            flow.see(STARVED)
        assert flow.memory.starved_s == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"lower_bytes": -1},
        {"lower_bytes": 1000},
        {"teachers_min": 0},
        {"teachers_min": 9, "teachers_max": 8},
        {"cooldown_s": -1.0},
        {"surplus_window_s": 0.0},
        {"tolerated": 1.0},
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"needs|not negative"):
        replace(CONFIG, **change)


def test_nothing_is_decided_before_the_first_decision() -> None:
    assert FlowDecision.start(replace(CONFIG, teachers_min=2)) == FlowDecision(
        pull=0, want=2, needed=0, state="steady", reason="nothing is measured yet"
    )
