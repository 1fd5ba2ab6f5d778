"""When a reader pulls batches, and how many teachers it wants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edl.scheduler.flow import (
    SOURCE_CREDIT_S,
    STARVED_FOR_S,
    SURPLUS_WINDOW_S,
    FlowConfig,
    FlowDecision,
    FlowMemory,
    FlowView,
    decide,
)

TICK_S = 0.05
CONFIG = FlowConfig(upper_bytes=1000, lower_bytes=400)

NOTHING = FlowView(0, 0, 0, 0, 0, 0, 0, False, False, None, None)
#: One teacher of window 2, the buffer half full, the student busy with a batch.
CALM = NOTHING._replace(volume_bytes=500, queued=1, unlabelled=3, window_batches=2, teachers=1)
STARVED = CALM._replace(volume_bytes=0, waiting=True)
SOURCE_WAIT = STARVED._replace(queued=0, unlabelled=0, window_room=2, idle=1)
PAUSED = CALM._replace(volume_bytes=1001, queued=0, unlabelled=0, window_room=2, idle=1)


def times(ratio: float) -> dict[str, Any]:
    return {"t_t_s": ratio / 100, "t_s_s": 0.01}


FIVE_NEEDED = times(5.0)


class Flow:
    """Calls `decide` at each tick, as a reader does."""

    def __init__(self, config: FlowConfig = CONFIG) -> None:
        self.config = config
        self.memory = FlowMemory()
        self.now = 1000.0

    def see(self, view: FlowView) -> FlowDecision:
        decision, self.memory = decide(view, self.memory, self.now, self.config)
        return decision

    def run(self, view: FlowView, seconds: float) -> FlowDecision:
        decision = self.see(view)
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            decision = self.see(view)
        return decision

    def run_granted(self, view: FlowView, seconds: float) -> FlowDecision:
        """As `run`, with a coordinator that gives whatever is wanted."""
        decision = self.see(view)
        for _ in range(round(seconds / TICK_S)):
            decision = self.run(view._replace(teachers=decision.want), TICK_S)
        return decision

    def run_idle(self, seconds: int, teachers: float, ratio: float = 5.0) -> FlowDecision:
        """As `run_granted`; so many teachers idle on average, or all of them."""
        decision = self.see(CALM._replace(teachers=5, **times(ratio)))
        for _ in range(seconds):
            have = decision.want
            share = min(1.0, teachers / have)
            self.run(PAUSED._replace(teachers=have, idle=have, **times(ratio)), share)
            decision = self.run(CALM._replace(teachers=have, **times(ratio)), 1 - share)
        return decision


def test_a_batch_that_exceeds_the_hard_limit_is_pulled_alone() -> None:
    flow = Flow(FlowConfig(upper_bytes=1000, lower_bytes=0, buffer_bytes=1000))
    view = CALM._replace(window_batches=4, queued=0, unlabelled=0, volume_bytes=0, batch_bytes=5000)
    assert flow.see(view).pull == 1
    assert flow.see(view._replace(unlabelled=1)).pull == 0
    assert flow.see(view._replace(volume_bytes=5000)).pull == 0


class TestState:
    @pytest.mark.parametrize(
        ("view", "state"),
        [
            (CALM, "steady"),
            (STARVED, "starved"),
            (STARVED._replace(queued=0, unlabelled=1), "starved"),
            (SOURCE_WAIT, "source_wait"),
            # One is on its way.
            (SOURCE_WAIT._replace(unlabelled=1, window_room=1), "source_wait"),
            (SOURCE_WAIT._replace(unlabelled=1, window_room=1, source_ended=True), "starved"),
            (SOURCE_WAIT._replace(unlabelled=1, window_room=0), "starved"),
            (SOURCE_WAIT._replace(source_ended=True), "steady"),
            (PAUSED, "blocked"),
            (STARVED._replace(volume_bytes=2000), "starved"),  # the head is late, the rest waits
        ],
    )
    def test_is_named(self, view: FlowView, state: str) -> None:
        assert Flow().see(view).state == state

    def test_time_is_booked_by_state(self) -> None:
        flow = Flow()
        for view, seconds in ((STARVED, 1.0), (CALM, 2.0), (SOURCE_WAIT, 3.0), (PAUSED, 4.0)):
            flow.run(view, seconds)
        booked_s = (flow.memory.starved_s, flow.memory.source_wait_s, flow.memory.blocked_s)
        assert booked_s == pytest.approx((1.0, 3.0, 4.0))


class TestRatio:
    def test_want_is_the_ratio_within_bounds(self) -> None:
        decision = Flow().see(CALM._replace(**times(4.5)))
        assert (decision.needed, decision.want) == (5, 5)
        assert "ceil(0.045 / 0.01" in decision.reason
        assert Flow().see(CALM).want == 1
        config = replace(CONFIG, teachers_min=3)
        assert Flow(config).see(CALM._replace(t_t_s=0.1)).want == 3
        config = replace(CONFIG, teachers_min=2, teachers_max=4)
        assert Flow(config).see(CALM._replace(**times(0.1))).want == 2
        decision = Flow(config).see(CALM._replace(**times(10.0)))
        assert (decision.needed, decision.want) == (10, 4)
        with pytest.raises(ValueError, match="t_t"):
            Flow().see(CALM._replace(**times(0.0)))


class TestAskingForOneMore:
    def test_starving_asks_for_one_more_at_a_time(self) -> None:
        flow = Flow()
        assert flow.run(STARVED, 0.2).want == 1
        decision = flow.run(STARVED, 0.2)
        assert decision.want == 2
        assert "starved while the windows of all teachers (1) were full" in decision.reason
        flow = Flow()
        assert flow.run(STARVED, 60.0).want == 2
        assert flow.run(STARVED._replace(teachers=2), 2.5).want == 3
        flow = Flow()
        wants = [flow.run_granted(STARVED, 0.1).want for _ in range(50)]
        assert wants[-1] == 1 + 3  # after 0.3 s, 2.3 s and 4.3 s
        assert wants == sorted(wants)
        flow = Flow(replace(CONFIG, teachers_max=2))
        assert flow.run_granted(STARVED, 60.0).want == 2

    def test_who_is_cut_off_asks_for_nobody(self) -> None:
        """The path is gone: others would be silent as well."""
        assert Flow().run(STARVED._replace(cut_off=True), 60.0).want == 1

    def test_short_starving_adds_up_and_rare_starving_is_tolerated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow = Flow()
        for _ in range(8):  # 50 ms of each 500 ms
            flow.run(CALM, 0.45)
            flow.run(STARVED, 0.05)
        assert flow.see(CALM).want == 2
        monkeypatch.setattr("edl.scheduler.flow.SURPLUS_WINDOW_S", 1e9)
        flow = Flow()
        for _ in range(50):  # 0.1 s of each 10 s
            flow.run(CALM, 9.9)
            flow.run(STARVED, 0.1)
        assert flow.see(CALM).want == 1

    def test_slow_source_earns_bounded_credit(self) -> None:
        """A bursting source: the student starves through the burst, then waits for the next."""
        flow = Flow()
        for _ in range(20):
            flow.run(SOURCE_WAIT, 2.0)
            flow.run(STARVED, 0.8)
        assert flow.see(CALM).want == 1
        flow = Flow()
        flow.run(SOURCE_WAIT, 600.0)
        assert flow.run(STARVED, SOURCE_CREDIT_S + STARVED_FOR_S + 0.1).want == 2

    def test_correction_of_a_known_and_an_unknown_ratio(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(**times(2.0)))
        assert flow.run(STARVED._replace(teachers=2, **times(2.0)), 2.5).want == 3
        assert flow.see(CALM._replace(teachers=3, **times(6.0))).want == 7
        flow = Flow()
        assert flow.run_granted(STARVED, 5.0).want == 4
        assert flow.see(CALM._replace(teachers=4, **times(2.0))).want == 2


class TestFollowingTheRatio:
    """n = ceil(t_t / t_s), though measurements scatter about a border."""

    def of(self, ratio: float) -> FlowView:
        return CALM._replace(teachers=5, **times(ratio))

    def test_need_rises_after_the_cool_down_or_at_once(self) -> None:
        flow = Flow()
        assert flow.see(self.of(4.9)).needed == 5
        assert flow.run(self.of(6.2), 1.0).needed == 5
        assert flow.run(self.of(5.9), 1.1).needed == 6
        flow = Flow()
        flow.see(self.of(4.9))
        assert flow.see(self.of(6.3)).needed == 7

    def test_the_next_window_begins_with_the_fall(self) -> None:
        flow = Flow()
        needed = []
        for ratio in (4.9, 3.5, 2.1, 2.1):
            needed.append(flow.see(self.of(ratio)).needed)
            flow.now += SURPLUS_WINDOW_S
        assert needed == [5, 5, 4, 3]

    def test_need_falls_after_a_whole_window(self) -> None:
        flow = Flow()
        flow.see(self.of(4.9))
        assert flow.run(self.of(2.1), 14.0).needed == 5
        assert flow.run(self.of(3.5), 1.1).needed == 4
        flow = Flow()
        flow.see(self.of(4.9))
        for _ in range(20):
            flow.run(self.of(3.9), 14.0)
            assert flow.see(self.of(4.1)).needed == 5

    def test_small_rise_replaces_the_correction(self) -> None:
        flow = Flow()
        flow.see(self.of(4.9))
        assert flow.run(STARVED._replace(teachers=5, **times(4.9)), 2.5).want == 6
        assert flow.run(self.of(5.1), 2.5).want == 6
        assert flow.memory.needed == 6


class TestSettling:
    """Where the want came back from it does not go again, while the rates are what they are."""

    def at_the_border(self) -> Flow:
        """Of five too many idle, and four are not enough."""
        flow = Flow()
        assert flow.run_idle(16, 1.5).want == 4
        assert flow.run(STARVED._replace(teachers=4, **FIVE_NEEDED), 3.0).want == 5
        return flow

    def test_border_is_left_for_good_reasons_only(self) -> None:
        assert self.at_the_border().run_idle(600, 1.5).want == 5
        assert self.at_the_border().run_idle(16, 2.5).want == 4
        assert self.at_the_border().run_idle(33, 1.5, ratio=3.9).want < 5

    def test_border_is_not_left_for_a_moment(self) -> None:
        flow = self.at_the_border()
        for _ in range(20):
            assert flow.run_idle(10, 1.5, ratio=3.9).want == 5
            assert flow.run_idle(5, 1.5).want == 5

    def test_other_reasons_hold_nothing(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(teachers=5, **FIVE_NEEDED))
        flow.run(STARVED._replace(teachers=5, **FIVE_NEEDED), 3.0)
        assert flow.memory.held == 0


class TestGivingBack:
    def test_idle_teachers_are_given_back_one_at_a_time(self) -> None:
        decision = Flow().run_idle(16, 1.5)
        assert (decision.needed, decision.want) == (5, 4)
        assert "1.5 teachers of 5 idled for 15 s" in decision.reason
        assert Flow().run_idle(120, 1.0).want == 5
        assert Flow().run_idle(29, 9.0).want == 4
        assert Flow().run_idle(32, 9.0).want == 3

    def test_giving_back_keeps_the_least_and_counts_present_teachers(self) -> None:
        flow = Flow(replace(CONFIG, teachers_min=3))
        assert flow.run_idle(300, 9.0).want == 3
        assert flow.see(CALM._replace(teachers=3, **times(10.0))).want == 10 - 2
        flow = Flow()
        flow.see(CALM._replace(**FIVE_NEEDED))
        assert flow.run(PAUSED._replace(teachers=3, idle=2, **FIVE_NEEDED), 16.0).want == 2

    def test_leaving_teachers_do_not_count_as_idle(self) -> None:
        """The coordinator takes its time to take two of three back that have become faster."""
        flow = Flow()
        flow.see(CALM._replace(**FIVE_NEEDED))
        for _ in range(60):  # 1.4 of them would do
            flow.run(PAUSED._replace(teachers=5, idle=5, **times(1.4)), 0.72)
            decision = flow.run(CALM._replace(teachers=5, **times(1.4)), 0.28)
        assert decision.want == 2

    def test_slow_source_idles_teachers(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(**FIVE_NEEDED))
        waiting = SOURCE_WAIT._replace(window_batches=10, window_room=9, idle=4, **FIVE_NEEDED)
        assert flow.run_granted(waiting, 16.0).want == 4

    def test_starving_keeps_or_restores_the_need(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(teachers=5, **FIVE_NEEDED))
        for _ in range(10):
            flow.run(PAUSED._replace(teachers=5, idle=5, **FIVE_NEEDED), 14.0)
            decision = flow.run(STARVED._replace(teachers=5, **FIVE_NEEDED), 0.1)
        assert decision.want == 5
        flow = Flow()
        assert flow.run_idle(50, 9.0).want == 2
        starved = STARVED._replace(teachers=2, **FIVE_NEEDED)
        assert flow.run(starved, 2.0).want == 5
